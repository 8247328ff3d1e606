"""The few figures by which a person, or a trainer's logger, knows what was planned for a training step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat_compiler.ir.plan import Decision
from remat_compiler.report.plan_report import PlanReport, StepFigures


@dataclass(frozen=True, slots=True)
class StepSummary:
    """What was planned for a training step.

    Attributes:
        graphs: Planned graphs.
        peak_bytes: The predicted peak, of all graphs together where that is known, else of the largest one.
        budget_bytes: The budget of the whole step, or `None` for no limit.
        added_percent: Time that recomputation adds, and waiting for copies, in percent of the step without.
        recomputed_values: Forward values that the backward computes again.
        offloaded_bytes: Bytes that are moved off the device in a step.
    """

    graphs: int
    peak_bytes: int
    budget_bytes: int | None
    added_percent: float
    recomputed_values: int
    offloaded_bytes: int

    def metrics(self) -> dict[str, float]:
        """The figures by the names under which loggers have them; a budget that there is not is left out."""
        found: dict[str, float] = {} if self.budget_bytes is None else {"remat/budget_bytes": self.budget_bytes}
        return found | {
            "remat/predicted_peak_bytes": self.peak_bytes,
            "remat/added_time_percent": self.added_percent,
            "remat/recomputed_values": self.recomputed_values,
            "remat/offloaded_bytes": self.offloaded_bytes,
            "remat/planned_graphs": self.graphs,
        }


def summarise(planned: Sequence[PlanReport]) -> StepSummary:
    """The figures of the step that runs the graphs with these reports, of which there is at least one."""
    whole = next((one.step for one in planned if one.step is not None and one.step.peak_bytes is not None), None)
    largest = max(planned, key=lambda one: one.peak_bytes)
    peak, limit = largest.peak_bytes, largest.budget_bytes
    if whole is not None:
        peak, limit = whole.peak_bytes or peak, whole.limit_bytes
    if largest.asked_bytes is not None:
        # Of which a graph may have a part, as long as its step is not known.
        limit = largest.asked_bytes
    step_ns = sum(one.runs * one.step_ns for one in planned)
    return StepSummary(
        graphs=len(planned),
        peak_bytes=peak,
        budget_bytes=limit,
        added_percent=100 * sum(one.runs * one.added_ns for one in planned) / max(step_ns, 1),
        recomputed_values=sum(what.decision is Decision.RECOMPUTE for one in planned for what in one.decisions),
        offloaded_bytes=sum(one.offloaded_bytes for one in planned),
    )


def latest_step(planned: Sequence[PlanReport]) -> list[PlanReport]:
    """Of reports in the order of compilation, those of the step that was compiled last.

    Earlier ones are of other sizes, such as those that a search for the batch size tried.  One that exceeds its budget
    is of a variant for sizes that are refused, and runs smaller ones; it counts only if there is no other.
    """
    within = [one for one in planned if one.budget_bytes is None or one.peak_bytes <= one.budget_bytes]
    found = within or planned
    if not found or found[-1].step is None:
        return list(found[-1:])
    last = _alike(found[-1])
    return [one for one in planned if _alike(one) == last]


def _alike(report: PlanReport) -> StepFigures | None:
    """The figures of its step that the reports of all of its graphs share."""
    return None if report.step is None else replace(report.step, runs=1)
