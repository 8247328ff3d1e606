"""Which tries are made for a graph and which one is kept, on a made-up compiler whose peaks are known."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from compilation.made_up_compiler import STEP_NS, MadeUpCompiler, options_of, searched
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.feedback import next_request
from remat_compiler.compilation.search import BudgetSearch, SearchGoal
from remat_compiler.compilation.tries import MAX_TRIES
from remat_compiler.dry_run.dry_run import DryRun, MemorySample
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.ir.problem import NO_BYTES
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Partition
from remat_compiler.plan_cache.origin import FROM_CACHE, FROM_SIMILAR


@pytest.mark.parametrize(
    ("floor_bytes", "smallest", "aims", "peak_bytes"),
    [
        # Foreseen, what blocks take beside the plan costs no second compilation.
        (0, False, [970], 990),
        # No plan is so small: what the whole budget takes is over, and refused.
        (980, False, [970, 1000], None),
        (975, True, [970, 1000], 995),
    ],
)
def test_the_first_try_leaves_room_for_blocks(
    floor_bytes: int, smallest: bool, aims: list[int], peak_bytes: int | None
) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, other_bytes=20, floor_bytes=floor_bytes)
    options = options_of(memory_budget=1000, on_infeasible="min" if smallest else "error")
    search = BudgetSearch(compiler, options, chooses_layout=False, more_bytes=28)
    goal = SearchGoal(PartitionRequest(1000, take_smallest=smallest))
    kept, _ = search.run(goal)
    assert [request.budget_bytes for request, _ in compiler.requests][: len(aims)] == aims
    assert kept.check.peak_bytes <= 1000
    assert peak_bytes is None or kept.check.peak_bytes == peak_bytes


@pytest.mark.parametrize("copied_bytes", [0, 20])
def test_copies_that_cost_little_recomputation_keep_the_compilers_layout(copied_bytes: int) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, copied_bytes=copied_bytes)
    kept = searched(compiler, 900)
    assert [request.free_layout for request, _ in compiler.requests] == [True]
    assert kept.check.peak_bytes == 900
    assert kept.real


@pytest.mark.parametrize(("copied_bytes", "saves_much"), [(4, False), (20, True)])
def test_copies_that_cost_much_recomputation_are_avoided(copied_bytes: int, saves_much: bool) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, copied_bytes=copied_bytes, ns_per_byte=10.0)
    kept = searched(compiler, 900)
    # Kernels in the program's layout are compiled only for a plan that is kept.
    tries = [(True, True), (False, False), *([(False, True)] if saves_much else [])]
    assert [(request.free_layout, real) for request, real in compiler.requests] == tries
    assert kept.request.free_layout == (not saves_much)
    assert kept.check.peak_bytes == 900
    assert kept.real


def test_recomputation_without_copies_is_no_reason_to_try_the_programs_layout() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, ns_per_byte=10.0)
    assert searched(compiler, 900).added_ns == STEP_NS
    assert [request.free_layout for request, _ in compiler.requests] == [True]


def test_copies_are_not_avoided_where_the_programs_layout_does_not_fit() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, copied_bytes=20, ns_per_byte=10.0)

    def larger(request: PartitionRequest, real: bool = True) -> Attempt:
        made = compiler(request, real)
        return made if request.free_layout else replace(made, check=replace(made.check, peak_bytes=950))

    kept, _ = BudgetSearch(larger, options_of(memory_budget=900), True).run(SearchGoal(PartitionRequest(900)))
    assert kept.request.free_layout
    assert kept.real
    assert len(compiler.requests) > 1


def test_an_earlier_outcome_with_copies_is_kept_without_another_try() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, copied_bytes=20, ns_per_byte=10.0)
    known = compiler(PartitionRequest(900))
    search = BudgetSearch(compiler, options_of(memory_budget=900), chooses_layout=True)
    kept, _ = search.run(SearchGoal(known.request, known, 900))
    assert kept.request.free_layout
    assert len(compiler.requests) == 1


def test_copies_that_leave_no_plan_are_avoided() -> None:
    kept = searched(MadeUpCompiler(layout_bytes=500, floor_bytes=600), 900)
    assert not kept.request.free_layout
    assert kept.check.peak_bytes <= 900


def test_without_convolutions_the_first_try_is_compiled_and_kept() -> None:
    compiler = MadeUpCompiler(layout_bytes=0)
    kept = searched(compiler, 900, convolutions=False)
    assert [real for _, real in compiler.requests] == [True]
    assert kept.request == compiler.requests[0][0]


@pytest.mark.parametrize("early_bytes", [0, 50])
def test_early_loops_are_given_up_where_they_take_more_than_the_budget(early_bytes: int) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, early_bytes=early_bytes)
    kept = searched(compiler, 900, convolutions=False)
    assert kept.request.early_loops == (early_bytes == 0)
    assert kept.check.peak_bytes == kept.request.budget_bytes == 900
    assert kept.real


@pytest.mark.parametrize("factor", [1.0, 1.3])
@pytest.mark.parametrize("convolutions", [False, True])
def test_the_programs_order_is_planned_only_where_no_other_order_fits(factor: float, convolutions: bool) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, order_factor=factor, floor_bytes=800)
    kept = searched(compiler, 900, convolutions=convolutions)
    assert kept.request.reorders == (factor == 1.0)
    assert any(not request.reorders for request, _ in compiler.requests) == (factor != 1.0)
    assert kept.check.peak_bytes <= 900
    assert kept.real


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_the_programs_order_is_planned_once_where_plans_are_over_the_budget_themselves(factor: float) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, order_factor=factor, floor_bytes=950)
    search = BudgetSearch(compiler, options_of(memory_budget=900, on_infeasible="min"), chooses_layout=False)
    kept, _ = search.run(SearchGoal(PartitionRequest(900, take_smallest=True, early_loops=False)))
    assert kept.check.peak_bytes == 950
    # Where the emitted code takes more than its plan.
    assert sum(not request.reorders for request, real in compiler.requests if not real) == (factor != 1.0)


def test_the_smallest_peak_is_not_compiled_again_if_it_was_taken_for_the_budget() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, floor_bytes=950)
    search = BudgetSearch(compiler, options_of(memory_budget=900, on_infeasible="min"), chooses_layout=False)
    kept, _ = search.run(SearchGoal(PartitionRequest(900, take_smallest=True, early_loops=False)))
    assert kept.real
    assert sum(real for _, real in compiler.requests) == 1


def test_the_smallest_peak_may_be_that_of_the_programs_order() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, order_factor=1.3, native_bytes=2000)
    search = BudgetSearch(compiler, options_of(memory_budget="min"), chooses_layout=False)
    kept, _ = search.run(SearchGoal(PartitionRequest(500, take_smallest=True)))
    assert not kept.request.reorders
    assert kept.check.peak_bytes == 500


def test_a_step_known_to_be_over_a_fraction_is_not_tried_as_its_answer() -> None:
    compiler = MadeUpCompiler(layout_bytes=0)
    search = BudgetSearch(compiler, options_of(memory_budget=0.9), chooses_layout=False)
    kept, limit = search.run(SearchGoal(PartitionRequest(None, fraction=0.9)))
    assert limit == 900
    assert not kept.request.may_be_native
    assert [request.may_be_native for request, _ in compiler.requests] == [True, False]


@pytest.mark.parametrize("layout_bytes", [0, 20])
def test_the_first_plan_in_the_compilers_layout_is_compiled_as_it_mostly_fits(layout_bytes: int) -> None:
    compiler = MadeUpCompiler(layout_bytes)
    searched(compiler, 900)
    # Of the others only the one that is kept.
    real = [request.budget_bytes for request, real in compiler.requests if real]
    assert real == ([900, 880 - int(0.002 * 900)] if layout_bytes else [900])
    assert len(compiler.requests) <= 2 * MAX_TRIES + 1


@pytest.mark.parametrize("convolutions", [False, True])
def test_what_cannot_be_lower_is_not_emitted_again(convolutions: bool) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, floor_bytes=950)
    search = BudgetSearch(compiler, options_of(memory_budget=0.9), chooses_layout=convolutions)
    with pytest.raises(InfeasibleBudget):
        search.run(SearchGoal(PartitionRequest(None, fraction=0.9, early_loops=False)))
    asked = [request for request, _ in compiler.requests]
    # The plan of the smallest peak is one in each layout and order, and the step without a budget is known.
    smallest = [(one.free_layout, one.reorders) for one in asked if one.budget_bytes == NO_BYTES]
    assert len(smallest) == len(set(smallest)) == (2 if convolutions else 1)
    unplanned = [request.free_layout for request in asked if request.budget_bytes is None]
    # In the program's layout it may be lower.
    assert unplanned == ([True, False] if convolutions else [True])


def test_a_fraction_is_one_of_what_the_step_takes_without_a_budget() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, other_bytes=200)
    search = BudgetSearch(compiler, options_of(memory_budget=0.5), chooses_layout=False)
    kept, limit = search.run(SearchGoal(PartitionRequest(None, fraction=0.5)))
    assert limit == 600
    assert kept.check.peak_bytes <= 600


def test_the_whole_peak_is_the_step_without_a_budget() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, other_bytes=200)
    search = BudgetSearch(compiler, options_of(memory_budget=1.0), chooses_layout=False)
    kept, limit = search.run(SearchGoal(PartitionRequest(None, fraction=1.0)))
    # Compiled once: what is kept is the step that the budget was taken from.
    assert [(request.budget_bytes, real) for request, real in compiler.requests] == [(None, True)]
    assert kept.check.peak_bytes == limit == 1200


def test_on_request_the_smallest_peak_is_kept_though_it_is_over_the_budget() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, floor_bytes=0)

    def stubborn(request: PartitionRequest, real: bool = True) -> Attempt:
        made = compiler(request, real)
        return replace(made, check=replace(made.check, peak_bytes=950))

    options = options_of(memory_budget=900, on_infeasible="min")
    kept, _ = BudgetSearch(stubborn, options, chooses_layout=False).run(SearchGoal(PartitionRequest(900)))
    assert kept.check.peak_bytes == 950


@pytest.mark.parametrize(("moving_bytes", "moves", "tries"), [(0, True, 1), (30, False, 3)])
def test_the_smallest_peak_is_not_missed_by_moving_values(moving_bytes: int, moves: bool, tries: int) -> None:
    compiler = MadeUpCompiler(0, moving_bytes=moving_bytes)
    search = BudgetSearch(compiler, options_of(memory_budget="min"), chooses_layout=False)
    kept, _ = search.run(
        SearchGoal(PartitionRequest(500, reorders=False, offload_bytes=1 << 20, offload_place="disk:/tmp"))
    )
    assert (kept.request.offload_bytes > 0) == moves
    assert kept.needed_bytes == 500
    assert kept.real
    assert len(compiler.requests) == tries


@pytest.mark.parametrize(("other_bytes", "kept_bytes", "tries"), [(0, 500, 1), (450, 950, 2), (600, 990, 3)])
def test_the_smallest_peak_is_at_most_that_without_a_budget(other_bytes: int, kept_bytes: int, tries: int) -> None:
    """Where emitted code takes more than was planned, and that of the step without a budget does not."""
    compiler = MadeUpCompiler(0, other_bytes)

    def emitted(request: PartitionRequest, real: bool = True) -> Attempt:
        made = compiler(request, real)
        made = replace(made, request=request)
        return made if request.budget_bytes else replace(made, check=replace(made.check, peak_bytes=990))

    search = BudgetSearch(emitted, options_of(memory_budget="min"), chooses_layout=False)
    kept, _ = search.run(SearchGoal(PartitionRequest(500, take_smallest=True, reorders=False)))
    assert (kept.needed_bytes, kept.real, len(compiler.requests)) == (kept_bytes, True, tries)


@pytest.mark.parametrize("convolutions", [False, True])
def test_a_budget_that_only_the_step_without_one_keeps_is_kept(convolutions: bool) -> None:
    """Where emitted code takes more than was planned, and that of the step without a budget less."""
    compiler = MadeUpCompiler(20 if convolutions else 0, other_bytes=60, floor_bytes=880)

    def emitted(request: PartitionRequest, real: bool = True) -> Attempt:
        made = compiler(request, real)
        if request.budget_bytes is not None:
            return made
        return replace(made, request=request, check=replace(made.check, peak_bytes=890))

    def kept(budget: int) -> Attempt:
        search = BudgetSearch(emitted, options_of(memory_budget=budget), chooses_layout=convolutions)
        return search.run(SearchGoal(PartitionRequest(budget)))[0]

    assert kept(960).request.budget_bytes is not None
    for budget in (890, 930):
        assert (kept(budget).needed_bytes, kept(budget).request.budget_bytes, kept(budget).real) == (890, None, True)
    with pytest.raises(InfeasibleBudget) as error:
        kept(889)
    assert error.value.smallest_peak_bytes == 890


def test_a_peak_that_is_not_known_is_not_taken_for_a_lower_one() -> None:
    compiler = MadeUpCompiler(0, other_bytes=450)

    def emitted(request: PartitionRequest, real: bool = True) -> Attempt:
        made = compiler(request, real)
        return made if request.budget_bytes else replace(made, check=replace(made.check, unknown="a loop"))

    search = BudgetSearch(emitted, options_of(memory_budget="min"), chooses_layout=False)
    kept, _ = search.run(SearchGoal(PartitionRequest(500, take_smallest=True, reorders=False)))
    assert kept.needed_bytes == 950
    assert len(compiler.requests) == 2


@pytest.mark.parametrize("layout_bytes", [-40, 40])
def test_the_smallest_peak_is_that_of_the_lower_layout(layout_bytes: int) -> None:
    compiler = MadeUpCompiler(layout_bytes)
    search = BudgetSearch(compiler, options_of(memory_budget="min", inner="inductor"), chooses_layout=True)
    kept, _ = search.run(SearchGoal(PartitionRequest(500, take_smallest=True)))
    assert kept.needed_bytes == min(500, 500 + layout_bytes)
    assert kept.request.free_layout == (layout_bytes < 0)
    assert kept.real


@pytest.mark.parametrize("on_infeasible", ["error", "min"])
def test_a_goal_may_take_the_smallest_peak_without_a_word(on_infeasible: str, caplog: pytest.LogCaptureFixture) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, floor_bytes=300)

    def takes_smallest(request: PartitionRequest, real: bool = True) -> Attempt:
        if request.take_smallest:
            request = replace(request, budget_bytes=300)
        return compiler(request, real)

    options = options_of(memory_budget=900, on_infeasible=on_infeasible)
    goal = SearchGoal(PartitionRequest(200), limit_bytes=200, whole_bytes=900, takes_smallest=True)
    kept, limit = BudgetSearch(takes_smallest, options, False).run(goal)
    assert (kept.check.peak_bytes, kept.real, limit) == (300, True, 200)
    assert not caplog.records


@pytest.mark.parametrize(("origin", "tries"), [("", 3), (FROM_CACHE, 3), (FROM_SIMILAR, 1)])
def test_a_plan_of_another_size_that_fits_is_not_solved_for_the_bytes_it_leaves(origin: str, tries: int) -> None:
    compiler = MadeUpCompiler(layout_bytes=0, other_bytes=-100, origin=origin)
    kept = searched(compiler, 900, convolutions=False)
    assert len(compiler.requests) == tries
    assert kept.check.peak_bytes == (800 if tries == 1 else 900)


def test_a_plan_of_another_size_that_does_not_fit_is_solved_anew() -> None:
    kept = searched(MadeUpCompiler(layout_bytes=0, other_bytes=50, origin=FROM_SIMILAR), 900, convolutions=False)
    assert kept.check.peak_bytes <= 900
    assert kept.request.budget_bytes != 900


def test_what_is_held_beside_other_graphs_is_aimed_at_again() -> None:
    """The peak fits, but not what the emitted code holds while others run."""
    one = SimpleNamespace(peak_bytes=80, saved_bytes=50, gainable_ns=5, budget_bytes=100)
    one.result = SimpleNamespace(stats=())
    check = DryRun(80, (MemorySample("forward", "op", 0, "", 80, 0),), boundary_bytes=53, between_bytes=50)
    request = PartitionRequest(100, between_bytes=50)
    attempt = Attempt(request, lambda: None, True, True, (cast("Partition", one),), check)
    following = next_request(request, attempt, 100)
    assert following is not None
    assert following.budget_bytes == 97


def attempt_over(request: PartitionRequest, planned_bytes: int, emitted_bytes: int) -> Attempt:
    """A try whose code takes more than was planned."""
    one = SimpleNamespace(peak_bytes=planned_bytes, budget_bytes=planned_bytes, gainable_ns=5)
    check = DryRun(emitted_bytes, (MemorySample("forward", "op", 0, "", emitted_bytes, 0),))
    return Attempt(request, lambda: None, True, True, (cast("Partition", one),), check)


@pytest.mark.parametrize("take_smallest", [False, True])
def test_a_plan_that_takes_its_whole_budget_need_not_be_the_smallest(take_smallest: bool) -> None:
    request = PartitionRequest(1000, take_smallest=take_smallest)
    following = next_request(request, attempt_over(request, 1000, 1050), 1000)
    assert following == replace(request, budget_bytes=1000 - 50 - 2)


@pytest.mark.parametrize("budget_bytes", [NO_BYTES, 900])
def test_no_smaller_plan_is_asked_for_than_the_smallest(budget_bytes: int) -> None:
    request = PartitionRequest(budget_bytes, take_smallest=True)
    assert next_request(request, attempt_over(request, 950, 1050), 1000) is None


@pytest.mark.parametrize(("free_bytes", "kept_bytes"), [(600, 600), (1100, 900)])
def test_the_smallest_peak_is_at_most_that_without_a_budget_in_the_compilers_layout(
    free_bytes: int, kept_bytes: int
) -> None:
    """Plans for the smallest peak are made in the program's layout, which may take more than the compiler's own."""
    compiler = MadeUpCompiler(layout_bytes=0, floor_bytes=900)

    def emitted(request: PartitionRequest, real: bool = True) -> Attempt:
        made = replace(compiler(request, real), request=request)
        if request.budget_bytes is not None or not request.free_layout:
            return made
        return replace(made, check=replace(made.check, peak_bytes=free_bytes))

    options = options_of(memory_budget="min", inner="inductor")
    request = PartitionRequest(1, take_smallest=True, free_layout=False)
    kept, _ = BudgetSearch(emitted, options, chooses_layout=True).run(SearchGoal(request))
    assert kept.check.peak_bytes == kept_bytes
    assert kept.real


def test_code_that_is_compiled_last_is_checked_again(caplog: pytest.LogCaptureFixture) -> None:
    compiler = MadeUpCompiler(0, other_bytes=100, real_bytes=200)
    with pytest.raises(InfeasibleBudget):
        searched(compiler, 900, convolutions=False)
    assert searched(compiler, 900, convolutions=False, on_infeasible="min").is_over(900)
    assert "no plan fits memory_budget=" in caplog.text


def test_a_budget_of_the_device_is_kept_by_emitted_code_like_one_in_bytes() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, other_bytes=20)
    search = BudgetSearch(compiler, options_of(memory_budget="auto"), chooses_layout=False)
    kept, limit = search.run(SearchGoal(PartitionRequest(900)))
    assert limit == 900
    assert len(compiler.requests) > 1
    assert kept.check.peak_bytes <= 900


def test_without_a_budget_of_any_kind_there_is_one_try() -> None:
    compiler = MadeUpCompiler(layout_bytes=0, other_bytes=20)
    search = BudgetSearch(compiler, options_of(memory_budget="auto"), chooses_layout=False)
    assert search.run(SearchGoal(PartitionRequest(None)))[1] is None
    assert len(compiler.requests) == 1
