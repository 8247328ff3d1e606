"""Exceptions: the fields survive pickling, and the messages say got, allowed and what to do."""

from __future__ import annotations

import pickle

import pytest

from remat_compiler.errors import (
    FormatError,
    InfeasibleBudget,
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
def test_an_error_survives_pickling(error: RematError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_infeasible_names_the_smallest_peak_and_what_forces_it() -> None:
    error = InfeasibleBudget(5, 10, "addmm_3", "model.py:12")
    assert (error.smallest_peak_bytes, error.forced_by, error.source) == (10, "addmm_3", "model.py:12")
    assert "10 bytes, forced by addmm_3 at model.py:12" in str(error)


def test_a_long_list_of_violations_is_cut() -> None:
    text = str(PlanRejected("auto", [f"step {i}" for i in range(9)]))
    assert "breaks 9 rule(s)" in text
    assert "and 4 more" in text
    assert "step 7" not in text


def test_near_matches_ignore_case_and_nothing_allowed_is_said() -> None:
    assert suggestion("AUTO", ["auto", "min_cut"]) == "; did you mean 'auto'? (allowed: auto, min_cut)"
    assert suggestion("x", []) == " (nothing is registered)"
