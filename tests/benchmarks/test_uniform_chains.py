"""The chain that planners are compared on: its budget is Revolve's, and its optimum the binomial one."""

from __future__ import annotations

import pytest

from brute_force import cheapest_added_ns
from remat_compiler.simulate.floor import peak_floor
from remat_passes.bounds.revolve import fewest_repetitions
from remat_passes.planning.auto import Auto
from remat_passes.planning.chain_dp import ChainDp
from studies.uniform_chains.uniform_chains import STEP_NS, Row, run, summary, table, uniform_chain


@pytest.mark.parametrize(("length", "slots"), [(2, 1), (2, 2), (3, 1), (3, 2), (4, 2), (4, 3), (5, 2), (5, 3), (6, 4)])
def test_no_plan_of_the_graph_beats_the_closed_form(length: int, slots: int) -> None:
    """Against all plans, repetitions in the forward included."""
    fewest = fewest_repetitions(length, slots)
    assert fewest <= 2, "the search would take too long"
    assert cheapest_added_ns(uniform_chain(length, slots), fewest, in_forward=True) == STEP_NS * fewest


def test_one_slot_less_than_one_is_below_the_floor() -> None:
    problem = uniform_chain(6, 1)
    assert problem.budget_bytes - peak_floor(problem.graph, problem.costs).peak_bytes < 16


@pytest.mark.parametrize(("length", "slots"), [(0, 3), (3, 0)])
def test_a_chain_needs_a_step_and_a_slot(length: int, slots: int) -> None:
    with pytest.raises(ValueError, match="at least one of each"):
        uniform_chain(length, slots)


def test_the_rows_of_planners() -> None:
    rows = [run(16, 3, planner) for planner in (Auto(effort=500), ChainDp(), ChainDp(persistent=()))]
    assert [row.optimum for row in rows] == [18, 18, 18]
    assert rows[1].fits
    assert rows[1].repetitions == 18
    assert not rows[2].fits, "each step made again once needs more than three slots"
    assert "–" in table(rows[2:])[1]
    assert summary(rows[1:2])[0].startswith("chain_dp: 1 of 1 optimal, 1 within 1 %, worst 0.0 %")
    assert Row(10, 2, "p", "feasible", 10, 12, 3, 0.0).beyond == 0.1
