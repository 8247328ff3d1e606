"""The smallest peak: never below the optimum and mostly equal to it, the same whoever asks, and within the limits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from builders import LIBRARY, ProblemBuilder, random_problem, with_budget
from exact.exhaustive import Exhaustive
from remat_compiler.ir.graph import StorageId, StorageKind
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from remat_passes.search.lowest_peak import least_bytes, lowest_peak
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.search.tight_seeds import TIGHT, position, tight_seeds
from remat_passes.sequences.candidate import SequenceCandidate

QUICK = Auto(effort=500, time_limit=0.0)


def smallest_of_all(problem: RematProblem, high: int) -> int:
    """The smallest peak of all plans in the program's order, up to `high`, by exhaustive search."""
    low = 0
    while low < high:
        middle = (low + high) // 2
        if Exhaustive(with_budget(problem, middle), once_per_gap=False).added_ns() is None:
            low = middle + 1
        else:
            high = middle
    return low


def test_is_never_below_the_smallest_peak_of_all_plans_and_mostly_equal() -> None:
    planner, equal, lowered = replace(QUICK, reorders=False), 0, 0
    for seed in range(40):
        problem = random_problem(Random(seed), 4, 4)
        high, found = SaveAll().plan(problem).peak_bytes, planner.smallest_peak(problem)
        best = smallest_of_all(problem, high)
        assert found.peak_bytes >= best, seed
        equal += found.peak_bytes == best
        lowered += best < high
    assert equal >= 38
    assert lowered >= 15


@pytest.mark.parametrize(("name", "slowdown"), [("chain", None), ("user_regions", None), ("chain", 0.3)])
def test_every_refusal_names_it_and_it_can_be_asked_for(name: str, slowdown: float | None) -> None:
    problem = LIBRARY[name]
    if slowdown is not None:
        problem = replace(problem, max_added_ns=int(slowdown * problem.costs.step_ns))
    smallest = QUICK.smallest_peak(problem)
    for budget in (1, (least_bytes(problem) + smallest.peak_bytes - 1) // 2, smallest.peak_bytes - 1):
        refused = QUICK.plan(with_budget(problem, budget))
        assert refused.status is PlanStatus.INFEASIBLE
        assert (refused.peak_bytes, refused.plan) == (smallest.peak_bytes, smallest.plan)
    kept = QUICK.plan(with_budget(problem, smallest.peak_bytes))
    assert kept.status is PlanStatus.FEASIBLE
    assert kept.plan is not None
    assert verify(with_budget(problem, smallest.peak_bytes), kept.plan, kept.peak_bytes) == []


@pytest.mark.parametrize("forwards", range(4))
@pytest.mark.parametrize("backwards", range(4))
def test_nothing_is_proved_that_a_plan_disproves(forwards: int, backwards: int) -> None:
    """Steps with operators that plans leave out, without a backward, and without anything at all."""
    for seed in range(5):
        problem = random_problem(Random(seed), forwards, backwards)
        all_saved = SaveAll().plan(problem)
        assert least_bytes(problem) <= all_saved.peak_bytes, seed
        asked = with_budget(problem, int(0.5 * all_saved.peak_bytes))
        found = QUICK.plan(asked)
        assert found.plan is not None
        assert verify(with_budget(problem, found.peak_bytes), found.plan, found.peak_bytes) == []
        assert found.peak_bytes <= all_saved.peak_bytes


def long_skips(layers: int) -> RematProblem:
    """Layers of uneven sizes, each of which also reads the result of another one far before it."""
    draw, b = Random(3), ProblemBuilder()
    made: list[StorageId] = [b.storage(100, StorageKind.INPUT)]
    for i in range(layers):
        reads = [made[-1], made[max(i - 7, 0)]] if i % 3 == 0 else [made[-1]]
        made.append(b.forward(reads, draw.randint(50, 400), time=draw.randint(1, 50)))
    grad = b.storage(100, StorageKind.TANGENT)
    for i in reversed(range(1, layers + 1)):
        grad = b.backward([grad, made[i], made[max(i - 8, 0)]], draw.randint(50, 200))
    return b.problem()


def searches(problem: RematProblem, tried: list[int]) -> tuple[SequenceSearch, int]:
    """The search for the smallest peak, and the peak of the quick search; `tried` gets the budgets."""

    def search_for(budget: int, share: int) -> SequenceSearch:
        tried.append(budget)
        return SequenceSearch.of(with_budget(problem, budget), 1_000 // share, 1)

    quick = search_for(0, 1).run().peak
    return lowest_peak(search_for, least_bytes(problem), 10_000_000), quick


def test_gets_below_the_quick_search() -> None:
    tried: list[int] = []
    problem = long_skips(40)
    found, quick = searches(problem, tried)
    assert found.pool[0].peak < quick
    # The range is halved by whole searches, too, from the proved bound.
    assert [budget for budget in tried[2:] if least_bytes(problem) < budget < quick]


def test_does_not_look_below_what_is_proved() -> None:
    """One operator needs nearly all that is ever alive, and the quick search reaches that."""
    b = ProblemBuilder()
    x = b.storage(10, StorageKind.INPUT)
    first = b.forward([x], 1000)
    second = b.forward([first], 1000)
    b.backward([b.storage(1, StorageKind.TANGENT), second], 1)
    tried: list[int] = []
    found, quick = searches(b.problem(), tried)
    assert found.pool[0].peak == quick == least_bytes(b.problem())
    assert tried == [0, 0]


def test_seeds_of_larger_budgets_serve_a_tight_one() -> None:
    problem = long_skips(40)
    low, high, least = QUICK.smallest_peak(problem).peak_bytes, SaveAll().plan(problem).peak_bytes, least_bytes(problem)

    def search_for(budget: int, share: int) -> SequenceSearch:
        return SequenceSearch.of(with_budget(problem, budget), 1_000 // share, 1)

    def ran(budget: int) -> SequenceSearch:
        search = search_for(budget, 1)
        search.run()
        return search

    tight = ran(low + (high - low) // 25)
    assert 0 < position(tight, least) <= TIGHT
    for part in (4, 2):
        assert position(ran(low + (high - low) // part), least) > TIGHT
    # Nothing is recomputed, so nothing has to be evicted from a larger budget.
    assert position(ran(high), least) == 1
    seeds: list[SequenceCandidate] = tight_seeds(tight, search_for)
    assert any(tight.fits(seed) for seed in seeds)
