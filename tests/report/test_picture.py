"""The picture: well-formed, complete, and true to the peaks whatever the number of steps."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drawn_graphs import chain, joint_plan, problems
from planned import problem, report, result
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.report.curve import MemoryCurve, StepCurves, memory_curve
from remat_compiler.report.picture import memory_svg
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.summary import summary_text
from remat_compiler.simulate.timeline import simulate


def curve(asked: RematProblem, plan: Plan | None, columns: int = 64) -> MemoryCurve:
    assert plan is not None
    return memory_curve(asked.costs, plan, simulate(asked.graph, asked.costs, plan), columns)


def drawn(told: PlanReport | None = None) -> str:
    """The picture of a report with the curve of its plan."""
    return memory_svg(told or report(), StepCurves(curve(problem(), result().plan)))


def texts(svg: str) -> list[str]:
    """The words in a picture, which must be well-formed XML."""
    return [element.text or "" for element in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]


@given(problems(), st.integers(1, 50))
def test_no_peak_is_lost_between_columns(asked: RematProblem, columns: int) -> None:
    made = curve(asked, joint_plan(asked.graph), columns)
    assert len(made.columns) == columns
    assert max(made.columns) == made.peak_bytes
    assert 0 <= made.boundary_ns <= made.total_ns
    assert 0 <= made.peak_ns <= made.total_ns


def test_steps_without_time_still_show() -> None:
    graph = chain([100, 10**6, 100])
    costs = CostTable((1000, 0, 0, 0, 0, 1000), (0, 5 * 10**6, 0, 0, 0, 0), ("roofline",) * 6)
    asked = RematProblem(graph, costs, 1)
    made = curve(asked, joint_plan(graph), 10)
    assert max(made.columns) == made.peak_bytes > 5 * 10**6


def test_without_times_every_step_is_as_wide() -> None:
    asked = problem(time_ns=0)
    made = curve(asked, joint_plan(asked.graph), 8)
    assert (made.total_ns, made.boundary_ns, made.timed) == (8, 4, False)
    assert "operators" in texts(memory_svg(report(asked), StepCurves(made)))


def test_the_picture_names_budget_peaks_and_source_lines() -> None:
    asked = problem()
    words = texts(memory_svg(report(), StepCurves(curve(asked, result().plan), curve(asked, asked.reference))))
    for expected in ("budget 11.7 KiB", "15.0 KiB", "11.0 KiB", "forward", "backward", "without a budget"):
        assert expected in words
    assert "layer.0  model.py:10" in words
    assert any("f0 (activation)" in word for word in words)


def test_a_budget_far_above_is_named_but_not_drawn() -> None:
    words = texts(drawn(report(problem(10**9))))
    assert "953.7 MiB" in words
    assert not any(word.startswith("budget 9") for word in words)


def test_what_is_reserved_is_a_line_of_its_own() -> None:
    reserved = replace(report(), reserved_bytes=13_000, device="cuda")
    assert {"reserved, modelled 12.7 KiB", "reserved, modelled", "12.7 KiB"} <= set(texts(drawn(reserved)))
    assert not any("reserved" in word for word in texts(drawn()))


def test_on_a_cpu_what_is_reserved_is_shown_only_to_who_asked_for_it() -> None:
    """There is no such allocator; plans for a GPU that is to come may be made on one all the same."""
    on_cpu = replace(report(), reserved_bytes=13_000, expandable_bytes=12_000, device="cpu")
    for told in (drawn(on_cpu), summary_text(on_cpu)):
        assert "reserved" not in told
    for asked in ({"budget_of": "reserved"}, {"arena_bytes": (4096,), "plain_reserved_bytes": 14_000}):
        for told in (drawn(replace(on_cpu, **asked)), summary_text(replace(on_cpu, **asked))):
            assert "reserved, modelled" in told


def test_the_same_report_gives_the_same_bytes() -> None:
    assert drawn() == drawn()


@pytest.mark.parametrize("name", ["a < b & c > d", 'quo"te', "bell\x07", "é→"])
def test_names_cannot_break_the_picture(name: str) -> None:
    assert texts(drawn(replace(report(), graph_name=name)))


def test_an_empty_plan_has_a_picture() -> None:
    empty = MemoryCurve(0, 0, 0, 0, (), False)
    assert texts(memory_svg(replace(report(), live_at_peak=()), StepCurves(empty, empty)))
