"""The reports of all graphs that this process has compiled, in order."""

from __future__ import annotations

from threading import Lock

from remat_compiler.report.plan_report import PlanReport

_KEPT = 1000
_reports: dict[str, PlanReport] = {}
_lock = Lock()


def add_report(report: PlanReport) -> None:
    """Keep `report`; one of the same graph name is replaced, so that a later check can complete an estimate.

    The oldest are dropped beyond 1000, so that a process that compiles without end does not grow.
    """
    with _lock:
        _reports[report.graph_name] = report
        # A dictionary keeps the order of insertion, so its first key is the oldest graph.
        while len(_reports) > _KEPT:
            del _reports[next(iter(_reports))]


def reports() -> list[PlanReport]:
    """The reports of all graphs compiled so far, in the order of their compilation."""
    with _lock:
        return list(_reports.values())


def clear_reports() -> None:
    """Forget all reports."""
    with _lock:
        _reports.clear()
