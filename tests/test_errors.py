"""Exceptions: the fields survive pickling, and the messages say got, allowed and what to do."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from remat_compiler import torch_compat
from remat_compiler.errors import (
    BudgetFacts,
    FormatError,
    InfeasibleBudget,
    KeptBytes,
    PlanRejected,
    RematError,
    UnknownName,
    UnservedSizes,
    UnsupportedTorch,
    suggestion,
)


@pytest.mark.parametrize(
    "error",
    [
        FormatError("$.ops[3]", "expected a list"),
        UnknownName("planner", "x", ["b", "a"]),
        InfeasibleBudget(5, 10, "mm", "model.py:12", "max_slowdown=2.0"),
        PlanRejected("auto", ["step 1: no", "step 2: no"]),
        UnservedSizes("s0 = 3"),
        UnsupportedTorch("2.16.0", "torch.fx.Graph.lint is missing", "graphs are not checked"),
    ],
)
def test_an_error_survives_pickling_and_copying(error: RematError) -> None:
    for other in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert vars(other) == vars(error)


def test_infeasible_names_the_smallest_peak_and_what_forces_it() -> None:
    error = InfeasibleBudget(5, 10, "addmm_3", "model.py:12")
    assert (error.smallest_peak_bytes, error.forced_by, error.source) == (10, "addmm_3", "model.py:12")
    assert "10 bytes, forced by addmm_3 at model.py:12" in str(error)


FACTS = BudgetFacts(
    asked="'6GiB'",
    unbudgeted_bytes=12 * 2**30,
    planner="greedy",
    kept=(KeptBytes(2**30, "ns.op is not known", "model.py:7"), *(KeptBytes(2**20, f"reason {i}") for i in range(4))),
    fixed_bytes=2 * 2**30,
    undeclared=True,
)


def test_infeasible_says_what_was_asked_what_is_kept_and_the_ways_out() -> None:
    text = str(InfeasibleBudget(6 * 2**30, 7 * 2**30, "addmm_3", "model.py:12", "max_slowdown=2.0", FACTS))
    for part in (
        "memory_budget='6GiB' (6442450944 bytes (6.0 GiB), 50 % of the peak without a budget)",
        "by planner 'greedy' (under max_slowdown=2.0) is 7516192768 bytes (7.0 GiB), forced by addmm_3 at model.py:12.",
        "1.0 GiB may not be recomputed: 1.0 GiB since ns.op is not known (model.py:7); 1.0 MiB since reason 0; ",
        "2.0 MiB for other reasons.",
        "a budget of at least 7516192768 bytes",
        'on_infeasible="min"',
        "a larger max_slowdown",
        "remat_compiler.allow_recompute(operator)",
        "a smaller batch (about 80 % of this one)",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("budget", "smallest", "says"),
    [
        (9_999, 10_000, ["100 % of the peak without", "(about 99 % of this one)"]),
        (50, 10_000, ["0.5 % of the peak without", "(less than 1 % of this one)"]),
        (1, 10_000, ["less than 0.1 % of the peak without", "(less than 1 % of this one)"]),
    ],
)
def test_parts_are_told_in_numbers_that_people_read(budget: int, smallest: int, says: list[str]) -> None:
    text = str(InfeasibleBudget(budget, smallest, facts=BudgetFacts(unbudgeted_bytes=10_000, fixed_bytes=0)))
    assert all(one in text for one in says)


def test_only_what_helps_is_named() -> None:
    text = str(InfeasibleBudget(2**30, 7 * 2**30, facts=replace(FACTS, undeclared=False)))
    assert "max_slowdown" not in text
    assert "allow_recompute" not in text
    assert "graph_breaks" not in text
    assert "graph_breaks" in str(InfeasibleBudget(2**30, 3 * 2**30, reason="2 graphs of the step together"))
    assert "a smaller batch (alone it will not do: gradients of parameters take 2.0 GiB)" in text
    # Gradients are no more than a third of it.
    assert "step_in_backward" not in text
    assert "step_in_backward" in str(InfeasibleBudget(2**30, 3 * 2**30, facts=FACTS))


def test_what_no_plan_reaches_is_told_where_it_rules_out_the_budget() -> None:
    facts = BudgetFacts(proven_bytes=900)
    assert "Proven: no plan goes below 900 bytes." in str(InfeasibleBudget(800, 1000, facts=facts))
    limited = InfeasibleBudget(800, 1000, reason="max_slowdown=2.0", facts=facts)
    assert "Proven: no plan under max_slowdown=2.0 goes below 900 bytes." in str(limited)
    # A budget above it, or emitted code that needs less than was planned: then it says nothing.
    assert "Proven" not in str(InfeasibleBudget(950, 1000, facts=facts))
    assert "Proven" not in str(InfeasibleBudget(800, 850, facts=facts))


@pytest.mark.parametrize("shown", [False, True])
def test_a_search_for_the_batch_size_takes_an_infeasible_budget_for_lack_of_memory(shown: bool) -> None:
    """By what `accelerate.utils.memory.should_reduce_batch_size` and Lightning's `is_oom_error` look at."""
    error: Exception = InfeasibleBudget(5, 10)
    if shown:
        error = torch_compat.pass_through_dynamo(error)
    assert isinstance(error, RuntimeError)
    (text,) = error.args
    assert "CUDA out of memory." in text
    assert "CUDA" in text
    assert "out of memory" in text


def test_what_a_user_is_shown_is_pickled_as_the_error_itself() -> None:
    error = InfeasibleBudget(5, 10, "mm", "model.py:12", "max_slowdown=2.0", FACTS)
    shown = torch_compat.pass_through_dynamo(error)
    for other in (pickle.loads(pickle.dumps(shown)), copy.copy(shown)):
        assert type(other) is InfeasibleBudget
        assert (str(other), other.facts, other.budget_bytes) == (str(error), error.facts, 5)


def test_a_long_list_of_violations_is_cut() -> None:
    text = str(PlanRejected("auto", [f"step {i}" for i in range(9)]))
    assert "breaks 9 rule(s)" in text
    assert "and 4 more" in text
    assert "step 7" not in text


def test_near_matches_ignore_case_and_nothing_allowed_is_said() -> None:
    assert suggestion("AUTO", ["auto", "min_cut"]) == "; did you mean 'auto'? (allowed: auto, min_cut)"
    assert suggestion("x", []) == " (nothing is registered)"
