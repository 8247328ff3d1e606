"""What a graph ends with: told to the user, and kept for the next process."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass, replace

from remat_compiler.cutter import PartitionRequest
from remat_compiler.errors import FormatError
from remat_compiler.ir.codec import decode
from remat_compiler.options import RematOptions
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.reporting import checked_reports, make_reports, publish
from remat_compiler.runtime.plan_store import PlanKey, PlanStore, StoredPlan
from remat_compiler.search import Attempt

logger = logging.getLogger(__name__)

PART_ONLY = "the step goes on in other graphs: this one has a part of the budget until all of them are known"


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier compilation of the graph ended with.

    Attributes:
        request: The last request.
        limit_bytes: The user's budget in bytes; `None` for none.
        reports: The report of each joint graph.
    """

    request: PartitionRequest
    limit_bytes: int | None
    reports: tuple[PlanReport, ...]


def earlier_outcome(stored: StoredPlan | None) -> Earlier | None:
    """A stored plan as data; `None`, with a warning, where it cannot be read."""
    if stored is None:
        return None
    try:
        request = decode(PartitionRequest, stored.request, "$.request")
        return Earlier(request, stored.limit_bytes, tuple(PlanReport.from_json(text) for text in stored.reports))
    except FormatError as error:
        logger.warning("ignored a stored plan that cannot be read (%s); it is planned again", error)
        return None


class Outcome:
    """Reports and stores what a graph ends with; a later outcome takes the place of an earlier one."""

    def __init__(self, options: RematOptions, store: PlanStore, key: PlanKey) -> None:
        self.options = options
        self.store = store
        self.key = key
        self.attempt: Attempt | None = None
        self.limit_bytes: int | None = None
        self.reports: list[PlanReport] = []

    def add(self, attempt: Attempt, note: str) -> None:
        """Report one more variant of the graph, for other sizes."""
        reports = make_reports(attempt.partitions, attempt.check, self.options, self.limit_bytes)
        reports = [replace(report, notes=(*report.notes, note)) for report in reports]
        publish(reports, attempt.partitions, self.options)

    def take_over(self, attempt: Attempt, earlier: Earlier) -> None:
        """What a compiler's cache had."""
        self.attempt, self.reports = attempt, checked_reports(earlier.reports, attempt.check)
        publish(self.reports, (), self.options)

    def keep(self, attempt: Attempt, limit_bytes: int | None, note: str = "", *, final: bool = True) -> None:
        """Keep `attempt`, whose budget is `limit_bytes`, with a note for the user; nothing is kept of inference."""
        if not attempt.trains:
            return
        reports = self.reports
        if attempt is not self.attempt:
            reports = make_reports(attempt.partitions, attempt.check, self.options, limit_bytes)
            if len(reports) == len(self.reports):
                reports = [replace(new, graph_name=old.graph_name) for new, old in zip(reports, self.reports)]
        notes = (note,) if note else ()
        reports = [replace(r, notes=(*(n for n in r.notes if n != PART_ONLY), *notes)) for r in reports]
        if len(reports) == 1:
            reports = [replace(reports[0], budget_bytes=limit_bytes)]
        self.attempt, self.reports, self.limit_bytes = attempt, reports, limit_bytes
        publish(reports, attempt.partitions, self.options)
        if final:
            documents = tuple(report.to_json() for report in reports)
            self.store.save(self.key, StoredPlan(asdict(attempt.request), limit_bytes, documents))
