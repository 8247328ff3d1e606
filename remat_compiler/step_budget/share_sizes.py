"""Share one budget among the graphs of a step, some of whose sizes change: what each may take at any sizes.

No graph knows at which sizes the graphs behind it will run.  So each gets a limit of its own (`Allowance`) for what it
takes while it runs, holds until its backward, and leaves behind; a step whose graphs all take their limits stays within
the budget, so every step does, whatever sizes come together:

    budget  ├──────── A runs: limit A ────────┤
            ├─ held A ─┤── B runs: limit B ───┤

How the limits compare decides what is recomputed, and where.  They are those of a plan of the whole step, half-way
between the largest sizes that need no recomputation and the largest for which there is a plan; `share` makes it from
what is known at the first sizes, grown with them.  Larger sizes than those have the budget shared anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.simulate.allowance import Allowance
from remat_compiler.simulate.step_peak import Call, GraphMemory, Turn, beside_bytes, whole_step_peak
from remat_compiler.step_budget.share import Level, share

logger = logging.getLogger(__name__)

GROWTH = 1.1
"""Factor between the multiples of the first sizes that are looked at."""
SMALLEST, LARGEST = -48, 72
"""The first and the last of them, as exponents: a hundredth, and a thousand times the first sizes."""
STRETCH = 64
"""How many times the plan's memory limits may be at most, where the budget leaves that much."""


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One graph of a step.

    Attributes:
        levels: The ways to plan it at its first sizes, the least memory first.
        grown: What its memory at other sizes is of that at the first ones, and what it leaves behind there in bytes;
            takes the multiple of the first sizes.  `None` for a graph of fixed sizes.
        passed: See `Allowance`; what levels leave behind is without these.
    """

    levels: tuple[Level, ...]
    grown: Callable[[float], tuple[float, int]] | None = None
    passed: tuple[int, ...] = ()

    def at(self, step: int) -> tuple[Level, ...]:
        """The levels at other sizes."""
        if self.grown is None:
            return self.levels
        factor, left = self.grown(GROWTH**step)
        return tuple(replace(level, memory=_scaled(level.memory, factor, left)) for level in self.levels)


@dataclass(frozen=True, slots=True)
class Division:
    """How a budget is shared.

    Attributes:
        levels: For each graph the level that was chosen, at the first sizes.
        allowances: What each may take.
        step: The power of `GROWTH` times the first sizes that it was made for.
    """

    levels: tuple[Level, ...]
    allowances: tuple[Allowance, ...]
    step: int


class SizeShares:
    """One budget for the graphs of one step.

    Args:
        members: The graphs.
        calls: Their calls in order.
        turns: What happens, in order.
        limit_bytes: The budget.
    """

    def __init__(
        self, members: Sequence[Member], calls: Sequence[Call], turns: Sequence[tuple[Turn, int]], limit_bytes: int
    ) -> None:
        self.members = tuple(members)
        self.limit_bytes = limit_bytes
        self._runs = [sum(call.graph == i for call in calls) for i in range(len(members))]
        self._graphs = tuple(call.graph for call in calls)
        # Gradients that wait for another graph count as left behind, and with what that one takes; so what each call
        # passes on is left out here.
        # Calls of one graph may be for different parameters, so that each leaves gradients of its own.
        self._calls = tuple(Call(i) for i in range(len(calls)))
        self._turns = tuple(turns)
        lowest, highest = ([of.levels[i : i + 1 or None] for of in members] for i in (0, -1))
        self.most = self._last_step(lowest)
        self._free = self._last_step(highest)

    def peak(self, memories: Sequence[GraphMemory]) -> int:
        """Peak of the step."""
        return whole_step_peak([memories[graph] for graph in self._graphs], self._calls, self._turns)

    def divide(self, needed: int) -> Division | None:
        """The budget shared out for sizes of at least the `needed` step; `None` where there is no plan for those."""
        if self.most is None or needed > self.most:
            return None
        free = SMALLEST if self._free is None else self._free
        step = max(needed, (free + self.most) // 2)
        at_step = [member.at(step) for member in self.members]
        found = share(at_step, self._runs, self.peak, self.limit_bytes)
        if found is None:
            return None
        chosen = tuple(of.levels[levels.index(level)] for of, levels, level in zip(self.members, at_step, found))
        return Division(chosen, self._allowances([level.memory for level in found]), step)

    def least_peak(self) -> int:
        """The smallest peak at the first sizes, as far as is foreseen."""
        return self.peak([member.at(0)[0].memory for member in self.members])

    def _last_step(self, levels: Sequence[Sequence[Level]]) -> int | None:
        """The largest step at which the step fits with these levels; `None` where none does."""

        def fits(step: int) -> bool:
            members = [replace(member, levels=tuple(of)) for member, of in zip(self.members, levels)]
            return self.peak([member.at(step)[0].memory for member in members]) <= self.limit_bytes

        if not fits(SMALLEST):
            return None
        low, high = SMALLEST, LARGEST + 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return low

    def _allowances(self, planned: Sequence[GraphMemory]) -> tuple[Allowance, ...]:
        """Limits in proportion to what was planned, as large as the budget allows; a fixed graph's are its memory."""
        memories = self._stretched(planned)
        for i in range(len(memories)):
            # What nobody runs beside may be as much as the graph takes anyway.
            for name in ("held_bytes", "left_bytes"):
                tried = [*memories[:i], replace(memories[i], **{name: self.limit_bytes + 1}), *memories[i + 1 :]]
                if self.members[i].grown is not None and self.peak(tried) <= self.limit_bytes:
                    memories[i] = tried[i]
        beside = beside_bytes([memories[graph] for graph in self._graphs], self._calls, self._turns)
        found = []
        for i, memory in enumerate(memories):
            # A graph of other steps has no call in this one.
            others = max((beside[call] for call, graph in enumerate(self._graphs) if graph == i), default=0)
            limit = self.limit_bytes - others
            held, left = min(memory.held_bytes, limit), min(memory.left_bytes, limit)
            found.append(Allowance(limit, held, left, self.members[i].passed))
        return tuple(found)

    def _stretched(self, planned: Sequence[GraphMemory]) -> list[GraphMemory]:
        def stretched(factor: float) -> list[GraphMemory]:
            return [
                memory if member.grown is None else _scaled(memory, factor, int(factor * memory.left_bytes))
                for member, memory in zip(self.members, planned)
            ]

        low, high = 1.0, float(STRETCH)
        while high - low > 1e-4:
            middle = (low + high) / 2
            low, high = (middle, high) if self.peak(stretched(middle)) <= self.limit_bytes else (low, middle)
        return stretched(low)


