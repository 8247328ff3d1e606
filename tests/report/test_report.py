"""The report: its figures, its JSON, its texts, and the list that the process keeps."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given

import remat_compiler
from drawn_graphs import joint_plan, problems
from planned import problem, report, result
from remat_compiler.errors import FormatError
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import UNLIMITED_BYTES, RematProblem
from remat_compiler.report.build import build_report
from remat_compiler.report.plan_report import ChunkedRegion, PlanReport, StepFigures
from remat_compiler.report.store import add_report
from remat_compiler.report.summary import one_line, summary_text


def test_the_figures_of_a_planned_chain() -> None:
    made = report()
    assert made.peak_before_bytes == 15_364
    assert made.peak_bytes == made.estimated_peak_bytes == 11_276
    assert (made.saved_before_bytes, made.saved_bytes) == (10_240, 6_144)
    assert (made.step_ns, made.added_ns, made.added_percent) == (8000, 1000, 12.5)
    assert made.gap_percent == 12.5
    assert made.seconds == 0.75
    assert made.peak.in_backward
    assert made.resident_bytes == 4096


@given(problems())
def test_what_is_alive_at_the_peak_sums_up_to_it(asked: RematProblem) -> None:
    plan = joint_plan(asked.graph)
    answer = PlanResult(PlanStatus.FEASIBLE, "save_all", plan)
    made = build_report(asked, answer, graph_name="g", joint_nodes=1, inner="eager")
    assert sum(one.size_bytes for one in made.live_at_peak) == made.estimated_peak_bytes
    assert made.floor.peak_bytes <= made.estimated_peak_bytes
    assert PlanReport.from_json(made.to_json()) == made
    assert summary_text(made).endswith("\n")


def test_the_checked_peak_is_the_one_that_counts() -> None:
    made = replace(report(), checked_peak_bytes=12_000)
    assert made.peak_bytes == 12_000
    assert "11.7 KiB (12,000 bytes)" in summary_text(made)
    assert "100.0 % of the budget" in summary_text(made)


def test_a_report_prints_as_its_summary() -> None:
    made = report()
    assert str(made) == f"{made}" == summary_text(made)
    assert repr(made).startswith("PlanReport(graph_name=")


def test_a_step_of_several_graphs_has_a_row_of_its_own() -> None:
    made = replace(report(), step=StepFigures(3, 9 * 1024, 10 * 1024))
    (row,) = [line for line in summary_text(made).splitlines() if line.startswith("peak of the step")]
    assert "9.0 KiB (9,216 bytes)" in row
    assert row.endswith("at most, of its 3 planned graphs, which may take 10.0 KiB together")
    assert PlanReport.from_json(made.to_json()) == made
    assert "of its 2 planned graphs\n" in summary_text(replace(made, step=StepFigures(2, None, None)))


def test_no_budget_is_told_as_none() -> None:
    made = report(problem(UNLIMITED_BYTES))
    assert made.budget_bytes is None
    assert "(budget" not in one_line(made)
    assert "none" in summary_text(made)


def test_a_result_without_a_plan_has_no_report() -> None:
    nothing = PlanResult(PlanStatus.FAILED, "auto", None)
    with pytest.raises(ValueError, match="status failed"):
        build_report(problem(), nothing, graph_name="g", joint_nodes=1, inner="eager")


def test_the_summary_as_text() -> None:
    assert (
        summary_text(report())
        == """\
graph0: 8 ops from 20 joint nodes, inner eager

note: a note

peak without a budget  15.0 KiB (15,364 bytes)      keeps 10.0 KiB
budget                 11.7 KiB (12,000 bytes)
peak, first estimate   11.0 KiB (11,276 bytes)      keeps 6.0 KiB
peak, checked          unknown                      94.0 % of the budget
peak, reached by       op_6 at model.py:16 layer.3  in the backward
floor of any plan      9.0 KiB (9,228 bytes)        forced by op_6 at model.py:16 layer.3
resident beside it     4.0 KiB (4,096 bytes)        parameters, buffers and inputs
step, modelled         8.0 µs                       each operator once
added time             1.0 µs                       +12.5 % of the step
planner                chen_sqrt                    feasible, at most 12.5 % of the step above the cheapest plan
took                   0.75 s                       capture 0.25 s, plan 0.50 s

