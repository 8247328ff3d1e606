"""How a search refuses a budget: of which bytes it speaks, and which peak it names."""

from __future__ import annotations

import pytest

from compilation.made_up_compiler import MadeUpCompiler, options_of, searched
from remat_compiler.compilation.search import BudgetSearch, SearchGoal
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.partition.request import PartitionRequest


def test_the_error_names_the_users_budget_and_the_smallest_peak_of_both_layouts() -> None:
    with pytest.raises(InfeasibleBudget) as error:
        searched(MadeUpCompiler(layout_bytes=50, other_bytes=60, floor_bytes=880), 900)
    assert error.value.budget_bytes == 900
    assert error.value.smallest_peak_bytes == 880 + 60
    assert "memory_budget=900 (900 bytes, 90 % of the peak without a budget)" in str(error.value)
    assert "by planner 'made up' " in str(error.value)


def test_a_refused_fraction_is_not_kept_by_raising_it() -> None:
    search = BudgetSearch(
        MadeUpCompiler(layout_bytes=0, floor_bytes=880), options_of(memory_budget=0.5), chooses_layout=False
    )
    with pytest.raises(InfeasibleBudget) as error:
        search.run(SearchGoal(PartitionRequest(None, fraction=0.5)))
    assert error.value.budget_bytes == 500
    assert error.value.smallest_peak_bytes == 880


def test_a_refusal_of_a_share_is_worded_in_bytes_of_the_whole_budget() -> None:
    search = BudgetSearch(MadeUpCompiler(layout_bytes=0, floor_bytes=300), options_of(memory_budget=900), False)
    with pytest.raises(InfeasibleBudget, match="where other graphs of the step take all but 200 bytes") as error:
        search.run(SearchGoal(PartitionRequest(200), limit_bytes=200, whole_bytes=900))
    assert (error.value.budget_bytes, error.value.smallest_peak_bytes) == (900, 1000)


def test_a_refusal_of_the_whole_budget_is_worded_as_it_is() -> None:
    search = BudgetSearch(MadeUpCompiler(layout_bytes=0, floor_bytes=300), options_of(memory_budget=200), False)
    with pytest.raises(InfeasibleBudget) as error:
        search.run(SearchGoal(PartitionRequest(200), limit_bytes=200, whole_bytes=200))
    assert (error.value.budget_bytes, error.value.smallest_peak_bytes) == (200, 300)
    assert "other graphs" not in str(error.value)


def test_what_is_held_beside_others_makes_the_whole_budget_a_share() -> None:
    search = BudgetSearch(MadeUpCompiler(layout_bytes=0, floor_bytes=300), options_of(memory_budget=200), False)
    with pytest.raises(InfeasibleBudget, match="other graphs"):
        search.run(SearchGoal(PartitionRequest(200, between_bytes=10), limit_bytes=200, whole_bytes=200))


@pytest.mark.parametrize(("floor_bytes", "aims"), [(1020, [970, 1000, 1]), (1040, [970, 1])])
def test_the_whole_budget_is_not_planned_for_far_below_the_smallest_peak(floor_bytes: int, aims: list[int]) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, floor_bytes=floor_bytes, native_bytes=2000)
    options = options_of(memory_budget=1000, on_infeasible="min")
    search = BudgetSearch(compiler, options, chooses_layout=False, more_bytes=28)
    kept, _ = search.run(SearchGoal(PartitionRequest(1000)))
    assert [request.budget_bytes for request, _ in compiler.requests][: len(aims)] == aims
    assert kept.check.peak_bytes == floor_bytes
