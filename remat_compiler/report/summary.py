"""The report as aligned text: the figures, the decisions by group, what is alive at the peak."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat_compiler.ir.plan import Decision
from remat_compiler.ir.text_form import format_time, table
from remat_compiler.report.plan_report import LiveStorage, PeakPoint, PlanReport, StepFigures, StorageDecision
from remat_compiler.units import format_bytes

_SHOWN_ROWS = 12
_NUMBER = re.compile(r"\b\d+\b")


def one_line(report: PlanReport) -> str:
    """The report as the one line that is logged."""
    budget = "" if report.budget_bytes is None else f" (budget {format_bytes(report.budget_bytes)})"
    return (
        f"{report.graph_name}: {report.num_ops} ops, peak {format_bytes(report.peak_before_bytes)} → "
        f"{format_bytes(report.peak_bytes)}{budget}, +{report.added_percent:.1f} % time, {report.planner} "
        f"{report.status.name} gap {report.gap_percent:.1f} % in {report.seconds:.2f} s"
    )


@dataclass(frozen=True, slots=True)
class SummaryParts:
    """The parts of a summary, in their order.

    Attributes:
        head: What was planned, in a line.
        notes: What is computed in chunks, and what the user should know besides, a line each.
        figures: The rows of a table: what, figure, remark.
        decisions: What becomes of the forward's values; the first line has the sums.
        alive: What is alive at the peak; the first line has the sums, and there is none if nothing is.
    """

    head: str
    notes: list[str]
    figures: list[tuple[str, ...]]
    decisions: list[str]
    alive: list[str]


def summary_parts(report: PlanReport) -> SummaryParts:
    """The report as lines for people."""
    return SummaryParts(
        head=f"{report.graph_name}: {report.num_ops} ops from {report.joint_nodes} joint nodes, inner {report.inner}",
        notes=[*map(str, report.chunked), *(f"note: {note}" for note in report.notes)],
        figures=_figures(report),
        decisions=_decisions_part(report.decisions),
        alive=live_part(report),
    )


def summary_text(report: PlanReport) -> str:
    """The report as text for people; ends with a newline."""
    told = summary_parts(report)
    parts = [[told.head], told.notes, table(told.figures), told.decisions, told.alive]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def _figures(report: PlanReport) -> list[tuple[str, ...]]:
    """The rows of the first table: what, figure, remark."""
    checked = report.checked_peak_bytes is not None
    rows: list[tuple[str, ...]] = [
        ("peak without a budget", _size(report.peak_before_bytes), f"keeps {format_bytes(report.saved_before_bytes)}"),
        ("budget", "none" if report.budget_bytes is None else _size(report.budget_bytes), ""),
        ("peak, first estimate", _size(report.estimated_peak_bytes), f"keeps {format_bytes(report.saved_bytes)}"),
        ("peak, checked", _size(report.checked_peak_bytes) if checked else "unknown", _use_of_budget(report)),
        *_reserved(report),
        ("peak, reached by", str(report.peak.origin) or "-", _part(report.peak)),
        ("floor of any plan", _size(report.floor.peak_bytes), _forced_by(report.floor)),
    ]
    if report.smallest_peak_bytes is not None:
        rows.append(("smallest peak found", _size(report.smallest_peak_bytes), ""))
    if report.step is not None:
        rows.append(("peak of the step", _size(report.step.peak_bytes), _shared(report.step)))
    gap = f"at most {report.gap_percent:.1f} % of the step above the cheapest plan"
    rows += [
        ("resident beside it", _size(report.resident_bytes), "parameters, buffers and inputs"),
        ("step, modelled", format_time(report.step_ns), "each operator once"),
        ("added time", format_time(report.added_ns), f"+{report.added_percent:.1f} % of the step{_of_chunks(report)}"),
        *_overwritten(report),
        *_offloaded(report),
        ("planner", report.planner, f"{report.status.value}, {gap}"),
        ("took", f"{report.seconds:.2f} s", ", ".join(f"{s.stage} {s.seconds:.2f} s" for s in report.stages)),
    ]
    return rows


def _of_chunks(report: PlanReport) -> str:
    """The part of the added time that is no recomputation, if losses are in chunks."""
    return f", {format_time(report.chunks_ns)} of it for more and smaller operators" if report.chunked else ""


def _overwritten(report: PlanReport) -> list[tuple[str, ...]]:
    """The row of operators that write into the memory of an argument, if there are any."""
    if not report.overwriting_ops:
        return []
    count = f"by {report.overwriting_ops} operators, in memory of arguments that they read last"
    return [("never allocated", _size(report.overwritten_bytes), count)]


def _offloaded(report: PlanReport) -> list[tuple[str, ...]]:
    """The row of what is moved off the device, if anything is."""
    if not report.offloaded_bytes:
        return []
    waits = (
        f"the step waits {format_time(report.stall_ns)} for it" if report.stall_ns else "the step never waits for it"
    )
    return [("offloaded", _size(report.offloaded_bytes), waits)]


def _reserved(report: PlanReport) -> list[tuple[str, ...]]:
    """The row of what the caching allocator takes for the peak, if that is to be told."""
    if not report.tells_reserved:
        return []
    waste = 100.0 * (report.reserved_bytes / report.peak_bytes - 1) if report.peak_bytes else 0.0
    saved = 100.0 * (1 - report.expandable_bytes / report.reserved_bytes)
    change = f"{abs(saved):.1f} % {'less' if saved >= 0 else 'more'} with expandable_segments:True"
    rows: list[tuple[str, ...]] = [
        ("reserved, modelled", _size(report.reserved_bytes), f"{waste:.1f} % above the peak; {change}")
    ]
    if report.arena_bytes:
        held = f"{report.covered_percent:.0f} % of what the step allocates lies in them"
        plain = f"{format_bytes(report.plain_reserved_bytes)} would be reserved without"
        rows.append((f"{len(report.arena_bytes)} arenas", _size(sum(report.arena_bytes)), f"{held}; {plain}"))
    return rows


def _size(num_bytes: int | None) -> str:
    """Bytes for people, and exact."""
    return "-" if num_bytes is None else f"{format_bytes(num_bytes)} ({num_bytes:,} bytes)"


def _use_of_budget(report: PlanReport) -> str:
    parts = [f"{100.0 * report.peak_bytes / report.budget_bytes:.1f} % of the budget"] if report.budget_bytes else []
    if report.checked_peak_bytes is not None and 0 < report.requested_bytes < report.checked_peak_bytes:
        parts.append(f"whole blocks, as max_memory_allocated counts; asked for are {_size(report.requested_bytes)}")
    return "; ".join(parts)


def _shared(step: StepFigures) -> str:
    of_which = "" if step.limit_bytes is None else f", which may take {format_bytes(step.limit_bytes)} together"
    sharded = f"; FSDP2 gathers {format_bytes(step.sharded_bytes)} of it" if step.sharded_bytes else ""
    before = f"; gradients from before it take {format_bytes(step.gradient_bytes)} of it" if step.gradient_bytes else ""
    often = f"; this one runs {step.runs} times" if step.runs > 1 else ""
    graphs = f"{step.graphs} planned graphs" if step.graphs > 1 else "planned graph"
    return f"at most, of its {graphs}{of_which}{sharded}{before}{often}"


def _part(point: PeakPoint) -> str:
    return f"in the {'backward' if point.in_backward else 'forward'}"


def _forced_by(point: PeakPoint) -> str:
    """What makes the floor."""
    return (
        f"forced by {point.origin}" if point.origin.op else "forced by gradients and outputs, alive together at the end"
    )


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of a grouped table."""

    key: tuple[str, ...]
    size_bytes: int
    count: int
    repeats: int
    added_ns: int
    reason: str


