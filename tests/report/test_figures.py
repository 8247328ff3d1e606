"""The few figures of a step: what a line on stderr and a trainer's logger get of several reports."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planned import report
from remat_compiler.report.figures import latest_step, summarise
from remat_compiler.report.plan_report import StepFigures

STEP = StepFigures(2, 20_000, 24_000)


def test_a_step_of_one_graph() -> None:
    only = report()
    figures = summarise([only])
    assert (figures.graphs, figures.peak_bytes, figures.budget_bytes) == (1, only.peak_bytes, only.budget_bytes)
    assert (figures.added_percent, figures.recomputed_values, figures.offloaded_bytes) == (12.5, 1, 0)


def test_several_graphs_share_their_steps_budget_and_add_up() -> None:
    first = replace(report(), step=STEP, offloaded_bytes=5)
    second = replace(report(graph_name="graph1"), step=STEP, added_ns=0, decisions=())
    figures = summarise([first, second])
    assert (figures.graphs, figures.peak_bytes, figures.budget_bytes) == (2, 20_000, 24_000)
    assert (figures.added_percent, figures.recomputed_values, figures.offloaded_bytes) == (6.25, 1, 5)


def test_of_graphs_whose_step_is_not_known_the_largest_counts() -> None:
    smaller, larger = report(), replace(report(graph_name="graph1"), checked_peak_bytes=13_000, budget_bytes=14_000)
    figures = summarise([larger, smaller])
    assert (figures.peak_bytes, figures.budget_bytes) == (13_000, 14_000)


def test_metrics_are_numbers_and_leave_out_a_budget_that_there_is_not() -> None:
    metrics = summarise([replace(report(), budget_bytes=12_000)]).metrics()
    assert metrics == {
        "remat/budget_bytes": 12_000,
        "remat/predicted_peak_bytes": 11_276,
        "remat/added_time_percent": 12.5,
        "remat/recomputed_values": 1,
        "remat/offloaded_bytes": 0,
        "remat/planned_graphs": 1,
    }
    without = summarise([replace(report(), budget_bytes=None)]).metrics()
    assert without == {name: value for name, value in metrics.items() if name != "remat/budget_bytes"}


def test_no_step_was_compiled() -> None:
    assert latest_step([]) == []
    with pytest.raises(ValueError, match="empty"):
        summarise([])


def test_the_step_that_was_compiled_last() -> None:
    old = report(graph_name="graph0")
    first, second = (replace(report(graph_name=f"graph{i}"), step=STEP) for i in (1, 2))
    assert latest_step([old]) == [old]
    assert latest_step([old, first, second]) == [first, second]
    assert latest_step([first, second, old]) == [old]


def test_a_variant_for_sizes_that_are_refused_is_not_what_runs() -> None:
    fits = replace(report(), budget_bytes=12_000)
    larger = replace(report(graph_name="graph1"), budget_bytes=12_000, checked_peak_bytes=18_000)
    assert latest_step([fits, larger]) == [fits]
    assert latest_step([larger]) == [larger]
