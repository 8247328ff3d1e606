"""The comparison of layouts: what it places is the plan's."""

from __future__ import annotations

import pytest

from instruments.layout_problems import PlannedStep, planned_steps
from instruments.make_instances import INSTANCES, SUFFIX
from instruments.problem_file import read_problem
from layout import PLANNERS, line, rows_of_step, summary
from remat_compiler.simulate.timeline import simulate


@pytest.fixture(scope="module")
def step() -> PlannedStep:
    problem = read_problem(INSTANCES / f"mlp_small_kernels{SUFFIX}")
    return next(planned_steps(problem, (0.25,)))


def test_the_blocks_add_up_to_the_peak_of_the_plan(step: PlannedStep) -> None:
    blocks = step.layout_problem().blocks
    live = [sum(b.size_bytes for b in blocks if b.start <= t < b.stop) for t in range(step.num_steps)]
    peak = simulate(step.problem.graph, step.problem.costs, step.plan).peak_bytes
    assert max(live) % peak == 0


def test_every_planner_and_both_allocators_have_a_row(step: PlannedStep) -> None:
    rows = rows_of_step("mlp", step, list(PLANNERS.values()))
    assert [row.planner for row in rows] == ["portfolio", "exact", "segments", "expandable"]
    assert all(row.over_percent >= rows[1].over_percent >= 0 for row in rows)
    assert len(list(summary(rows))) == len(rows)
    assert "mlp at 0.25" in line(rows)
