"""What else is tried for a graph beside the requests that follow from its budget: one row each, in order.

A variation is looked at once, after those before it.  It says when it may be better than the tries so far, and how it
changes the request; `tries` makes the tries and keeps the best of all.  A new one is a row of `VARIATIONS`.

Convolutions are tried first in the layout that the inner compiler prefers, which is faster and takes copies of their
weights; then in the program's own, if the copies do not fit, or may be why a plan recomputes much.

Plans may change the order of the backward, which Inductor keeps to but for loops that it fuses.  Where that does not
fit, the program's order is planned.

Inductor may fuse more of the step without a budget than the simulator foresees, so that step is emitted where no plan
peaks much lower.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.feedback import best_of
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.step_model.graph_memory import GraphMemory

NEAR = 0.8
"""Part of the simulated peak without a budget above which a smallest peak is held against the emitted one."""
LAYOUT_GAIN = 0.05
"""Recomputation, as a fraction of the step, that the faster layout of the inner compiler may add."""


@dataclass(frozen=True, slots=True)
class Situation:
    """The tries so far, and what was asked for.

    Attributes:
        request: The first request.
        tries: The tries so far; some may be over the budget.
        known: The try of an earlier process, if the search began with one.
        limit: The budget in bytes; `None` for none.
        minimises: Whether the smallest peak is asked for.
        chooses_layout: Whether the inner compiler may give operators another layout than the program does.
        native: Checked memory of the step without a budget, if that step was emitted.
    """

    request: PartitionRequest
    tries: Sequence[Attempt]
    known: Attempt | None
    limit: int | None
    minimises: bool
    chooses_layout: bool
    native: GraphMemory | None

    @property
    def best(self) -> Attempt | None:
        """The try to keep of those so far; `None` if the planner refused each request."""
        # Within 0 bytes, where all are over, the lowest peak is the best.
        return best_of(self.tries, 0 if self.minimises else self.limit)

    @property
    def best_planned(self) -> Attempt | None:
        """The best of those that were planned for some bytes; `None` without any."""
        planned = [one for one in self.tries if one.request.budget_bytes is not None]
        return best_of(planned, 0 if self.minimises else self.limit)

    @property
    def is_over(self) -> bool:
        """Whether no try is within the budget."""
        return self.best is None or self.best.is_over(self.limit)

    @property
    def in_compilers_layout(self) -> bool:
        """Whether the inner compiler chose the layout in all tries."""
        return self.request.free_layout and self.chooses_layout and all(one.request.free_layout for one in self.tries)

    @property
    def unplanned(self) -> PartitionRequest:
        """The request for the step without a budget beside the same other graphs."""
        return replace(self.request.without_budget, between_bytes=self.request.between_bytes)


@dataclass(frozen=True, slots=True)
class Variation:
    """Another way to compile the graph.

    Attributes:
        name: What it is, for the log.
        may_be_better: Whether it may be better than the best try so far.
        changed: Its request.
        corrected: Whether its requests follow what was emitted, as the first one's do; else it is one try.
        gain: Part of the step's time that it must save; 0 to take it by the same rule as any try.
    """

    name: str
    may_be_better: Callable[[Situation], bool]
    changed: Callable[[Situation], PartitionRequest]
    corrected: bool = True
    gain: float = 0.0

    def keeps(self, before: Situation, found: Sequence[Attempt]) -> bool:
        """Whether its tries count, beside those before it."""
        if not self.corrected:
            # A peak that is not known is no lower one.
            return not any(one.check.unknown for one in found)
        best, other = before.best, best_of(found, before.limit)
        if not self.gain or best is None:
            return True
        if other is None or other.failure is not None or other.is_over(before.limit):
            return False
        return best.total_ns - other.total_ns > self.gain * best.step_ns


def _compilers_layout_does_not_fit(now: Situation) -> bool:
    """Whether the inner compiler's layout does not fit, or may be higher where the smallest peak is asked for."""
    # Planning failed, which another layout does not change.
    if not now.in_compilers_layout or any(one.failure is not None for one in now.tries):
        return False
    return now.minimises or now.is_over


