"""The portfolio behind `auto`, and the planner `hierarchical`: more work never makes a plan worse."""

from __future__ import annotations

from itertools import pairwise

import pytest

from builders import LIBRARY, chain, residual, with_budget
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_passes.bounds.lower_bound import lower_bound_ns
from remat_passes.planning import portfolio
from remat_passes.planning.auto import MOST_WORK, Auto
from remat_passes.planning.chain_dp import ChainDp
from remat_passes.planning.greedy import Greedy
from remat_passes.planning.hierarchical import Hierarchical
from remat_passes.planning.portfolio import MOST_USUAL_WORK, improve, usual_work
from remat_passes.planning.save_all import SaveAll
from remat_passes.search.sequence_search import SequenceSearch


def asked_of(problem: RematProblem, fraction: float) -> RematProblem:
    """`problem` with a budget of a fraction of what it takes without recomputation."""
    return with_budget(problem, int(fraction * SaveAll().plan(problem).peak_bytes))


@pytest.mark.parametrize("family", LIBRARY)
@pytest.mark.parametrize("fraction", [0.5, 0.7])
def test_a_larger_limit_is_never_worse(family: str, fraction: float) -> None:
    asked = asked_of(LIBRARY[family], fraction)
    found = [Auto(effort=20, time_limit=seconds).plan(asked) for seconds in (0.0, 0.05, 0.4)]
    ranks = [(r.status is PlanStatus.INFEASIBLE, r.added_ns, r.peak_bytes) for r in found]
    for worse, better in pairwise(ranks):
        assert better <= worse or better[0] < worse[0]


@pytest.mark.parametrize("family", LIBRARY)
@pytest.mark.parametrize("fraction", [0.45, 0.6, 0.8])
def test_auto_is_as_good_as_what_it_contains(family: str, fraction: float) -> None:
    asked = asked_of(LIBRARY[family], fraction)
    best = Auto(effort=200, time_limit=1.0).plan(asked)
    for other in (ChainDp().plan(asked), Greedy().plan(asked), Hierarchical().plan(asked)):
        assert other.status is PlanStatus.INFEASIBLE or best.added_ns <= other.added_ns


def test_nothing_is_tried_where_the_bound_is_met() -> None:
    asked = asked_of(residual(), 0.95)
    search = SequenceSearch.of(asked, 5_000, 1)
    best = search.run()
    assert best.time - search.once == lower_bound_ns(asked).bound_ns
    search.work_left = 7
    assert improve(search, 10_000_000) is best
    assert search.work_left == 7


@pytest.mark.parametrize("fraction", [0.0, 0.6])
def test_it_ends_with_any_limit_whether_or_not_a_plan_fits(fraction: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "IDLE_ROUNDS", 1)
    asked = asked_of(chain(8), fraction)
    search = SequenceSearch.of(asked, 20, 1)
    before = search.rank(search.run())
    assert search.solved == (fraction > 0.0)
    assert search.rank(improve(search, MOST_WORK)) <= before


def test_hierarchical_plans_a_deep_model_with_few_blocks() -> None:
    asked = asked_of(residual(blocks=300), 0.4)
    result = Hierarchical().plan(asked)
    assert result.status is PlanStatus.FEASIBLE
    shallow = asked_of(residual(blocks=40), 0.4)
    ratio = [r.added_ns / p.costs.step_ns for p, r in ((asked, result), (shallow, Hierarchical().plan(shallow)))]
    assert ratio[0] <= 1.05 * ratio[1]


def test_hierarchical_says_what_does_not_fit() -> None:
    result = Hierarchical().plan(with_budget(residual(), 1000))
    assert result.status is PlanStatus.INFEASIBLE
    assert result.peak_bytes > 1000


def test_the_usual_work_grows_with_the_graph_and_with_what_it_can_bring() -> None:
    by_size = [usual_work(operators, None) for operators in (10, 100, 200, 500, 1_000, 5_000)]
    assert by_size == sorted(by_size)
    assert by_size[:2] == [0, 0]
    assert by_size[2] > 0
    assert by_size[-2:] == [MOST_USUAL_WORK, MOST_USUAL_WORK]
    by_gain = [usual_work(1_000, gain_ns) for gain_ns in (-5, 0, 10_000, 100_000, 10**9)]
    assert by_gain == [0, 0, MOST_USUAL_WORK // 20, MOST_USUAL_WORK // 2, MOST_USUAL_WORK]


def test_without_a_time_limit_a_small_graph_keeps_its_quick_plan() -> None:
    asked = with_budget(chain(), 90_000)
    assert Auto().plan(asked).plan == Auto(time_limit=0.0).plan(asked).plan


def test_a_limit_of_0_does_nothing() -> None:
    search = SequenceSearch.of(asked_of(residual(), 0.5), 200, 1)
    best = search.run()
    search.work_left = 7
    assert improve(search, 0) is best
    assert search.work_left == 7


def test_the_same_work_gives_the_same_plan_with_every_stage() -> None:
    asked = asked_of(residual(), 0.5)
    found = [Auto(effort=200, time_limit=2.5).plan(asked) for _ in range(2)]
    assert found[0] == found[1]


def test_greedy_says_how_many_steps_it_simulated() -> None:
    asked = asked_of(residual(blocks=20), 0.5)
    small, large = (int(dict(Greedy(effort).plan(asked).stats)["steps"]) for effort in (1_000, 400_000))
    assert 0 < small <= large
