"""What people are told of a compilation: reports with the checked peak, notes, log lines, dumps."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from torch import fx
from torch._guards import CompileContext, CompileId

import remat_compiler
from builders import chain, with_budget
from remat_compiler.compilation.publish import checked_reports, make_reports, publish
from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.ir.plan import Plan
from remat_compiler.options import RematOptions
from remat_compiler.partition.result import Baseline, Partition, SplitGraphs
from remat_compiler.plan_cache.origin import FROM_CACHE, marked
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.simulate.timeline import simulate
from remat_compiler.step_model.graph_memory import memory_of
from remat_passes.planning.auto import Auto
from structured_trace import listening, nobody_listening

PROBLEM = chain(8)
CHECK = DryRun(peak_bytes=50_000)


@pytest.fixture(autouse=True)
def no_reports() -> Iterator[None]:
    remat_compiler.clear_reports()
    yield
    remat_compiler.clear_reports()


def graph_module() -> fx.GraphModule:
    graph = fx.Graph()
    graph.output((graph.placeholder("x"),))
    return fx.GraphModule({}, graph)


def partition_of(fraction: float = 0.6, **fields: Any) -> Partition:
    """A chain planned for a fraction of its peak."""
    everything = Plan.saving_all(PROBLEM.graph)
    before = simulate(PROBLEM.graph, PROBLEM.costs, everything)
    asked = with_budget(PROBLEM, int(fraction * before.peak_bytes))
    result = Auto(effort=100).plan(asked)
    assert result.plan is not None
    timeline = simulate(PROBLEM.graph, PROBLEM.costs, result.plan)
    graphs = SplitGraphs(graph_module(), graph_module(), asked, result, timeline)
    baseline = Baseline(PROBLEM.graph, PROBLEM.costs, everything, before, True)
    made = Partition(graph_module(), 42, graphs, baseline, False, False, (("plan", 0.5),))
    return replace(made, **fields)


def options_of(**options: Any) -> RematOptions:
    return RematOptions.parse({"memory_budget": 40_000, **options}, check_planner=lambda name: name)


def test_a_step_of_one_joint_graph_is_reported_with_its_checked_peak_and_the_users_budget() -> None:
    one = partition_of()
    (report,) = make_reports([one], CHECK, options_of(), 40_000, native_peak_bytes=70_000)
    assert (report.peak_bytes, report.budget_bytes, report.peak_before_bytes) == (50_000, 40_000, 70_000)
    assert (report.added_ns, report.joint_nodes, report.notes) == (one.added_ns, 42, ())
    assert 0 < report.lower_bound_ns <= report.added_ns


def test_a_report_has_what_its_picture_shows_and_outlives_its_partition() -> None:
    one = partition_of()
    (report,) = make_reports([one], replace(CHECK, device_type="cpu"), options_of(budget_of="reserved"), 40_000)
    assert (report.device, report.budget_of) == ("cpu", "reserved")
    assert report.memory is not None
    assert report.memory.before is not None
    assert max(report.memory.planned.columns) == report.estimated_peak_bytes
    assert max(report.memory.before.columns) == one.before.timeline.peak_bytes
    (later,) = checked_reports([PlanReport.from_json(report.to_json())], DryRun(unknown="no device"))
    assert (later.device, later.budget_of, later.memory) == ("cpu", "reserved", report.memory)


def longer_baseline() -> Baseline:
    """The step without a budget of another graph, which has more operators."""
    longer = chain(2 * len(PROBLEM.graph.ops))
    plan = Plan.saving_all(longer.graph)
    return Baseline(longer.graph, longer.costs, plan, simulate(longer.graph, longer.costs, plan), True)


def test_the_step_without_a_budget_may_be_of_another_graph() -> None:
    """Torch's own cut repeats cheap operators, so that it has more of them than the graph that is planned."""
    other = longer_baseline()
    one = partition_of(before=other)
    (report,) = make_reports([one], CHECK, options_of(), 40_000)
    assert report.memory is not None
    assert report.memory.before is not None
    assert report.memory.before.peak_bytes == other.timeline.peak_bytes
    longer, plan, timeline = other, other.plan, other.timeline
    assert one.memory_before == memory_of(longer.graph, timeline, plan)
    assert one.memory_before.held_bytes > one.memory.held_bytes


def test_of_several_joint_graphs_each_has_what_the_simulator_says() -> None:
    one = partition_of()
    reports = make_reports([one, partition_of(0.8)], CHECK, options_of(), 40_000)
    assert [report.checked_peak_bytes for report in reports] == [None, None]
    assert reports[0].peak_bytes == one.peak_bytes
    assert len({report.graph_name for report in reports}) == 2


