"""The forward of a captured step run beside it, layer by layer, to measure what each layer saves and how long it takes.

    block 0 ─► measured, dropped ─► block 1 ─► measured, dropped ─► ...        what later blocks read is kept

Source: Liao, Li, Sun et al., *Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU*, section 4.2
and Figure 7: each block runs once more than the step needs, so that what is collected never is there all at once.
Deviation: the paper's blocks run twice in turn; here the whole forward runs before the step.

The operators are those of the captured graph, one after the other: under Inductor, bytes are those of what it is
expected to materialise at the sizes of the first call, and times are those of operators that are not fused.
"""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import torch
from torch import fx

from remat_compiler import torch_compat

WHOLE = -1
"""Position of a result that is no tuple."""
_COPY = torch.ops.aten.copy_.default


@dataclass(frozen=True, slots=True, eq=False)
class Block:
    """One layer of a forward.

    Attributes:
        name: Its module path, or ``segment 3``.
        saved: Names of the nodes whose memory is to be measured; what other blocks read besides is told from storages
            alone, since it stays.
        checkpointed: Whether the user has a part of it made again already.
    """

    name: str
    saved: tuple[str, ...]
    checkpointed: bool


class Meter(Protocol):
    """Instruments of a device."""

    def now_ns(self) -> int:
        """The time when all that was started has ended."""
        ...

    def release(self, values: list[torch.Tensor]) -> int:
        """Empty the list, which alone holds them, and return the bytes that the allocator gets back."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run of a forward showed: bytes and nanoseconds of each block."""

    block_bytes: tuple[int, ...]
    block_ns: tuple[int, ...]


class BlockedForward:
    """A forward as blocks.

    Args:
        joint: The joint graph; it must neither write to memory, but for copies into its inputs, nor have other effects.
        nodes: Names of the nodes of the forward, with the block of each or -1 for none; nodes that they need besides
            run where they stand.
        inputs: Names of the placeholders that `run` is given values for, in that order.
        blocks: The blocks.
    """

    def __init__(
        self, joint: fx.GraphModule, nodes: Mapping[str, int], inputs: Sequence[str], blocks: Sequence[Block]
    ) -> None:
        self.blocks = tuple(blocks)
        self._joint = joint
        by_name = {node.name: node for node in joint.graph.nodes}
        self._inputs = [by_name.get(name) for name in inputs]
        self._sections = _sections(joint.graph, nodes)
        self._saved = [[by_name[name] for name in block.saved] for block in self.blocks]
        self._last = {block: i for i, (block, _) in enumerate(self._sections)}
        self._read_later = self._read_behind_their_block()
        self._dead = self._last_reads()

    @property
    def input_values(self) -> list[Any]:
        """The traced values of the inputs."""
        return [None if node is None else node.meta.get("val") for node in self._inputs]

    def run(self, arguments: Sequence[Any], meter: Meter) -> Measured:
        """Run all blocks, with `arguments` for the inputs; none of them is written to."""
        interpreter = torch_compat.StepInterpreter(self._joint, garbage_collect_values=False)
        env = interpreter.env
        env.update((node, value) for node, value in zip(self._inputs, arguments) if node is not None)
        size, spent = [0] * len(self.blocks), [0] * len(self.blocks)
        for i, (block, section) in enumerate(self._sections):
            start = meter.now_ns()
            for node in section:
                # What is copied into an input stands for the input: nobody reads the one or the other to write to it.
                env[node] = env[_copied(node)] if node.target is _COPY else interpreter.run_node(node)
                for dead in self._dead.get(node, ()):
                    del env[dead]
            if block < 0:
                continue
            spent[block] += meter.now_ns() - start
            if self._last[block] == i:
                saved = [env[node] if node in self._read_later else env.pop(node) for node in self._saved[block]]
                size[block] = meter.release(saved)
        return Measured(tuple(size), tuple(spent))

    def peak_bytes(
        self, roots: Mapping[fx.Node, fx.Node], size_of: Callable[[Any], int], inside: Callable[[fx.Node], int]
    ) -> int:
        """The peak of a run, from the traced values.

        Args:
            roots: For each node with a tensor, the node that owns its memory, see `capture.storages.find_roots`.
            size_of: Bytes of the storage of a traced tensor.
            inside: Bytes that a node takes while it runs, beyond its results.
        """
        memory = _Memory(roots, size_of)
        peak = 0
        for i, (block, section) in enumerate(self._sections):
            for node in section:
                memory.hold(node)
                peak = max(peak, memory.live_bytes + inside(node))
                for dead in self._dead.get(node, ()):
                    memory.drop(dead)
            if block >= 0 and self._last[block] == i:
                for node in self._saved[block]:
                    if node not in self._read_later:
                        memory.drop(node)
        return peak

    def _read_behind_their_block(self) -> set[fx.Node]:
        """Values to be measured that something reads once their block is over."""
        over = {node: self._last[block] for block, saved in enumerate(self._saved) for node in saved}
        return {
            read
            for i, (_, section) in enumerate(self._sections)
            for node in section
            for read in node.all_input_nodes
            if i > over.get(read, i)
        }

    def _last_reads(self) -> dict[fx.Node, list[fx.Node]]:
        """For each node that runs, the values that nobody needs behind it; those to be measured leave with a block."""
        seen = {node for saved in self._saved for node in saved} - self._read_later
        dead: dict[fx.Node, list[fx.Node]] = {}
        for node in reversed([node for _, section in self._sections for node in section]):
            for value in (node, *node.all_input_nodes):
                if value not in seen and value.op != "placeholder":
                    dead.setdefault(node, []).append(value)
                seen.add(value)
        return dead


