"""When a search has gathers repeated, and what becomes of it by the vote, on a made-up compiler."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from torch import fx

from drawn_graphs import GraphBuilder
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.gathers import GatheringSearch
from remat_compiler.compilation.search import SearchGoal
from remat_compiler.dry_run.dry_run import DryRun, MemorySample
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.ir.graph import OpId, StorageKind, Trait
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import NoPlan, Partition

KEEPING_BYTES, REPEATING_BYTES = 300, 200
"""The smallest peaks of plans that keep what is gathered, and of others."""


def problem(budget_bytes: int, gathers: bool) -> RematProblem:
    """An input that is gathered, if `gathers`, and what is computed of it."""
    b = GraphBuilder()
    part, whole = b.storage(8, StorageKind.PARAMETER), b.storage(16)
    b.op([part], [whole], traits=frozenset({Trait.COLLECTIVE, Trait.GATHER} if gathers else ()))
    b.op([whole], [b.storage(16, StorageKind.OUTPUT)])
    return RematProblem(b.graph(), CostTable((1, 1), (0, 0), ("test",) * 2), budget_bytes)


KEEPING, REPEATING = (Plan(tuple(map(OpId, steps)), 2) for steps in ((0, 1), (0, 1, 0)))


@dataclass
class MadeUpCompiler:
    """Plans that take their budget; only those that repeat gathers go below `KEEPING_BYTES`."""

    gathers: bool = True
    requests: list[PartitionRequest] = field(default_factory=list)

    def __call__(self, request: PartitionRequest, real: bool = True) -> Attempt:
        self.requests.append(request)
        budget = request.budget_bytes or 0
        asked = problem(budget, self.gathers)
        smallest = REPEATING_BYTES if request.gathers and self.gathers else KEEPING_BYTES
        plan = REPEATING if request.gathers and budget < KEEPING_BYTES and self.gathers else KEEPING
        if budget < smallest and not request.take_smallest:
            raise NoPlan(asked, PlanResult(PlanStatus.INFEASIBLE, "made up", plan, smallest))
        peak = max(budget, smallest)
        empty = fx.GraphModule({}, fx.Graph())
        partition = SimpleNamespace(
            joint=empty,
            problem=asked,
            result=PlanResult(PlanStatus.FEASIBLE, "made up", plan, peak),
            graphs=SimpleNamespace(forward=empty, backward=empty, plan=plan),
            budget_bytes=budget,
            peak_bytes=peak,
            added_ns=0,
            gainable_ns=0,
            step_ns=10,
            early_loops=False,
            before=SimpleNamespace(timeline=SimpleNamespace(peak_bytes=1_000)),
        )
        check = DryRun(peak, (MemorySample("forward", "aten.mm", 0, "y = x @ w", peak, 0),))
        return Attempt(request, lambda: None, real, True, (cast("Partition", partition),), check)


@dataclass
class Votes:
    """Ranks that vote as told."""

    answer: bool = True
    asked: list[str] = field(default_factory=list)

    def agreed_plan(self, program: str) -> Plan | None:
        return None

    def vote(self, program: str, order: str, plan: Plan) -> bool:
        assert plan == REPEATING
        self.asked.append("repeats")
        return self.answer

    def runs_in_order(self, program: str) -> None:
        self.asked.append("in order")

    def fails(self, reason: str) -> None:
        raise AssertionError


def search_of(compiler: MadeUpCompiler, votes: Votes, budget: object, **options: object) -> GatheringSearch:
    given = {"memory_budget": budget, "inner": "eager", **options}
    parsed = RematOptions.parse(given, check_planner=str)
    return GatheringSearch(compiler, parsed, False, agreement=votes, program="settings")


def goal(budget_bytes: int, **request: Any) -> SearchGoal:
    return SearchGoal(PartitionRequest(budget_bytes, inner="eager", **request), limit_bytes=budget_bytes)


def test_nothing_is_repeated_within_a_budget_that_does_without() -> None:
    compiler, votes = MadeUpCompiler(), Votes()
    kept, limit = search_of(compiler, votes, 400).run(goal(400))
    assert (kept.needed_bytes, limit) == (400, 400)
    assert not any(request.gathers for request in compiler.requests)
    assert votes.asked == ["in order"]


def test_gathers_are_repeated_where_the_budget_asks_for_it() -> None:
    compiler, votes = MadeUpCompiler(), Votes()
    kept, limit = search_of(compiler, votes, 250).run(goal(250))
    assert (kept.needed_bytes, limit) == (250, 250)
    assert kept.request.gathers
    assert votes.asked == ["repeats"]


@pytest.mark.parametrize("on_infeasible", ["error", "min"])
def test_a_vote_against_it_leaves_what_there_was(on_infeasible: str) -> None:
    compiler, votes = MadeUpCompiler(), Votes(answer=False)
    search = search_of(compiler, votes, 250, on_infeasible=on_infeasible)
    if on_infeasible == "error":
        with pytest.raises(InfeasibleBudget) as error:
            search.run(goal(250))
        assert error.value.smallest_peak_bytes == KEEPING_BYTES
        assert votes.asked == ["repeats"]
    else:
        kept, _ = search.run(goal(250, take_smallest=True))
        assert (kept.needed_bytes, kept.request.gathers) == (KEEPING_BYTES, False)
        assert votes.asked == ["repeats", "in order"]


def test_a_budget_below_both_is_refused_by_the_smaller_peak() -> None:
    votes = Votes()
    with pytest.raises(InfeasibleBudget) as error:
        search_of(MadeUpCompiler(), votes, 150).run(goal(150))
    assert error.value.smallest_peak_bytes == REPEATING_BYTES
    assert votes.asked == []


@pytest.mark.parametrize("without", ["gathers", "fixed sizes", "a step of its own", "a budget"])
def test_only_a_graph_alone_with_gathers_and_fixed_sizes_is_tried(without: str) -> None:
    compiler, votes = MadeUpCompiler(gathers=without != "gathers"), Votes()
    more: dict[str, Any] = {
        "fixed sizes": {"sizes": (("s0", 4),)},
        "a step of its own": {"between_bytes": 10},
        "a budget": {"take_smallest": True},
    }.get(without, {})
    asked = goal(250, **more)
    search = search_of(compiler, votes, "min" if without == "a budget" else 250)
    if without == "a budget":
        search.run(replace(asked, limit_bytes=None))
    else:
        with pytest.raises(InfeasibleBudget):
            search.run(asked)
    assert not any(request.gathers for request in compiler.requests)


def test_an_earlier_outcome_that_repeats_is_voted_on_and_given_up_if_others_do_not() -> None:
    compiler, votes = MadeUpCompiler(), Votes()
    known = compiler(replace(goal(250).request, gathers=True))
    again = replace(goal(250), request=known.request, known=known)
    assert search_of(compiler, votes, 250).run(again)[0] is not None
    assert votes.asked == ["repeats"]
    with pytest.raises(InfeasibleBudget):
        search_of(compiler, Votes(answer=False), 250).run(again)