def _copies_may_cost(now: Situation) -> bool:
    """Whether the program's layout, which takes no copies, may save much of the time that the best try adds."""
    best = now.best
    # An earlier process has compared the layouts already.
    if best is None or best is now.known or not now.in_compilers_layout or best.is_over(now.limit):
        return False
    return any(one.copies_inputs for one in best.partitions) and best.added_ns > LAYOUT_GAIN * best.step_ns


def _in_programs_layout(now: Situation) -> PartitionRequest:
    # From the first request: the first layout's corrections do not apply to the second.
    return replace(now.request, free_layout=False)


def _order_costs(now: Situation) -> bool:
    """Whether the planned order does not fit once Inductor has fused its loops, so that the program's own may."""
    best = now.best
    if best is None or best.failure is not None or best.request.inner != "inductor" or best.check.unknown:
        return False
    if not now.request.reorders:
        return False
    if now.minimises:
        return _misses_the_plan(best)
    # Plans that are over the budget themselves fit in no order; the smallest peak is asked for later.
    limit = now.limit
    return best.is_over(limit) and limit is not None and any(one.planned_bytes <= limit for one in now.tries)


def _in_programs_order(now: Situation) -> PartitionRequest:
    # In one layout only, that of fewer copies: a third series of tries would take as long as the first two.
    return replace(now.request, reorders=False, free_layout=now.request.free_layout and not now.chooses_layout)


def _may_be_lower(now: Situation, unplanned: PartitionRequest) -> bool:
    """Whether the step without a budget, by this request, may have a lower peak than the best try."""
    best = now.best_planned
    if best is None or not best.partitions or best.check.unknown:
        return False
    # It was emitted, in the inner compiler's layout if that chooses one, and is higher.
    emitted = now.native if unplanned.free_layout or not now.chooses_layout else None
    if emitted is not None and emitted.peak_bytes > (best.needed_bytes or 0):
        return False
    unbudgeted = sum(one.before.timeline.peak_bytes for one in best.partitions)
    return (best.needed_bytes or 0) > NEAR * unbudgeted


def _moves_cost_memory(now: Situation) -> bool:
    """Whether the smallest peak is asked for, and moving values misses the one that was planned."""
    best = now.best
    return now.minimises and best is not None and best.request.offload_bytes > 0 and _misses_the_plan(best)


def _without_moves(now: Situation) -> PartitionRequest:
    assert now.best is not None
    return now.best.request.without_transfers


def _misses_the_plan(best: Attempt) -> bool:
    """Whether emitted code peaks above its plan."""
    return bool(best.partitions) and not best.check.unknown and (best.needed_bytes or 0) > best.planned_bytes


def _layout_chosen(now: Situation) -> PartitionRequest:
    return replace(now.unplanned, free_layout=True)


VARIATIONS: Final = (
    Variation("the program's layout", _compilers_layout_does_not_fit, _in_programs_layout),
    Variation("the program's layout, without copies", _copies_may_cost, _in_programs_layout, gain=LAYOUT_GAIN),
    Variation("the program's order", _order_costs, _in_programs_order),
    Variation("nothing moved", _moves_cost_memory, _without_moves, corrected=False),
    # The smallest peak is at most that of the step without a budget, in either layout.
    Variation(
        "the step without a budget",
        lambda now: (now.minimises or now.is_over) and _may_be_lower(now, now.unplanned),
        lambda now: now.unplanned,
        corrected=False,
    ),
    Variation(
        "the step without a budget in the compiler's layout",
        lambda now: now.minimises and now.chooses_layout and _may_be_lower(now, _layout_chosen(now)),
        _layout_chosen,
        corrected=False,
    ),
)
