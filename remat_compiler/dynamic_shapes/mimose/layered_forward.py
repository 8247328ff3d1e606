"""A run of a captured step's forward, outside the step, that measures the saved bytes and the time of each layer.

    block 0 ─► measured, dropped ─► block 1 ─► measured, dropped ─► ...        values that later blocks read are kept

Source: Liao, Li, Sun et al., *Mimose: An Input-Aware Checkpointing Planner for Efficient Training on GPU*, section 4.2
and Figure 7: each block runs once more than the step needs, so that the values of all blocks are never alive at once.
Deviation: the paper's blocks run twice in turn; here the whole forward runs before the step.

The operators are those of the captured graph, one after the other.  So under Inductor, the bytes are those of the
values that it is expected to materialise at the sizes of the first call, and the times are those of unfused operators.
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
class Layer:
    """One layer of a forward.

    Attributes:
        name: Its module path, or ``segment 3``.
        saved: Names of the nodes whose memory is to be measured.  The bytes of values that other blocks read, too, can
            be told from their storages alone, since these stay alive.
        checkpointed: Whether the user's own checkpoint recomputes a part of it already.
    """

    name: str
    saved: tuple[str, ...]
    checkpointed: bool


class Meter(Protocol):
    """Instruments of a device."""

    def now_ns(self) -> int:
        """The time, after all work that was started has ended."""
        ...

    def release(self, values: list[torch.Tensor]) -> int:
        """Empty the list, which alone holds them, and return the bytes that the allocator gets back."""
        ...


@dataclass(frozen=True, slots=True)
class Measured:
    """The bytes and nanoseconds of each block in one run of a forward."""

    block_bytes: tuple[int, ...]
    block_ns: tuple[int, ...]


class LayeredForward:
    """A forward as blocks.

    Args:
        joint: The joint graph.  Except for copies into its inputs it must not write to memory, nor have other effects.
        nodes: Names of the nodes of the forward, with the block of each or -1 for none.  Other nodes that they depend
            on run in the order of the graph.
        inputs: Names of the placeholders for which `run` gets values, in that order.
        blocks: The blocks.
    """

    def __init__(
        self, joint: fx.GraphModule, nodes: Mapping[str, int], inputs: Sequence[str], blocks: Sequence[Layer]
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
        # An input that the joint graph has no placeholder for is read by nothing in it.
        env.update((node, value) for node, value in zip(self._inputs, arguments) if node is not None)
        size, spent = [0] * len(self.blocks), [0] * len(self.blocks)
        for i, (block, section) in enumerate(self._sections):
            start = meter.now_ns()
            for node in section:
                # Inputs are not written to: the source of the copy stands for its result, and nothing writes to either.
                env[node] = env[_copied(node)] if node.target is _COPY else interpreter.run_node(node)
                for dead in self._dead.get(node, ()):
                    del env[dead]
            if block < 0:
                continue
            spent[block] += meter.now_ns() - start
            # A block may have several sections, with others between: measured once the last of them has run.
            if self._last[block] == i:
                # Taken out of `env`, so that the list alone holds them; what something reads later must stay.
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
            inside: Workspace bytes of a node.
        """
        # Holds and drops in the order of `run`, or the peak would be that of another run.
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
        """Values to be measured that something reads after their block: they cannot be dropped with it."""
        over = {node: self._last[block] for block, saved in enumerate(self._saved) for node in saved}
        return {
            read
            for i, (_, section) in enumerate(self._sections)
            for node in section
            for read in node.all_input_nodes
            if i > over.get(read, i)
        }

    def _last_reads(self) -> dict[fx.Node, list[fx.Node]]:
        """For each node that runs, the values read for the last time; values to be measured go with their block."""
        seen = {node for saved in self._saved for node in saved} - self._read_later
        dead: dict[fx.Node, list[fx.Node]] = {}
        # Backwards, the first read met is the last one; a node itself is among them if nothing reads its value.
        for node in reversed([node for _, section in self._sections for node in section]):
            for value in (node, *node.all_input_nodes):
                if value not in seen and value.op != "placeholder":
                    dead.setdefault(node, []).append(value)
                seen.add(value)
        return dead