@pytest.mark.parametrize(
    ("partition", "check", "note"),
    [
        (partition_of(unchanged=True), CHECK, "torch's own partition is used as it is"),
        (partition_of(before=replace(partition_of().before, is_native=False)), CHECK, "was not asked for"),
        (partition_of(), replace(CHECK, unknown="it is sparse"), "is not known: it is sparse"),
        (partition_of(), replace(CHECK, unmeasured=("ns::op",)), "of these operators is not known: ns::op"),
    ],
)
def test_what_the_user_should_know_is_a_note(partition: Partition, check: DryRun, note: str) -> None:
    (report,) = make_reports([partition], check, options_of(), 40_000)
    assert note in " ".join(report.notes)


def test_a_plan_of_the_cache_says_so() -> None:
    one = partition_of()
    cached = replace(one, graphs=replace(one.graphs, result=marked(one.result, FROM_CACHE, "yesterday")))
    (report,) = make_reports([cached], CHECK, options_of(), 40_000)
    assert "the plan comes from the cache" in report.notes[0]
    assert "yesterday" in report.notes[0]


def test_a_stored_report_gets_the_peak_of_this_process_and_a_name_of_its_own() -> None:
    (stored,) = make_reports([partition_of()], CHECK, options_of(), 40_000)
    (again,) = checked_reports([stored], replace(CHECK, peak_bytes=49_000))
    assert (again.checked_peak_bytes, again.graph_name != stored.graph_name) == (49_000, True)
    assert "come from the cache" in again.notes[-1]
    (unknown,) = checked_reports([stored], replace(CHECK, unknown="why"))
    assert unknown.checked_peak_bytes == stored.checked_peak_bytes


def test_reports_are_logged_kept_and_dumped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="remat_compiler")
    partitions, options = [partition_of()], options_of(dump=str(tmp_path))
    reports = make_reports(partitions, CHECK, options, 40_000)
    publish(reports, partitions, options)
    assert remat_compiler.reports() == reports
    assert reports[0].graph_name in caplog.text
    (folder,) = tmp_path.iterdir()
    files = {"joint.py", "forward.py", "backward.py", "summary.txt", "timeline.perfetto.json"}
    assert files <= {file.name for file in folder.iterdir()}


def test_what_a_compilers_cache_had_leaves_no_dump_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    options = options_of(dump=str(tmp_path))
    reports = make_reports([partition_of()], CHECK, options, 40_000)
    publish(reports, cast("list[Partition]", []), options)
    assert "no graphs are dumped" in caplog.text
    assert list(tmp_path.iterdir()) == []


class Untouchable:
    """A partition that nobody may look at."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"{name} was asked for though nobody wants to see it")


def test_without_a_dump_or_a_trace_no_text_is_made() -> None:
    reports = make_reports([partition_of()], CHECK, options_of(), 40_000)
    with nobody_listening():
        publish(reports, [cast("Partition", Untouchable())], options_of())
    with listening(), pytest.raises(AssertionError, match="though nobody"):
        publish(reports, [cast("Partition", Untouchable())], options_of())


def test_the_trace_has_what_the_dump_has_under_the_compilation(tmp_path: Path) -> None:
    partitions, options = [partition_of()], options_of(dump=str(tmp_path))
    reports = make_reports(partitions, CHECK, options, 40_000)
    with nobody_listening(), listening() as listener:
        publish(reports, partitions, options, CompileContext(CompileId(frame_id=3, frame_compile_id=2)))
    assert {one.compile_id for one in listener.artifacts} == {"3/2"}
    (folder,) = tmp_path.iterdir()
    dumped = {file.name: file.read_text(encoding="utf-8") for file in folder.iterdir()}
    assert [(one.name, one.encoding, one.text) for one in listener.artifacts] == [
        ("remat_summary", "string", dumped["summary.txt"]),
        ("remat_report", "json", dumped["report.json"]),
        ("remat_problem", "json", dumped["problem.json"]),
        ("remat_plan", "json", dumped["plan.json"]),
        ("remat_forward_graph", "string", dumped["forward.py"]),
        ("remat_backward_graph", "string", dumped["backward.py"]),
        ("remat_timeline", "json", dumped["timeline.perfetto.json"]),
    ]
    assert json.loads(dumped["timeline.perfetto.json"])["otherData"]["compile_id"] == "3/2"


def test_what_a_compilers_cache_had_leaves_its_report_in_the_trace() -> None:
    reports = make_reports([partition_of()], CHECK, options_of(), 40_000)
    with nobody_listening(), listening() as listener:
        publish(reports, (), options_of())
    assert [one.name for one in listener.artifacts] == ["remat_summary", "remat_report"]


def test_a_trace_that_cannot_be_written_is_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    reports = make_reports([partition_of()], CHECK, options_of(), 40_000)
    with caplog.at_level(logging.WARNING), nobody_listening(), listening(OSError("the disk is full")):
        publish(reports, [partition_of()], options_of())
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "structured trace: the disk is full; training goes on" in caplog.text
    assert remat_compiler.reports() == reports
