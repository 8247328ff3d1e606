"""The reports of all graphs that this process has compiled, in order."""

from __future__ import annotations

from threading import Lock

from remat_compiler.report.notebook import Shown
from remat_compiler.report.plan_html import reports_html
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.summary import one_line

_KEPT = 1000
_reports: dict[str, PlanReport] = {}
_lock = Lock()


class Reports(list[PlanReport], Shown):
    """Reports in the order of their compilation: a list that prints as a line for each, and that notebooks show."""

    def __str__(self) -> str:
        return "\n".join(map(one_line, self))

    def _repr_html_(self) -> str:
        return reports_html(self)


def add_report(report: PlanReport) -> None:
    """Keep `report`; one of the same graph name is replaced, so that a later check can complete an estimate.

    The oldest are dropped beyond 1000, so that a process that compiles without end does not grow.
    """
    with _lock:
        _reports[report.graph_name] = report
        # A dictionary keeps the order of insertion, so its first key is the oldest graph.
        while len(_reports) > _KEPT:
            del _reports[next(iter(_reports))]


def reports() -> Reports:
    """The reports of all graphs compiled so far: a list in the order of their compilation."""
    with _lock:
        return Reports(_reports.values())


def clear_reports() -> None:
    """Forget all reports."""
    with _lock:
        _reports.clear()
