"""Which loops Inductor may fuse in a planned graph: none whose fusion would hold more than the plan does.

A fused loop allocates all its results before it runs, and what any of its parts reads is freed behind it:

    planned     a: reads x, writes y | x is freed | b: reads c, writes z      at most x+y+c or y+c+z
    fused       a and b: read x and c, write y and z                          x+y+c+z

So two loops are fused only where those bytes still fit beside what is alive around them.
"""

from __future__ import annotations

import bisect
import threading
from collections.abc import Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from torch._inductor import ir, memory
from torch._inductor.choices import InductorChoices
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

from remat_compiler.torch_compat.patches import LOOP_FUSION
from remat_compiler.torch_compat.patching import original
from remat_compiler.torch_compat.sizes import number_at

# By thread: other threads compile unplanned graphs meanwhile.
_planned = threading.local()


@dataclass(frozen=True, slots=True)
class FusionLimit:
    """The bytes that loops may hold.

    Attributes:
        peak_bytes: Most bytes alive in the planned step.
        sizes: Name and number of each symbolic size at which that is so.
    """

    peak_bytes: int
    sizes: tuple[tuple[str, int], ...]


def limit_fusion(limit: FusionLimit | None) -> None:
    """Set the limit for the graphs that this thread compiles from now on; `None` where nothing is planned."""
    _planned.limit = limit


def is_fusion_limited() -> bool:
    """Whether this thread compiles planned graphs."""
    return getattr(_planned, "limit", None) is not None


def planned_choices() -> InductorChoices:
    """The user's choices of how to fuse, which for planned graphs are fewer."""
    made: InductorChoices = _planned_choices(cast("Hashable", type(V.choices)))()
    return made


@cache
def _planned_choices(base: Any) -> type[InductorChoices]:
    original(LOOP_FUSION)  # raises unless it takes the arguments below

    class PlannedChoices(base):  # type: ignore[misc]
        @staticmethod
        def can_fuse(scheduler: Any, node1: Any, node2: Any, shared_data_score: int) -> bool:
            limit: FusionLimit | None = getattr(_planned, "limit", None)
            if limit is None:
                return bool(base.can_fuse(scheduler, node1, node2, shared_data_score))
            lives = _lives_in(scheduler, limit.sizes)
            # A loop that is fused across a kernel runs before or after it, and holds there what the plan frees on the
            # other side.
            if lives.kernel_between(node1, node2) or not base.can_fuse(scheduler, node1, node2, shared_data_score):
                return False
            return lives.fused_bytes(node1, node2) <= limit.peak_bytes

    return PlannedChoices


def _lives_in(scheduler: Any, sizes: tuple[tuple[str, int], ...]) -> Lives:
    """The lives of a scheduler's buffers, kept on it: Inductor asks for every pair of loops."""
    found: Lives | None = getattr(scheduler, "_remat_lives", None)
    if found is None:
        found = scheduler._remat_lives = Lives.of(scheduler, sizes)
    return found


@dataclass(frozen=True, slots=True)
class Loop:
    """One loop or kernel before anything is fused.

    Attributes:
        reads: Names of the buffers that it reads.
        writes: Names of those that it writes.
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
        alive_bytes: Bytes alive at each position.
    """

    step: Mapping[str, int]
    loops: Sequence[Loop]
    kernels: Sequence[int]
    size_bytes: Mapping[str, int]
    end: Mapping[str, int]
    readers: Mapping[str, Set[int]]
    alive_bytes: npt.NDArray[np.int64]

    @staticmethod
    def of(scheduler: Any, sizes: tuple[tuple[str, int], ...]) -> Lives:
        """The lives before anything is fused, when the scheduler's nodes stand in the planned order."""
        nodes, outputs = scheduler.nodes, OrderedSet(V.graph.get_output_names())
        buffers, names = scheduler.name_to_buf, scheduler.name_to_fused_node
        inputs = OrderedSet(V.graph.graph_inputs)
        _, freeable = memory.prepare_planning_info(nodes, buffers, names, inputs, outputs)
        size_bytes: dict[str, int] = {}
        end: dict[str, int] = {}
        changes = np.zeros(len(nodes) + 2, dtype=np.int64)
        for one in memory.compute_memory_timeline(nodes, freeable, outputs)[0]:
            name = one.buffer.get_name()
            times = _growth(name, sizes)
            # Buffers that are never freed have no end.
            end[name] = len(nodes) if one.end_step == -1 else one.end_step
            size_bytes[name] = int(one.size_free * times)
            changes[one.start_step] += int(one.size_alloc * times)
            changes[end[name] + 1] -= size_bytes[name]
        reads = [frozenset(dep.name for dep in node.read_writes.reads) for node in nodes]
        writes = [tuple(buffer.get_name() for buffer in node.get_outputs()) for node in nodes]
        readers: dict[str, set[int]] = {}
        for step, names_read in enumerate(reads):
            for name in names_read:
                readers.setdefault(name, set()).add(step)
        return Lives(
            {node.get_name(): step for step, node in enumerate(nodes)},
            list(map(Loop, reads, writes)),
            [step for step, node in enumerate(nodes) if node.is_extern()],
            size_bytes,
            end,
            readers,
            np.cumsum(changes),
        )

    def kernel_between(self, node1: Any, node2: Any) -> bool:
        """Whether there is a kernel, in the planned order, between the first and the last loop of the two."""
        # Fused nodes span the positions of their loops.
        first, last = min(node1.min_order, node2.min_order), max(node1.max_order, node2.max_order)
        return bisect.bisect_left(self.kernels, first) != bisect.bisect_right(self.kernels, last)

    def fused_bytes(self, node1: Any, node2: Any) -> int:
        """Most bytes alive from the first to the last loop of the two if all of them run at the place of the first."""
        steps = sorted(self.step[loop.get_name()] for node in (node1, node2) for loop in node.get_nodes())
        inside = set(steps)
        # What the loops alone read is computed on the way, and needs no memory.
        passing = {name for step in steps for name in self.loops[step].writes if self._is_read_only_in(name, inside)}
        kept = {step: self._sum(name for name in self.loops[step].writes if name not in passing) for step in steps}
        before_bytes = int(self.alive_bytes[steps[0]]) - self._sum(self.loops[steps[0]].writes)
        most = before_bytes + sum(kept.values()) - self._taken_over(steps, passing, inside)
        # Loops between them run behind the fused one, whose later results are alive by then.
        for step, following in pairwise(steps):
            if following - step > 1:
                later = sum(kept[one] for one in steps if one > step)
                most = max(most, int(self.alive_bytes[step + 1 : following].max()) + later)
        return most

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


def _growth(name: str, sizes: tuple[tuple[str, int], ...]) -> float:
    """How many times as large as in the traced call a buffer is at other sizes."""
    if not sizes:
        return 1.0
    buffer = V.graph.try_get_buffer(name)
    if buffer is None:
        return 1.0
    numel = sum(one.get_numel() for one in _results(buffer))
    traced, now = V.graph.sizevars.optimization_hint(numel, fallback=0), number_at(numel, sizes)
    return now / traced if now is not None and traced else 1.0


def _results(buffer: Any) -> list[Any]:
    """The buffers that have a size: itself, the results of a kernel with several, or none."""
    if isinstance(buffer.layout, ir.Layout):
        return [buffer]
    others: list[Any] = [one for one in V.graph.buffers if isinstance(one, ir.MultiOutput)]
    return [one for one in others if one.inputs[0].get_name() == buffer.get_name()]
