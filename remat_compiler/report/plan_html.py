"""Reports as a notebook shows them: the picture of memory and the figures, with all else to unfold."""

from __future__ import annotations

from collections.abc import Sequence

from remat_compiler.report.notebook import card, columns, folded, image, paragraph, preformatted
from remat_compiler.report.picture import memory_svg
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.summary import one_line, summary_parts

_WHOLE = 4
"""Graphs that are shown with their pictures."""
_LINES = 20
"""Graphs that are shown with a line each."""


def report_html(report: PlanReport) -> str:
    """One report."""
    return card(*_parts(report))


def reports_html(reports: Sequence[PlanReport]) -> str:
    """Several reports: the latest ones to unfold, of which the last is open; a line for each of those before."""
    if not reports:
        return card(paragraph("no graph has been planned"))
    whole, earlier = reports[-_WHOLE:], reports[:-_WHOLE]
    lines = [one_line(report) for report in earlier[-_LINES:]]
    left = len(earlier) - len(lines)
    above = [paragraph(f"{left} graphs before these", bold=True)] if left else []
    shown = [folded(one_line(report), *_parts(report), is_open=report is whole[-1]) for report in whole]
    return card(*above, preformatted("\n".join(lines)), *shown)


def _parts(report: PlanReport) -> list[str]:
    """What is shown of a report, from the top."""
    told = summary_parts(report)
    parts = [paragraph(told.head, bold=True), *map(paragraph, told.notes)]
    if report.memory is not None:
        parts.append(image(memory_svg(report, report.memory), f"memory over the step: {one_line(report)}"))
    parts.append(columns(told.figures))
    # The first line of either sums up the others.
    parts += [folded(lines[0], preformatted("\n".join(lines[1:]))) for lines in (told.decisions, told.alive) if lines]
    return parts
