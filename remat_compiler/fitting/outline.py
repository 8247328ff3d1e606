"""A training step as planning sees it, and the same step at batches for which it was not captured.

Sizes grow on a line with the batch, so the line through two captured steps gives those of any other, and planning it
takes seconds.  Where they do not (a length of which something takes the square), the line misses, and the step that
is captured next corrects it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.ends import planned_before_ends
from remat_compiler.simulate.lives import Life, storage_lives
from remat_compiler.simulate.reserved import AllocationTrace, reserved_bytes
from remat_compiler.simulate.timeline import simulate


@dataclass(frozen=True, slots=True)
class Outline:
    """All that decides whether a step fits.

    Attributes:
        batch: What its inputs were made with.
        problem: The planner's problem; its budget does not matter.
        planner: The planner's name.
        time_limit: Seconds that it may take, if there is a limit.
        reorders: Whether plans may reorder operators.
        left_bytes: What the device, or the user's budget, leaves for the step's peak.
        usable_bytes: What the device has for torch's caching allocator; `None` on a CPU, which has no such allocator.
        expandable: Whether that has expandable segments.
        resident_bytes: Sizes of what is there before the first step.
        state_bytes: Sizes of the optimizer's state.
        update: What the optimizer's step allocates.
        smallest: A plan of the problem's smallest peak.
    """

    batch: int
    problem: RematProblem
    planner: str
    time_limit: float | None
    reorders: bool
    left_bytes: int
    usable_bytes: int | None
    expandable: bool
    resident_bytes: tuple[int, ...]
    state_bytes: tuple[int, ...]
    update: tuple[Life, ...]
    smallest: Plan

    def plan(self, budget_bytes: int) -> Plan | None:
        """The plan under a budget; that of the smallest peak if there is none, and `None` if there is no plan."""
        # This module is part of what `import remat_compiler` loads, which planners do first of all.
        from remat_passes.registry import make_planner

        limit = {} if self.time_limit is None else {"time_limit": self.time_limit}
        planner = make_planner(self.planner, **limit, reorders=self.reorders)
        return planned_before_ends(replace(self.problem, budget_bytes=budget_bytes), planner.plan).plan

    def peak_bytes(self, plan: Plan) -> int:
        """Peak of the step under a plan."""
        return simulate(self.problem.graph, self.problem.costs, plan).peak_bytes

    def over_bytes(self, plan: Plan) -> int:
        """By how much the caching allocator would exceed the device under a plan; 0 if it has room, or on a CPU."""
        if self.usable_bytes is None:
            return 0
        lives = storage_lives(self.problem, plan)
        end = len(plan.steps)
        after = [
            Life(one.size_bytes, one.made + end, None if one.freed is None else one.freed + end) for one in self.update
        ]
        trace = AllocationTrace(self.resident_bytes, self.state_bytes, (*lives, *after))
        taken = reserved_bytes(trace, self.usable_bytes, expandable=self.expandable)
        return max(taken - self.usable_bytes, 0)

    def has_room(self, plan: Plan) -> bool:
        """Whether the step fits under a plan."""
        return self.peak_bytes(plan) <= self.left_bytes and not self.over_bytes(plan)


def at_batch(first: Outline, second: Outline, batch: int) -> Outline | None:
    """The step at any batch, by the line through two others; `None` if those differ in more than sizes."""
    one, other = first.problem, second.problem
    if _shape(first) != _shape(second):
        return None

    def line(a: int, b: int) -> int:
        return round(a + (b - a) * (batch - first.batch) / (second.batch - first.batch))

    def lines(a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
        return tuple(map(line, a, b))

    sizes = lines(*([s.size_bytes for s in problem.graph.storages] for problem in (one, other)))
    storages = tuple(replace(s, size_bytes=max(size, 0)) for s, size in zip(one.graph.storages, sizes))
    costs = replace(
        one.costs,
        time_ns=tuple(max(time, 0) for time in lines(one.costs.time_ns, other.costs.time_ns)),
        workspace_bytes=lines(one.costs.workspace_bytes, other.costs.workspace_bytes),
    )
    return replace(
        second,
        batch=batch,
        problem=replace(
            one,
            graph=replace(one.graph, storages=storages),
            costs=costs,
            max_added_ns=_limit(line, one.max_added_ns, other.max_added_ns),
            reference=None,
        ),
        left_bytes=max(line(first.left_bytes, second.left_bytes), 1),
        resident_bytes=lines(first.resident_bytes, second.resident_bytes),
        state_bytes=lines(first.state_bytes, second.state_bytes),
        update=tuple(
            replace(a, size_bytes=line(a.size_bytes, b.size_bytes)) for a, b in zip(first.update, second.update)
        ),
    )


def _limit(line: Callable[[int, int], int], one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(line(one, other), 0)


def _shape(outline: Outline) -> tuple[object, ...]:
    """What two steps must have in common for one to stand for the other at other sizes."""
    graph = outline.problem.graph
    counts = len(outline.resident_bytes), len(outline.state_bytes), len(outline.update)
    return counts, [(op.target, op.phase, op.reads, op.writes) for op in graph.ops], [s.kind for s in graph.storages]