def _copied(copy: fx.Node) -> fx.Node:
    """What a copy reads."""
    source = copy.args[1]
    assert isinstance(source, fx.Node)
    return source


def _sections(graph: fx.Graph, nodes: Mapping[str, int]) -> list[tuple[int, list[fx.Node]]]:
    """The nodes to run, in order, those of one block that follow each other together."""
    wanted: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.name in nodes or node in wanted:
            wanted.update((node, *node.all_input_nodes))
    ordered: list[tuple[int, fx.Node]] = []
    for node in graph.nodes:
        if node in wanted and node.op != "placeholder":
            ordered.append((nodes.get(node.name, ordered[-1][0] if ordered else -1), node))
    return [(block, [node for _, node in section]) for block, section in groupby(ordered, key=lambda pair: pair[0])]


def written_nodes(graph: fx.Graph, names: Iterable[str]) -> Iterator[fx.Node]:
    """Those of the named nodes that write to memory otherwise than by a copy into an input."""
    wanted = set(names)
    for node in graph.nodes:
        writes = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        into_input = node.target is _COPY and node.all_input_nodes[0].op == "placeholder"
        if node.name in wanted and writes and not into_input:
            yield node


class _Memory:
    """What values that are held keep alive; results of an operator with several are pieces of their own."""

    def __init__(self, roots: Mapping[fx.Node, fx.Node], size_of: Callable[[Any], int]) -> None:
        self.live_bytes = 0
        self._roots = roots
        self._size_of = size_of
        self._holders: Counter[tuple[fx.Node, int]] = Counter()

    def hold(self, node: fx.Node) -> None:
        """The value of `node` is there."""
        for piece in self._pieces(node):
            self._holders[piece] += 1
            if self._holders[piece] == 1:
                self.live_bytes += self._size(piece)

    def drop(self, node: fx.Node) -> None:
        """The value of `node` is let go."""
        for piece in self._pieces(node):
            self._holders[piece] -= 1
            if self._holders[piece] == 0:
                self.live_bytes -= self._size(piece)

    def _pieces(self, node: fx.Node) -> list[tuple[fx.Node, int]]:
        """Owner and position among its results of each piece of memory; none for what was there before."""
        root = self._roots.get(_copied(node) if node.target is _COPY else node)
        if root is None or root.op != "call_function":
            return []
        if root.target is operator.getitem:
            parent, position = root.args
            assert isinstance(parent, fx.Node)
            assert isinstance(position, int)
            return [(parent, position)]
        value = root.meta.get("val")
        if isinstance(value, (list, tuple)):
            return [(root, i) for i, one in enumerate(value) if isinstance(one, torch.Tensor)]
        return [(root, WHOLE)] if isinstance(value, torch.Tensor) else []

    def _size(self, piece: tuple[fx.Node, int]) -> int:
        owner, position = piece
        value = owner.meta["val"]
        return self._size_of(value if position == WHOLE else value[position])


class CpuMeter:
    """The bytes of storages: the allocator of a CPU hands out what it is asked for."""

    def now_ns(self) -> int:
        """See `Meter`."""
        return time.perf_counter_ns()

    def release(self, values: list[torch.Tensor]) -> int:
        """See `Meter`."""
        storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in values}
        values.clear()
        return sum(storages.values())


class CudaMeter:
    """What the caching allocator says."""

    def now_ns(self) -> int:
        """See `Meter`."""
        torch.cuda.synchronize()
        return time.perf_counter_ns()

    def release(self, values: list[torch.Tensor]) -> int:
        """See `Meter`."""
        before = torch.cuda.memory_allocated()
        values.clear()
        return before - torch.cuda.memory_allocated()


def meter_for(device_type: str) -> Meter:
    """The instruments of a device."""
    return CudaMeter() if device_type == "cuda" else CpuMeter()
