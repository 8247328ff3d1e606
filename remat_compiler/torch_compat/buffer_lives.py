"""When the buffers of a planned graph are alive in Inductor's code, and what loops hold if they run as one."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import sympy
from torch._inductor import ir, memory
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from remat_compiler.torch_compat.sizes import number_at


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop or kernel before anything is fused.

    Attributes:
        reads: Names of the buffers that it reads.
        writes: Names of those that are allocated for it, to be written.
    """

    reads: frozenset[str]
    writes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lives:
    """The buffers of one graph in the planned order.

    Attributes:
        step: Position of each loop and kernel, by its name.
        loops: What they read and write, by position.
        kernels: Positions of the kernels.
        size_bytes: Bytes of each buffer that is freed or an output.
        end: Position behind which each is freed; for outputs the number of positions.
        readers: Positions at which each is read.
        writer: Position at which each is written, of those that a loop or kernel writes.
        alive_bytes: Bytes alive at each position.
    """

    step: Mapping[str, int]
    loops: Sequence[Loop]
    kernels: Sequence[int]
    size_bytes: Mapping[str, int]
    end: Mapping[str, int]
    readers: Mapping[str, Set[int]]
    writer: Mapping[str, int]
    alive_bytes: npt.NDArray[np.int64]

    @staticmethod
    def of(scheduler: Any, sizes: tuple[tuple[str, int], ...]) -> Lives:
        """The lives before anything is fused, when the scheduler's nodes stand in the planned order."""
        nodes, outputs = scheduler.nodes, OrderedSet(V.graph.get_output_names())
        buffers, names = scheduler.name_to_buf, scheduler.name_to_fused_node
        inputs = OrderedSet(V.graph.graph_inputs)
        _, freeable = memory.prepare_planning_info(nodes, buffers, names, inputs, outputs)
        infos = {one.buffer.get_name(): one for one in memory.compute_memory_timeline(nodes, freeable, outputs)[0]}
        # The parts of a concatenation lie in its result, which is allocated when the first of them is written.
        whole = {name: _whole_of(name) for name in infos}
        start: dict[str, int] = {}
        for name, one in infos.items():
            start[whole[name]] = min(start.get(whole[name], one.start_step), one.start_step)
        size_bytes: dict[str, int] = {}
        end: dict[str, int] = {}
        changes = np.zeros(len(nodes) + 2, dtype=np.int64)
        for name, one in infos.items():
            times = _growth(name, sizes) if whole[name] == name else 0.0
            # Buffers that are never freed have no end.
            end[name] = len(nodes) if one.end_step == -1 else one.end_step
            size_bytes[name] = int(one.size_free * times)
            changes[start.get(name, one.start_step)] += int(one.size_alloc * times)
            changes[end[name] + 1] -= size_bytes[name]
        reads = [frozenset(dep.name for dep in node.read_writes.reads) for node in nodes]
        writes = [tuple(buffer.get_name() for buffer in node.get_outputs()) for node in nodes]
        writer = {name: step for step, names in enumerate(writes) for name in names}
        made: list[list[str]] = [[] for _ in nodes]
        for name, step in writer.items():
            made[min(step, max(start.get(name, step), 0))].append(name)
        readers: dict[str, set[int]] = {}
        for step, names_read in enumerate(reads):
            for name in names_read:
                readers.setdefault(name, set()).add(step)
        return Lives(
            {node.get_name(): step for step, node in enumerate(nodes)},
            list(map(Loop, reads, map(tuple, made))),
            [step for step, node in enumerate(nodes) if node.is_extern() or node.is_template()],
            size_bytes,
            end,
            readers,
            writer,
            np.cumsum(changes),
        )

    def kernel_between(self, node1: Any, node2: Any) -> bool:
        """Whether there is a kernel, in the planned order, between the first and the last loop of the two."""
        # Fused nodes span the positions of their loops.
        first, last = min(node1.min_order, node2.min_order), max(node1.max_order, node2.max_order)
        return bisect.bisect_left(self.kernels, first) != bisect.bisect_right(self.kernels, last)

    def planned_bytes(self) -> int:
        """Most bytes alive in the planned order, where results lie in the place of arguments that end."""
        steps = range(len(self.loops))
        return max((int(self.alive_bytes[s]) - self._taken_over([s], set(), {s}) for s in steps), default=0)

    def fit(self, most_bytes: int, *nodes: Any) -> bool:
        """Whether no more than so many bytes are alive if the loops of `nodes` run as one."""
        # Nothing is alive that is not alive in the planned order, or made earlier, or freed later, by these loops.
        steps = self._steps(nodes)
        names = {name for step in steps for name in (*self.loops[step].reads, *self.loops[step].writes)}
        planned_bytes = int(self.alive_bytes[steps[0] : steps[-1] + 1].max())
        if planned_bytes + sum(self.size_bytes.get(name, 0) for name in names) <= most_bytes:
            return True
        return self.fused_bytes(*nodes) <= most_bytes

    def fused_bytes(self, *nodes: Any, takes_over: bool = True) -> int:
        """Most bytes alive from the first to the last loop of `nodes` if all of them run as one.

        That is at the place of the first, behind those between them whose results they read.

        Args:
            nodes: The loops, fused or not.
            takes_over: Whether results may lie where arguments end.
        """
        steps = self._steps(nodes)
        inside = set(steps)
        # What the loops alone read is computed on the way, and needs no memory.
        passing = {name for step in steps for name in self.loops[step].writes if self._is_read_only_in(name, inside)}
        before = self._read_between(steps)
        behind = [step for step in range(steps[0] + 1, steps[-1]) if step not in inside and step not in before]
        alive_bytes = int(self.alive_bytes[steps[0]]) - self._sum(self.loops[steps[0]].writes)
        to_come: dict[str, set[int]] = {}
        most = 0
        for group in [[step] for step in before] + [steps] + [[step] for step in behind]:
            made = [name for step in group for name in self.loops[step].writes if name not in passing]
            alive_bytes += self._sum(made)
            taken_bytes = self._taken_over(group, passing, inside) if takes_over and group is steps else 0
            most = max(most, alive_bytes - taken_bytes)
            read = {name for step in group for name in (*self.loops[step].reads, *made)} - passing
            ending = (name for name in sorted(read) if self.end.get(name, len(self.loops)) <= steps[-1])
            alive_bytes -= self._sum(name for name in ending if self._is_last_read(name, group, to_come))
        return most

    def _steps(self, nodes: Iterable[Any]) -> list[int]:
        return sorted(self.step[loop.get_name()] for node in nodes for loop in node.get_nodes())

    def _read_between(self, steps: Sequence[int]) -> list[int]:
        """Loops between the first and the last of `steps` whose results these need, in order."""
        inside, found = set(steps), set[int]()
        for step in range(steps[-1], steps[0], -1):
            if step in inside or step in found:
                makers = (self.writer.get(name, -1) for name in self.loops[step].reads)
                found.update(one for one in makers if one > steps[0] and one not in inside)
        return sorted(found)

    def _is_last_read(self, name: str, steps: Sequence[int], to_come: dict[str, set[int]]) -> bool:
        """Whether the loops at `steps`, which run now, are the last in `to_come`, those that read a buffer."""
        left = to_come.setdefault(name, set(self.readers.get(name, ())))
        left.difference_update(steps)
        return not left

    def _sum(self, names: Iterable[str]) -> int:
        return sum(self.size_bytes[name] for name in names)

    def _is_read_only_in(self, name: str, steps: Set[int]) -> bool:
        """Whether a buffer that ends is read, at these positions only."""
        readers = self.readers.get(name, frozenset())
        # Parameters and inputs have no end.
        return bool(readers) and readers <= steps and self.end.get(name, len(self.loops)) < len(self.loops)

    def _taken_over(self, steps: Sequence[int], passing: Set[str], inside: Set[int]) -> int:
        """Bytes of results that lie where a buffer of equal size ends that the same loop reads."""
        sources: dict[str, set[str]] = {}
        ended: set[str] = set()
        total = 0
        for step in steps:
            read = set[str]().union(*(sources.get(name, {name}) for name in self.loops[step].reads))
            for name in self.loops[step].writes:
                if name in passing:
                    sources[name] = read
                    continue
                ending = (one for one in sorted(read - ended) if self._is_read_only_in(one, inside))
                same = next((one for one in ending if self.size_bytes[one] == self.size_bytes[name]), None)
                if same is not None and self.size_bytes[name]:
                    ended.add(same)
                    total += self.size_bytes[name]
        return total


