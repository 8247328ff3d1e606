"""A graph of one size whose compiler is made up: what it takes and recomputes at each size is known beforehand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from builders import chain, with_budget
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.search import BudgetSearch
from remat_compiler.dry_run.dry_run import DryRun, MemorySample
from remat_compiler.dynamic_shapes.variant_context import VariantContext
from remat_compiler.dynamic_shapes.variant_maker import VariantMaker
from remat_compiler.dynamic_shapes.variant_store import VariantStore
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan
from remat_compiler.partition.session import Session
from remat_compiler.simulate.timeline import simulate
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.torch_compat import InputSymbol
from remat_passes.planning.save_all import SaveAll

PROBLEM = chain(24)
"""The joint graph at size 100."""
NATIVE = SaveAll().plan(PROBLEM)
"""It without a budget: `NATIVE.peak_bytes` at size 100."""
LEAST = 0.25
"""The smallest peak of any plan, as a part of the peak without a budget at the same size."""


def native_bytes(size: int) -> int:
    """Peak without a budget, which is proportional to the size."""
    return NATIVE.peak_bytes * size // 100


@dataclass
class MadeUpGraph:
    """Compiles the graph by requests, and keeps what it was asked for.

    Attributes:
        assumed: What its compilers assume of the sizes; `None` for what cannot be said.
        left_bytes: What it leaves behind, whatever the plan.
        requests: What was compiled.
        reported: Labels of what was reported.
    """

    assumed: tuple[str, ...] | None = ()
    left_bytes: int = 0
    requests: list[PartitionRequest] = field(default_factory=list)
    reported: list[str] = field(default_factory=list)

    def compile_(self, request: PartitionRequest, real: bool = True) -> Attempt:
        """A plan that takes all of its budget, or what the step takes without one; half of it is held."""
        self.requests.append(request)
        ((_, size),) = request.sizes
        native, budget = native_bytes(size), request.budget_bytes
        budget = native if budget is None else min(budget, 2 * (budget - request.between_bytes))
        least = int(LEAST * native)
        if budget < least and not request.take_smallest:
            asked = with_budget(PROBLEM, budget)
            raise NoPlan(asked, PlanResult(PlanStatus.INFEASIBLE, "made up", NATIVE.plan, least))
        peak = min(native, max(budget, least))
        assert NATIVE.plan is not None
        one = SimpleNamespace(
            peak_bytes=peak,
            saved_bytes=peak // 2,
            budget_bytes=peak,
            added_ns=PROBLEM.costs.step_ns * (native - peak) // native,
            gainable_ns=PROBLEM.costs.step_ns * (native - peak) // native,
            step_ns=PROBLEM.costs.step_ns,
            problem=PROBLEM,
            result=PlanResult(PlanStatus.FEASIBLE, "made up", NATIVE.plan, peak),
            early_loops=False,
            before=SimpleNamespace(timeline=simulate(PROBLEM.graph, PROBLEM.costs, NATIVE.plan)),
        )

        def check_at(sizes: Mapping[str, int]) -> DryRun:
            taken = peak * sizes["s0"] // size
            samples = (MemorySample("forward", "op", 0, "", taken, 0),)
            return DryRun(taken, samples, boundary_bytes=taken // 2, final_bytes=self.left_bytes)

        formula = SimpleNamespace(live_bytes=lambda sizes: native_bytes(sizes[0]), conditions=())
        check = replace(check_at({"s0": size}), between_bytes=request.between_bytes)
        return Attempt(request, lambda *_: None, real, True, cast(Any, (one,)), check, cast(Any, formula), check_at)

    def maker(
        self,
        limit_bytes: int,
        first_size: int = 100,
        directory: Path | None = None,
        session: Session | None = None,
        upper: int | None = None,
        **options: Any,
    ) -> VariantMaker:
        """What makes its variants within a budget, after the first call was compiled; it took a second."""
        asked = {"memory_budget": limit_bytes, "estimator": "quadratic", "planner": "chain_dp", **options}
        parsed = RematOptions.parse(asked, check_planner=lambda name: name)
        request = PartitionRequest(
            limit_bytes, sizes=(("s0", first_size),), take_smallest=parsed.on_infeasible == "min"
        )
        context = VariantContext(
            search=BudgetSearch(self.compile_, parsed, chooses_layout=False),
            request=request,
            symbols=(InputSymbol("s0", "L['x'].size()[0]", 0, hint=7, signed=False, upper=upper),),
            dynamo_context=nullcontext,
            assumptions=cast(Any, Assumptions(self)),
            session=session or Session(),
            keep=lambda attempt, label: self.reported.append(label),
            store=VariantStore(directory, "made up"),
            input_bytes=lambda positions, sizes: len(positions) * sizes[0],
        )
        first = self.compile_(request)
        self.requests.clear()
        return VariantMaker(context, parsed, first, seconds=1.0)

    def sizes(self) -> list[int]:
        """What was compiled for, in order."""
        return [request.sizes[0][1] for request in self.requests]


@dataclass
class Assumptions:
    """What compilers assumed, without a compiler."""

    graph: MadeUpGraph

    @contextmanager
    def recorded(self) -> Iterator[None]:
        yield

    def conditions(self, symbols: object) -> tuple[str, ...] | None:
        return self.graph.assumed


def whole(limit_bytes: int) -> Allowance:
    """That of a graph that is alone in its step."""
    return Allowance.whole(limit_bytes)