def _decisions_part(decisions: Sequence[StorageDecision]) -> list[str]:
    """Decisions grouped by operator, source line and module pattern, largest group first."""
    if not decisions:
        return ["decisions: the backward reads nothing that the forward makes"]
    totals = []
    for decision in Decision:
        of_kind = [d.size_bytes for d in decisions if d.decision is decision]
        if of_kind:
            totals.append(f"{len(of_kind)} {decision.value} {format_bytes(sum(of_kind))}")
    groups = _grouped(
        _Row(
            (d.decision.name, d.made_by.target, d.made_by.source, _pattern(d.made_by.module)),
            d.size_bytes,
            1,
            d.repeats,
            d.added_ns,
            d.reason,
        )
        for d in decisions
    )
    rows: list[tuple[str, ...]] = [
        ("decision", "bytes", "count", "repeats", "added", "made by", "source", "module", "why")
    ]
    for row in groups[:_SHOWN_ROWS]:
        kind, target, source, module = row.key
        added = format_time(row.added_ns) if row.added_ns else ""
        again = str(row.repeats) if row.repeats else ""
        rows.append(
            (kind, format_bytes(row.size_bytes), str(row.count), again, added, target, source, module, row.reason)
        )
    return [f"decisions: {', '.join(totals)}", *table(rows, right=(1, 2, 3, 4)), *_rest(groups)]


def live_part(report: PlanReport) -> list[str]:
    """What is alive at the peak, grouped like the decisions."""
    if not report.live_at_peak:
        return []
    groups = _grouped(_Row(_live_key(one), one.size_bytes, 1, 0, 0, "") for one in report.live_at_peak)
    rows: list[tuple[str, ...]] = [("bytes", "count", "kind", "made by", "source", "module")]
    rows += [(format_bytes(row.size_bytes), str(row.count), *row.key) for row in groups[:_SHOWN_ROWS]]
    total = sum(one.size_bytes for one in report.live_at_peak)
    head = f"alive at the peak: {len(report.live_at_peak)} storages, {format_bytes(total)}, {_part(report.peak)}"
    return [head, *table(rows, right=(0, 1)), *_rest(groups)]


def _live_key(one: LiveStorage) -> tuple[str, ...]:
    kind = one.storage if one.storage == "workspace" else one.kind.value
    return kind, one.made_by.target, one.made_by.source, _pattern(one.made_by.module)


def _grouped(rows: Iterable[_Row]) -> list[_Row]:
    """`rows` of equal key made one; largest first, then by key.  The reason is that of the first."""
    groups: dict[tuple[str, ...], _Row] = {}
    for row in rows:
        seen = groups.get(row.key)
        groups[row.key] = (
            row
            if seen is None
            else _Row(
                row.key,
                seen.size_bytes + row.size_bytes,
                seen.count + 1,
                seen.repeats + row.repeats,
                seen.added_ns + row.added_ns,
                seen.reason,
            )
        )
    return sorted(groups.values(), key=lambda row: (-row.size_bytes, row.key))


def _rest(groups: Sequence[_Row]) -> list[str]:
    """A last line for the groups that are not shown."""
    hidden = groups[_SHOWN_ROWS:]
    if not hidden:
        return []
    return [
        f"... and {len(hidden)} more groups, {format_bytes(sum(row.size_bytes for row in hidden))} (see report.json)"
    ]


def _pattern(module: str) -> str:
    """Module path with its indices replaced, so that repeated layers fall into one group."""
    return _NUMBER.sub("*", module)