class Limited(Protocol):
    """A graph of changing sizes that keeps to what it is allowed."""

    dispatch: Dispatch

    def share(self, allowance: Allowance, step: object) -> None:
        """Keep to `allowance` in steps of this kind."""
        ...

    def factor_at(self, sizes: Sequence[int]) -> float:
        """Its memory at given sizes, as a part of that at the first ones."""
        ...


class SharedSizes:
    """Keeps the graphs of a step to their allowances, and shares anew where larger sizes come.

    Args:
        shares: What there is to share.
        graphs: The graphs in the order of the shares; `None` for those of fixed sizes.
        first: The graph that runs first, before which nothing is held.
        between_steps: Whether nothing is held now; the first graph may run again later in a step.
    """

    def __init__(
        self,
        shares: SizeShares,
        graphs: Sequence[Limited | None],
        first: int,
        between_steps: Callable[[], bool] = lambda: True,
    ) -> None:
        self._shares = shares
        self._graphs = tuple(graphs)
        self._step: int | None = None
        opening = graphs[first]
        if opening is not None:
            before = opening.dispatch.before_new_sizes

            def look_at(sizes: tuple[int, ...]) -> None:
                if before is not None:
                    before(sizes)
                if between_steps():
                    self.look_at(first, opening.factor_at(sizes))

            opening.dispatch.before_new_sizes = look_at

    def apply(self, division: Division) -> None:
        """Keep to this division from now on."""
        self._step = division.step
        for graph, allowance in zip(self._graphs, division.allowances):
            if graph is not None:
                graph.share(allowance, self)

    def look_at(self, graph: int, factor: float) -> None:
        """Sizes with which a step begins: where they are beyond those that the budget was shared for, share it anew.

        Args:
            graph: The graph that is called.
            factor: Its memory at these sizes, as a part of that at the first ones.
        """
        step, grown = self._step, self._shares.members[graph].grown
        if step is None or grown is None or self._shares.most is None or factor <= grown(GROWTH**step)[0]:
            return
        needed = next((s for s in range(step + 1, LARGEST) if grown(GROWTH**s)[0] >= factor), LARGEST)
        division = self._shares.divide(min(needed, self._shares.most))
        if division is not None and division.step > step:
            logger.info("larger sizes than before: the budget is shared anew among %d graphs", len(self._graphs))
            self.apply(division)


def _scaled(memory: GraphMemory, factor: float, left_bytes: int) -> GraphMemory:
    """Memory at other sizes, where forward and backward have one limit."""
    peak_bytes = max(int(factor * memory.peak_bytes), left_bytes)
    return GraphMemory(peak_bytes, int(factor * memory.held_bytes), peak_bytes, left_bytes)