decisions: 2 save 5.0 KiB, 1 recompute 4.0 KiB
decision     bytes  count  repeats   added  made by          source       module   why
RECOMPUTE  4.0 KiB      1        1  1.0 µs  aten.op.default  model.py:10  layer.*  not saved to stay within the budget
SAVE       4.0 KiB      1                   aten.op.default  model.py:12  layer.*  fits; saves 1.0 µs of recomputation
SAVE       1.0 KiB      1                   aten.op.default  model.py:11  layer.*  fits; saves 1.0 µs of recomputation

alive at the peak: 8 storages, 11.0 KiB, in the backward
  bytes  count  kind        made by          source       module
4.0 KiB      1  activation  aten.op.default  model.py:10  layer.*
4.0 KiB      1  temporary   aten.op.default  model.py:16  layer.*
1.0 KiB      1  output      aten.op.default  model.py:13  layer.*
1.0 KiB      1  tangent
1.0 KiB      1  temporary   aten.op.default  model.py:15  layer.*
    4 B      1  gradient    aten.op.default  model.py:14  layer.*
    4 B      1  gradient    aten.op.default  model.py:15  layer.*
    4 B      1  gradient    aten.op.default  model.py:16  layer.*
"""
    )


def test_one_line_for_the_log() -> None:
    assert one_line(report()) == (
        "graph0: 8 ops, peak 15.0 KiB → 11.0 KiB (budget 11.7 KiB), +12.5 % time, "
        "chen_sqrt FEASIBLE gap 12.5 % in 0.75 s"
    )


@pytest.mark.parametrize(
    ("name", "to", "says"),
    [
        ("status", "fine", r"\$\.data\.status: unknown PlanStatus 'fine'"),
        ("added_ns", -1, r"\$\.data\.added_ns: expected at least 0, got -1"),
        ("stages", [{"stage": "plan", "seconds": "1"}], r"\$\.data\.stages\[0\]\.seconds: expected float, got '1'"),
    ],
)
def test_a_broken_report_is_refused_with_its_place(name: str, to: object, says: str) -> None:
    document = json.loads(report().to_json())
    document["data"][name] = to
    with pytest.raises(FormatError, match=says):
        PlanReport.from_json(json.dumps(document))


def test_the_process_keeps_its_reports_in_order() -> None:
    remat_compiler.clear_reports()
    first, second = report(graph_name="graph0"), report(graph_name="graph1")
    add_report(first)
    add_report(second)
    checked = replace(first, checked_peak_bytes=7)
    add_report(checked)
    assert remat_compiler.reports() == [checked, second]
    remat_compiler.clear_reports()
    assert remat_compiler.reports() == []


def test_losses_in_chunks_are_told_with_their_line_and_their_price() -> None:
    loss = ChunkedRegion(16, "mm_3", "model.py:41", 134 * 2**20, 8 * 2**20 + 2**19)
    asked, answer = problem(), result()
    made = build_report(asked, answer, graph_name="g", joint_nodes=1, inner="eager", chunked=(loss,), chunks_ns=3000)
    # Chunks are no part of the step whose loss is whole: recomputation of 1 µs, and 3 of its 8 µs.
    assert (made.step_ns, made.added_ns, made.lower_bound_ns, made.added_percent) == (5000, 4000, 3000, 80.0)
    told = summary_text(made)
    assert "\nloss in 16 chunks (model.py:41): 134.0 MiB → 8.5 MiB\n" in told
    (row,) = [line for line in told.splitlines() if line.startswith("added time")]
    assert row.endswith("+80.0 % of the step, 3.0 µs of it for more and smaller operators")
    assert PlanReport.from_json(made.to_json()) == made
