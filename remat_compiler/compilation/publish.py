"""Shows plans to people: reports, log lines, dumps, torch's structured trace."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from remat_compiler import torch_compat
from remat_compiler.capture.source import input_names
from remat_compiler.compilation.plan_trace import trace_plan
from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.log import logger_of
from remat_compiler.options import RematOptions
from remat_compiler.partition.result import Partition
from remat_compiler.plan_cache.origin import where_in_cache
from remat_compiler.report.build import build_report
from remat_compiler.report.curve import memory_curve
from remat_compiler.report.dump import dump_files, report_files, write_dump
from remat_compiler.report.graph_text import graph_text
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.store import add_report
from remat_compiler.report.summary import one_line
from remat_compiler.simulate.reserved import reserved_figures
from remat_compiler.units import format_bytes
from remat_passes.registry import with_bound

logger = logger_of(__name__)

_number = itertools.count()


def make_reports(
    partitions: Sequence[Partition],
    check: DryRun,
    options: RematOptions,
    limit_bytes: int | None,
    native_peak_bytes: int | None = None,
) -> list[PlanReport]:
    """A report for each joint graph; checked peaks and the user's budget are given only if there is one joint graph.

    Args:
        partitions: The partition of each joint graph.
        check: The dry run of the emitted code.
        options: The user's options.
        limit_bytes: The user's budget in bytes; `None` for none.
        native_peak_bytes: Checked peak of the step without a budget, if it is known.
    """
    # The dry run gives one peak for all joint graphs together, which is that of none of several.
    alone = len(partitions) == 1
    checked = None if check.unknown or not alone else check.peak_bytes
    # An unchanged partition is the step without a budget.
    before = (checked if partitions[0].unchanged else native_peak_bytes) if alone else None
    reports = [_report(partition, checked, before, check, options) for partition in partitions]
    if not alone:
        return reports
    return [replace(_with_memory(reports[0], check), budget_bytes=limit_bytes)]


def _with_memory(report: PlanReport, check: DryRun) -> PlanReport:
    """`report` with what the caching allocator reserves for the step, and the arenas that hold its values."""
    if check.trace is None:
        return report
    figures, arenas = reserved_figures(check.trace), check.arenas
    report = replace(
        report,
        requested_bytes=check.requested_bytes,
        reserved_bytes=figures.reserved_bytes,
        expandable_bytes=figures.expandable_bytes,
    )
    if arenas is None:
        return report
    return replace(
        report,
        arena_bytes=arenas.sizes,
        covered_percent=arenas.covered_percent,
        plain_reserved_bytes=arenas.plain_reserved_bytes,
    )


def _report(
    partition: Partition, checked: int | None, before: int | None, check: DryRun, options: RematOptions
) -> PlanReport:
    notes = []
    if partition.unchanged:
        notes.append("the step fits: torch's own partition is used as it is")
    if options.chunks > 1 and not partition.chunked:
        notes.append("nothing is computed in chunks: no product is followed by a loss that can be cut")
    notes += _gradients_left(partition)
    where = where_in_cache(partition.result)
    if where:
        notes.append(f"the plan comes from the cache ({where})")
    without = partition.before
    if not without.is_native:
        notes.append(
            "the peak without a budget is that of the planned graph with all values kept; torch's own partition, which "
            "may take less, was not asked for"
        )
    if check.unknown:
        notes.append(f"the peak of what was emitted is not known: {check.unknown}")
    notes += check.notes
    if check.unmeasured:
        notes.append(f"the workspace of these operators is not known: {', '.join(check.unmeasured)}")
    report = build_report(
        partition.problem,
        with_bound(partition.result, partition.problem),
        graph_name=f"graph{next(_number)}",
        joint_nodes=partition.joint_nodes,
        inner=options.inner,
        before=without.timeline,
        before_curve=memory_curve(without.costs, without.plan, without.timeline),
        peak_before_bytes=before,
        checked_peak_bytes=checked,
        stages=partition.stages,
        notes=notes,
        chunked=partition.chunked,
        chunks_ns=partition.chunks_ns,
    )
    budget = options.memory_budget
    overwritten = partition.graphs.overwritten
    return replace(
        report,
        asked_bytes=budget.named_bytes,
        budget_of=options.budget_of,
        device=check.device_type,
        overwriting_ops=overwritten.num_ops,
        overwritten_bytes=overwritten.size_bytes,
    )


def _gradients_left(partition: Partition) -> list[str]:
    """A note on the gradients that leave within the backward, if any do."""
    graph = partition.problem.graph
    left = [graph.storages[s].size_bytes for op in graph.ops if op.ends for s in op.reads if s not in op.ends]
    if not left:
        return []
    gradients = "1 gradient" if len(left) == 1 else f"{len(left)} gradients"
    return [
        f"{gradients} of {format_bytes(sum(left))} leave within the backward: each goes to its parameter's `grad` there"
    ]


def checked_reports(stored: Sequence[PlanReport], check: DryRun) -> list[PlanReport]:
    """Reports of a graph whose code came from a compiler's cache, with this process's check."""
    reports = []
    for report in stored:
        # The code is the same, so the check of the earlier process stands if this one knows nothing.
        checked = report.checked_peak_bytes if check.unknown else check.peak_bytes
        notes = (*report.notes, "compiled code and plan come from the cache")
        reports.append(replace(report, graph_name=f"graph{next(_number)}", checked_peak_bytes=checked, notes=notes))
    return reports


def publish(
    reports: Sequence[PlanReport],
    partitions: Sequence[Partition],
    options: RematOptions,
    compilation: torch_compat.Compilation | None = None,
) -> None:
    """Log, keep, dump and trace the reports.

    Args:
        reports: The report of each joint graph.
        partitions: Their partitions; empty if the code came from a cache.
        options: The user's options.
        compilation: Dynamo's compilation that they belong to.
    """
    for report in reports:
        logger.info("%s", one_line(report))
        add_report(report)
    traced = torch_compat.structured_trace_is_on()
    if options.dump is not None and reports and not partitions:
        logger.warning("no graphs are dumped to %s: the compiled code came from the cache", options.dump)
    # Texts are made for those who want them only.
    if options.dump is None and not traced:
        return
    for report, partition in zip_longest(reports, partitions):
        files = report_files(report) if partition is None else _files(report, partition, compilation)
        if options.dump is not None and partition is not None:
            write_dump(options.dump, report.graph_name, files)
        if traced:
            trace_plan(files, compilation)


def _files(report: PlanReport, partition: Partition, compilation: torch_compat.Compilation | None) -> Mapping[str, str]:
    return dump_files(
        report,
        partition.problem,
        partition.result,
        sources=_sources(partition),
        compile_id=torch_compat.compile_id(compilation),
    )


def _sources(partition: Partition) -> dict[str, str]:
    """The graphs as text, each node with its place in the user's model."""
    origins = input_names(partition.joint)
    # One operator may be several nodes of the joint graph, contracted to a kernel.
    for op in partition.problem.graph.ops:
        for name in op.nodes:
            origins[name] = " ".join(filter(None, (op.module, op.source)))
    return {
        "joint.py": graph_text(partition.joint, "Joint graph, as it was cut.", origins),
        "forward.py": graph_text(partition.graphs.forward, "Forward graph.", origins),
        "backward.py": graph_text(partition.graphs.backward, "Backward graph.", origins),
    }
