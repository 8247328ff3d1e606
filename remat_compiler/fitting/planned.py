"""The backend's reports on a training step that is not run, for a GPU that need not be there."""

from __future__ import annotations

from remat_compiler.errors import PaperFailure
from remat_compiler.fitting.fit import located
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import FitRequest
from remat_compiler.report.plan_report import PlanReport


def plans(request: FitRequest) -> tuple[PlanReport, ...]:
    """The report of each graph of the step at the request's one batch.

    Raises:
        OptionError, UnknownName, PaperFailure: As `remat_compiler.fit` does; `PaperFailure` also if nothing fits the
            budget, or the step has no graph that could be planned.
    """
    found: tuple[PlanReport, ...] = call_in_process(_plans_here, located(request))
    return found


def _plans_here(request: FitRequest) -> tuple[PlanReport, ...]:
    # Imported in the new process alone: this one may do without torch.
    from remat_compiler.fitting.paper_step import fit_on_paper
    from remat_compiler.report.store import reports

    (point,) = fit_on_paper(request).points
    if point.problem:
        raise PaperFailure(point.problem)
    made = tuple(reports())
    if not made:
        raise PaperFailure("no graph of the step has a backward, so there is nothing to plan")
    return made
