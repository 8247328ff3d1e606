"""Split one budget among the graphs of a step if sizes change: a limit for each graph that holds at all sizes.

No graph knows at which sizes the graphs after it will run.  So each gets its own limits (`Allowance`) on the bytes that
it takes while it runs, holds until its backward, and leaves behind.  A step in which every graph takes all of its
limits stays within the budget, so every step does, whatever sizes come together:

    budget  ├──────── A runs: limit A ────────┤
            ├─ held A ─┤── B runs: limit B ───┤

The ratio of the limits decides how much each graph recomputes.  It is taken from a plan of the whole step at sizes
half-way between the largest that need no recomputation and the largest that have a plan; `Split` makes that plan from
the levels at the first sizes, with their memory scaled.  If larger sizes come, the budget is split again for them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.events import NOTHING_SEEN, Call, Event, Sightings
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.levels import PlanLevel
from remat_compiler.step_model.peak import beside_bytes, whole_step_peak
from remat_compiler.step_model.split import Split

GROWTH = 1.1
"""Ratio of one size step to the next: step `s` stands for `GROWTH ** s` times the first sizes."""
SMALLEST, LARGEST = -48, 72
"""The smallest and the largest size step: a hundredth of the first sizes, and a thousand times them."""
STRETCH = 64
"""Limits are at most this many times the planned memory, even if the budget leaves more."""


@dataclass(frozen=True, slots=True, eq=False)
class GraphChoices:
    """One graph of a step.

    Attributes:
        levels: The ways to plan it at its first sizes, the least memory first.
        grown: Maps a multiple of the first sizes to the ratio of its memory there to that at the first sizes, and to
            the bytes that it leaves behind there.  `None` for a graph of fixed sizes.
        passed: See `Allowance`; the left bytes of `levels` do not include these gradients.
    """

    levels: tuple[PlanLevel, ...]
    grown: Callable[[float], tuple[float, int]] | None = None
    passed: tuple[int, ...] = ()

    def at(self, step: int) -> tuple[PlanLevel, ...]:
        """The levels at a size step, see `GROWTH`."""
        if self.grown is None:
            return self.levels
        factor, left = self.grown(GROWTH**step)
        return tuple(replace(level, memory=_scaled(level.memory, factor, left)) for level in self.levels)


@dataclass(frozen=True, slots=True)
class Division:
    """How a budget is split.

    Attributes:
        levels: For each graph the level that was chosen, at the first sizes.
        allowances: For each graph its limits.
        step: The size step that it was made for, see `GROWTH`.
    """

    levels: tuple[PlanLevel, ...]
    allowances: tuple[Allowance, ...]
    step: int


class SizeSplit:
    """One budget for the graphs of one step.

    Args:
        members: The graphs.
        calls: Their calls in order.
        turns: The forwards and backwards of the calls, in order.
        limit_bytes: The budget.
        seen: What was seen at the turns: the same at all sizes.
        spare_bytes: See `Allowance`.
    """

    def __init__(
        self,
        members: Sequence[GraphChoices],
        calls: Sequence[Call],
        turns: Sequence[Event],
        limit_bytes: int,
        seen: Sightings = NOTHING_SEEN,
        spare_bytes: int = 0,
    ) -> None:
        self._seen, self._spare_bytes = seen, spare_bytes
        self.members = tuple(members)
        self.limit_bytes = limit_bytes
        self._runs = [sum(call.graph == i for call in calls) for i in range(len(members))]
        self._graphs = tuple(call.graph for call in calls)
        # Each call is a graph of its own here, since calls of one graph may be for different parameters: then each of
        # them leaves gradients behind.  Gradients that a call passes on are not followed: those that wait for another
        # graph count as left behind, and again among that graph's tangents, which is never too little.
        self._calls = tuple(Call(i) for i in range(len(calls)))
        self._turns = tuple(turns)
        # The largest size steps that have a plan, and that need no recomputation.
        self.most, self._free = self._last_step(0), self._last_step(-1)

    def peak(self, memories: Sequence[GraphMemory]) -> int:
        """Peak of the step."""
        return whole_step_peak([memories[graph] for graph in self._graphs], self._calls, self._turns, self._seen)

    def divide(self, needed: int) -> Division | None:
        """The budget split for sizes of at least the size step `needed`; `None` if there is no plan for those."""
        if self.most is None or needed > self.most:
            return None
        # Without recomputation even the smallest sizes may not fit.
        free = SMALLEST if self._free is None else self._free
        step = max(needed, (free + self.most) // 2)
        # Not all memory grows with the sizes: what fits at the sizes that are needed may not at others below `most`.
        return self._divided_at(step) or (None if step == needed else self._divided_at(needed))

    def _divided_at(self, step: int) -> Division | None:
        """The budget split for the sizes of one size step; `None` if there is no plan for those."""
        at_step = [member.at(step) for member in self.members]
        found = Split(at_step, self._runs, self.peak).within(self.limit_bytes)
        if found is None:
            return None
        # `found` has levels scaled to the step: their positions name the levels at the first sizes.
        chosen = tuple(of.levels[levels.index(level)] for of, levels, level in zip(self.members, at_step, found))
        return Division(chosen, self._allowances([level.memory for level in found]), step)

    @property
    def least_peak(self) -> int:
        """The smallest predicted peak at the first sizes."""
        return self._peak_at(0, 0)

    def _peak_at(self, step: int, level: int) -> int:
        """Peak of the training step at a size step if all graphs are at the level of this number."""
        return self.peak([member.at(step)[level].memory for member in self.members])

    def _last_step(self, level: int) -> int | None:
        """The largest size step at which the training step fits at this level; `None` if it fits at none."""

        def fits(step: int) -> bool:
            return self._peak_at(step, level) <= self.limit_bytes

        # Memory grows with the sizes, so bisect: `low` fits, `high` does not or lies beyond the last step.  It may not
        # grow everywhere, and the first sizes must not be missed for that.
        low, high = (0, LARGEST + 1) if fits(0) else (SMALLEST, 0)
        if high == 0 and not fits(low):
            return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _allowances(self, planned: Sequence[GraphMemory]) -> tuple[Allowance, ...]:
        """Limits in proportion to the planned memory, as large as the budget allows; a fixed graph gets its memory."""
        memories = self._stretched(planned)
        for i in range(len(memories)):
            # If no other graph runs while this one is held, its held bytes need no limit; likewise its left bytes.
            # That is so if even more than the whole budget leaves the peak within it.
            for name in ("held_bytes", "left_bytes"):
                tried = [*memories[:i], replace(memories[i], **{name: self.limit_bytes + 1}), *memories[i + 1 :]]
                if self.members[i].grown is not None and self.peak(tried) <= self.limit_bytes:
                    memories[i] = tried[i]
        # A graph may take while it runs what the others leave free at their limits, at worst over its calls.
        beside = beside_bytes([memories[graph] for graph in self._graphs], self._calls, self._turns, self._seen)
        found = []
        for i, memory in enumerate(memories):
            # No call: the graph belongs to a joined step, and this step does not limit it.
            others = max((beside[call] for call, graph in enumerate(self._graphs) if graph == i), default=0)
            limit = self.limit_bytes - others
            held, left = min(memory.held_bytes, limit), min(memory.left_bytes, limit)
            found.append(Allowance(limit, held, left, self.members[i].passed, self._spare_bytes))
        return tuple(found)

    def _stretched(self, planned: Sequence[GraphMemory]) -> list[GraphMemory]:
        """The planned memory of all graphs whose sizes change, times the largest common factor that fits."""

        def stretched(factor: float) -> list[GraphMemory]:
            return [
                memory if member.grown is None else _scaled(memory, factor, int(factor * memory.left_bytes))
                for member, memory in zip(self.members, planned)
            ]

        # The plan itself fits, so `low` always does.
        low, high = 1.0, float(STRETCH)
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (middle, high) if self.peak(stretched(middle)) <= self.limit_bytes else (low, middle)
        return stretched(low)


def _scaled(memory: GraphMemory, factor: float, left_bytes: int) -> GraphMemory:
    """Memory at other sizes, with one limit for forward and backward."""
    # The left bytes may come from a formula of their own, and grow otherwise than the factor.
    peak_bytes = max(int(factor * memory.peak_bytes), left_bytes)
    return GraphMemory(peak_bytes, int(factor * memory.held_bytes), peak_bytes, left_bytes)
