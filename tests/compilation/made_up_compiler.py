"""A made-up compiler whose peaks are known, to look at how budgets are searched for."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

from builders import chain, with_budget
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.search import BudgetSearch, SearchGoal
from remat_compiler.dry_run.dry_run import DryRun, MemorySample
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan, Partition

STEP_NS = 1000


@dataclass
class MadeUpCompiler:
    """Plans use their whole budget; what is emitted takes `layout_bytes` more in the compiler's own layout.

    Attributes:
        layout_bytes: Bytes of copies in the compiler's own layout that no plan foresees.
        copied_bytes: Bytes of copies that plans in that layout make room for.
        other_bytes: Bytes by which every estimate is low.
        floor_bytes: Smallest peak of any plan.
        ns_per_byte: Time that each byte below 1,000 adds.
        native_bytes: What the step takes without a budget.
        early_bytes: Bytes that loops fused across kernels take more.
        moving_bytes: Bytes that plans take more that may move values.
        order_factor: How many times as much plans take that may reorder the backward.
        origin: Where in the plan cache plans come from; empty for plans that were solved.
        real_bytes: Bytes that code with kernels takes more than what is only generated.
        requests: What was asked for, and whether for real.
    """

    layout_bytes: int
    other_bytes: int = 0
    floor_bytes: int = 0
    ns_per_byte: float = 0.1
    native_bytes: int = 1000
    early_bytes: int = 0
    moving_bytes: int = 0
    order_factor: float = 1.0
    origin: str = ""
    copied_bytes: int = 0
    real_bytes: int = 0
    requests: list[tuple[PartitionRequest, bool]] = field(default_factory=list)

    def __call__(self, request: PartitionRequest, real: bool = True) -> Attempt:
        self.requests.append((request, real))
        if request.budget_bytes is None:
            request = replace(request, budget_bytes=self.native_bytes)
        assert request.budget_bytes is not None
        if request.budget_bytes < self.floor_bytes and not request.take_smallest:
            raise refusal(request.budget_bytes, self.floor_bytes)
        early, planned_bytes = request.early_loops, max(request.budget_bytes, self.floor_bytes)
        copied_bytes = self.copied_bytes if request.free_layout else 0
        added_ns = int(self.ns_per_byte * (1000 + copied_bytes - planned_bytes))
        partition = SimpleNamespace(
            peak_bytes=planned_bytes,
            budget_bytes=planned_bytes,
            added_ns=added_ns,
            gainable_ns=added_ns,
            copies_inputs=copied_bytes > 0,
            step_ns=STEP_NS,
            problem=chain(2),
            result=SimpleNamespace(stats=((self.origin, "then"),), planner="made up", plan=None),
            early_loops=early,
            before=SimpleNamespace(timeline=SimpleNamespace(peak_bytes=self.native_bytes)),
        )
        emitted = planned_bytes + self.other_bytes + (self.layout_bytes if request.free_layout else 0)
        emitted += self.early_bytes if early else 0
        emitted += self.real_bytes if real else 0
        emitted += self.moving_bytes if request.offload_bytes else 0
        emitted = int(emitted * self.order_factor) if request.reorders else emitted
        check = DryRun(emitted, (MemorySample("forward", "aten.convolution", 0, "x = conv(y)", emitted, 0),))
        return Attempt(request, lambda: None, real, True, (cast("Partition", partition),), check)


def refusal(budget_bytes: int, smallest_bytes: int) -> NoPlan:
    """A planner that found nothing below `smallest_bytes`."""
    problem = with_budget(chain(2), budget_bytes)
    steps = tuple(op.id for op in problem.graph.ops)
    plan = Plan(steps, sum(op.phase is Phase.FORWARD for op in problem.graph.ops))
    return NoPlan(problem, PlanResult(PlanStatus.INFEASIBLE, "made up", plan, smallest_bytes))


def options_of(**options: Any) -> RematOptions:
    """Options as the user gives them."""
    return RematOptions.parse(options, check_planner=lambda name: name)


def searched(compiler: MadeUpCompiler, budget: int, *, convolutions: bool = True, **options: Any) -> Attempt:
    """The kept try under a budget in bytes."""
    search = BudgetSearch(compiler, options_of(memory_budget=budget, **options), chooses_layout=convolutions)
    kept, limit = search.run(SearchGoal(PartitionRequest(budget)))
    assert limit == budget
    return kept