def _whole_of(name: str) -> str:
    """The buffer in which another lies; itself if it has memory of its own."""
    buffer = V.graph.try_get_buffer(name)
    while isinstance(buffer, ir.Buffer) and isinstance(buffer.layout, ir.NonOwningLayout):
        name = buffer.layout.view.get_name()
        buffer = V.graph.try_get_buffer(name)
    return name


def _growth(name: str, sizes: tuple[tuple[str, int], ...]) -> float:
    """How many times as large as in the traced call a buffer is at other sizes."""
    if not sizes:
        return 1.0
    buffer = V.graph.try_get_buffer(name)
    if buffer is None:
        return 1.0
    # Of tensors of fixed sizes alone it is a plain number.
    numel = sympy.sympify(sum(one.get_numel() for one in _results(buffer)))
    traced, now = V.graph.sizevars.optimization_hint(numel, fallback=0), number_at(numel, sizes)
    return now / traced if now is not None and traced else 1.0


def _results(buffer: Any) -> list[Any]:
    """The buffers that have a size: itself, the results of a kernel with several, or none."""
    if isinstance(buffer.layout, ir.Layout):
        return [buffer]
    others: list[Any] = [one for one in V.graph.buffers if isinstance(one, ir.MultiOutput)]
    return [one for one in others if one.inputs[0].get_name() == buffer.get_name()]