def _copied(copy: fx.Node) -> fx.Node:
    """The source of a copy."""
    source = copy.args[1]
    assert isinstance(source, fx.Node)
    return source


def _sections(graph: fx.Graph, nodes: Mapping[str, int]) -> list[tuple[int, list[fx.Node]]]:
    """The nodes to run, in order; consecutive nodes of one block make a section."""
    # Backwards, so that a node is met after all that read it: then the nodes that it needs are wanted, too.
    wanted: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.name in nodes or node in wanted:
            wanted.update((node, *node.all_input_nodes))
    ordered: list[tuple[int, fx.Node]] = []
    for node in graph.nodes:
        if node in wanted and node.op != "placeholder":
            # Without a block of its own, a node runs in that of the node before it.
            ordered.append((nodes.get(node.name, ordered[-1][0] if ordered else -1), node))
    return [(block, [node for _, node in section]) for block, section in groupby(ordered, key=lambda pair: pair[0])]


def written_nodes(graph: fx.Graph, names: Iterable[str]) -> Iterator[fx.Node]:
    """The named nodes that write to memory, except for copies into an input."""
    wanted = set(names)
    for node in graph.nodes:
        writes = isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable
        into_input = node.target is _COPY and node.all_input_nodes[0].op == "placeholder"
        if node.name in wanted and writes and not into_input:
            yield node


class _Memory:
    """Bytes of the storages that live values keep alive; each result of an operator is a storage of its own."""

    def __init__(self, roots: Mapping[fx.Node, fx.Node], size_of: Callable[[Any], int]) -> None:
        self.live_bytes = 0
        self._roots = roots
        self._size_of = size_of
        self._holders: Counter[tuple[fx.Node, int]] = Counter()

    def hold(self, node: fx.Node) -> None:
        """Count `node`'s storages as live."""
        # Views share a storage: it is counted with its first holder, and released with its last.
        for piece in self._pieces(node):
            self._holders[piece] += 1
            if self._holders[piece] == 1:
                self.live_bytes += self._size(piece)

    def drop(self, node: fx.Node) -> None:
        """Release `node`'s storages."""
        for piece in self._pieces(node):
            self._holders[piece] -= 1
            if self._holders[piece] == 0:
                self.live_bytes -= self._size(piece)

    def _pieces(self, node: fx.Node) -> list[tuple[fx.Node, int]]:
        """The storages of a value, as owner and position among the owner's results; none for inputs."""
        root = self._roots.get(_copied(node) if node.target is _COPY else node)
        if root is None or root.op != "call_function":
            return []
        if root.target is operator.getitem:
            parent, position = root.args
            assert isinstance(parent, fx.Node)
            assert isinstance(position, int)
            return [(parent, position)]
        value = root.meta.get("val")
        # `getitem` nodes above refer to the same pairs, so that a piece is counted once.
        if isinstance(value, (list, tuple)):
            return [(root, i) for i, one in enumerate(value) if isinstance(one, torch.Tensor)]
        return [(root, WHOLE)] if isinstance(value, torch.Tensor) else []

    def _size(self, piece: tuple[fx.Node, int]) -> int:
        owner, position = piece
        value = owner.meta["val"]
        return self._size_of(value if position == WHOLE else value[position])


class CpuMeter:
    """Measures by the bytes of storages: a CPU's allocator does not round them."""

    def now_ns(self) -> int:
        """See `Meter`."""
        return time.perf_counter_ns()

    def release(self, values: list[torch.Tensor]) -> int:
        """See `Meter`."""
        # By address, since views share a storage.
        storages = {value.untyped_storage().data_ptr(): value.untyped_storage().nbytes() for value in values}
        values.clear()
        return sum(storages.values())


class CudaMeter:
    """Measures by the caching allocator's figures."""

    def now_ns(self) -> int:
        """See `Meter`."""
        # Kernels run asynchronously.
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
