"""Plans for the graphs of a step together, and their compilation: within a limit, or at the smallest peak."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.dynamic_shapes.variant_value import WORTH_IT
from remat_compiler.step_budget.graph_levels import GraphLevels, level_without_budget
from remat_compiler.step_budget.joint_steps import JointSteps
from remat_compiler.step_budget.room import room_is_kept, share_room
from remat_compiler.step_model.levels import PlanLevel
from remat_compiler.step_model.split import Split

MAX_ROUNDS = 4
"""Largest number of attempts to share the budget until the emitted graphs fit together."""


@dataclass(frozen=True, slots=True)
class JointPlan:
    """One compilation for each graph of a step.

    Attributes:
        attempts: The compilations; `None` for a graph that keeps what it has.
        levels: The levels that they were compiled at.
        peak_bytes: Their peak together; `None` if it is not known.
    """

    attempts: Sequence[Attempt | None]
    levels: Sequence[PlanLevel]
    peak_bytes: int | None


class JointPlans:
    """Finds plans for the graphs of `joint`.

    Where several are likely to be tried, only code is generated for them, enough for the dry run.

    Args:
        joint: The steps.
    """

    def __init__(self, joint: JointSteps) -> None:
        self.joint, self.graphs = joint, joint.graphs

    def learn(self) -> None:
        """Learn the partitions of all graphs, and share what they may move off the device."""
        for graph in self.graphs:
            graph.plan_again()
        share_room(self.graphs, [max(runs) for runs in zip(*self.joint.runs_of_steps)])

    @property
    def room_is_kept(self) -> bool:
        """Whether the graphs, as they are, move no more than they may together."""
        return room_is_kept(self.graphs, self.joint.runs_of_steps)

    @property
    def _may_move(self) -> Sequence[bool]:
        """Whether graphs may move values off the device: all answers to try."""
        # Levels are planned quickly, and the plans with moves may turn out worse than those without.
        return (True, False) if any(graph.room_bytes for graph in self.graphs) else (False,)

    def within(self, limit: int, fits: bool) -> JointPlan | None:
        """The graphs compiled within the limit; `None` if that was not found, or is not worth it.

        Args:
            limit: Most bytes that the steps may take.
            fits: Whether the graphs as they are fit.
        """
        found: list[JointPlan] = []
        for moves in self._may_move:
            one = self._within(limit, fits, moves)
            if one is not None:
                found.append(one)
                # The other way would find the same.
                if not any(level.offload_bytes for level in one.levels):
                    break
        return min(found, key=lambda one: (one.peak_bytes is None, self._planned_ns(one)), default=None)

    def _within(self, limit: int, fits: bool, moves: bool) -> JointPlan | None:
        # The next levels are planned only where those before are not enough: thorough planning takes long.
        split = self._split([(level_without_budget(graph),) for graph in self.graphs])
        planned: list[GraphLevels] = []
        following = [False] if fits else [False, True]
        target = limit
        for turn in range(MAX_ROUNDS):
            found = split.within(target)
            while found is None and following and not (fits and self._is_fast):
                thorough = following.pop(0)
                planned = [GraphLevels(graph, moves, thorough) for graph in self.graphs]
                split = self._split([one.all() for one in planned])
                found = split.within(target)
            if found is not None and planned:
                found = split.finer(found, target, [one.between for one in planned])
            if found is None or (fits and not self._worth_it(found)):
                return None
            # As for one graph: the first try is nearly always the last.
            made = self._compiled(found, real=turn == 0 and len(self._may_move) == 1)
            if made.peak_bytes is None or made.peak_bytes <= limit:
                return made
            # Emitted code peaks above the simulation by about as much in the next round.
            target -= made.peak_bytes - limit
        return None

    def smallest(self) -> JointPlan:
        """The graphs compiled at their smallest peak together; among equal ones, the one that adds the least time."""
        found = [self._compiled(self.lowest(extremes=True, moves=moves)) for moves in self._may_move]

        def rank(one: JointPlan) -> tuple[bool, int, int]:
            return one.peak_bytes is None, one.peak_bytes or 0, self._planned_ns(one)

        return min(found, key=rank)

    def lowest(self, *, extremes: bool, moves: bool = True) -> Sequence[PlanLevel]:
        """The levels of the graphs with the smallest peak together.

        Args:
            extremes: See `levels_of`.
            moves: Whether graphs may move values off the device.
        """
        return self._split([GraphLevels(graph, moves).all(extremes=extremes) for graph in self.graphs]).smallest()

    def _split(self, levels: Sequence[Sequence[PlanLevel]]) -> Split:
        return Split(levels, self.joint.runs, self.joint.peak)

    def _compiled(self, levels: Sequence[PlanLevel], *, real: bool = False) -> JointPlan:
        attempts = [graph.plans.compiled_at(graph, level, real=real) for graph, level in zip(self.graphs, levels)]
        return JointPlan(attempts, levels, self.joint.peak_of(attempts))

    def _worth_it(self, found: Sequence[PlanLevel]) -> bool:
        """Whether the steps would take clearly less time than now, or nothing would be added any more."""
        then_ns = sum(n * level.added_ns for n, level in zip(self.joint.runs, found))
        return self._added_ns - then_ns > self._worth_ns or (self._added_ns > 0 and then_ns == 0)

    @property
    def _is_fast(self) -> bool:
        """Whether no plan that recomputes anything is worth it: the graphs as they are add so little time."""
        return self._added_ns <= self._worth_ns

    @property
    def _added_ns(self) -> int:
        return sum(n * graph.added_ns for n, graph in zip(self.joint.runs, self.graphs))

    @property
    def _worth_ns(self) -> float:
        known = [(n, graph.figures) for n, graph in zip(self.joint.runs, self.graphs)]
        return WORTH_IT * sum(n * one.step_ns for n, one in known if one is not None)

    def _planned_ns(self, plan: JointPlan) -> int:
        """Modelled time that a plan adds to the steps; where a compiler's cache had the code, that of the level."""
        parts = zip(self.joint.runs, plan.attempts, plan.levels)
        return sum(
            n * (level.added_ns if one is None or one.partition is None else one.partition.added_ns)
            for n, one, level in parts
        )
