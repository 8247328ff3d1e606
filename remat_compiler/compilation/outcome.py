"""What a graph ends with: told to the user, and kept for the next process.

On a hit in the caches of the inner compiler the partitioner never runs.  So it is kept, for every graph and every way
of compiling it, which request was final, so that the next process asks for the same and hits, and what was reported.
What was kept says what it answers; it may speed a compilation up, and never replaces what the user asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.graph_key import PlanKey
from remat_compiler.compilation.publish import checked_reports, make_reports, publish
from remat_compiler.ir.json_folder import SUFFIX, JsonFolder
from remat_compiler.options import BudgetKind, RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.report.plan_report import PlanReport, StepFigures

FOLDER, FORMAT_VERSION, MOST_FILES, MOST_BYTES = "plans", 4, 4_096, 64_000_000
DECIDED = ("budget_bytes", "fraction", "take_smallest", "free_layout", "early_loops", "between_bytes")
"""What a search decides of a request; the rest is what the user asked for."""
PART_ONLY = "the step goes on in other graphs: this one has a part of the budget until all of them are known"


@dataclass(frozen=True, slots=True)
class Earlier:
    """What an earlier compilation of the graph ended with.

    Attributes:
        key: What decided it.
        request: The last request.
        limit_bytes: The user's budget in bytes; `None` for none.
        reports: The report of each joint graph.
    """

    key: PlanKey
    request: PartitionRequest
    limit_bytes: int | None
    reports: tuple[PlanReport, ...]


@cache
def kept_outcomes(directory: Path) -> JsonFolder[Earlier]:
    """What compilations ended with, by the digests of their keys."""
    return JsonFolder(directory / FOLDER, Earlier, "outcome", FORMAT_VERSION, MOST_FILES, MOST_BYTES)


class Outcome:
    """Reports and keeps what a graph ends with; a later outcome takes the place of an earlier one.

    Args:
        options: The user's options.
        directory: The cache folder; `None` keeps nothing.
        key: What decides the outcome.
    """

    def __init__(self, options: RematOptions, directory: Path | None, key: PlanKey) -> None:
        self.options = options
        self.kept = None if directory is None else kept_outcomes(directory)
        self.key = key
        self.attempt: Attempt | None = None
        self.limit_bytes: int | None = None
        self.reports: list[PlanReport] = []
        self._native_peak_bytes: int | None = None

    def earlier(self, first: PartitionRequest) -> Earlier | None:
        """What an earlier compilation under the key ended with; `None`, warned of, where that is not what is asked now.

        Args:
            first: What this compilation aims for at first.  Of the earlier one's request only that is taken which a
                search decides, and its limit is no more than the user's.
        """
        found = None if self.kept is None else self.kept.read(self.key.digest)
        if self.kept is None or found is None:
            return None
        asked = replace(
            first,
            **{name: getattr(found.request, name) for name in DECIDED},
            planner=found.request.planner if first.fraction == 1.0 else first.planner,
        )
        if found.key != self.key or found.request != asked:
            path = self.kept.path / f"{self.key.digest}{SUFFIX}"
            self.kept.warn(self.key.digest, f"ignored {path}, which answers another question; it is planned anew")
            return None
        if len(found.reports) == 1:
            self._native_peak_bytes = found.reports[0].peak_before_bytes
        limit, whole = found.limit_bytes, first.budget_bytes
        if self.options.memory_budget.kind in (BudgetKind.BYTES, BudgetKind.AUTO) and whole is not None:
            limit = whole if limit is None else min(limit, whole)
        return replace(found, limit_bytes=limit)

    def add(self, attempt: Attempt, note: str) -> None:
        """Report one more variant of the graph, for other sizes."""
        reports = make_reports(attempt.partitions, attempt.check, self.options, self.limit_bytes)
        reports = [replace(report, notes=(*report.notes, note)) for report in reports]
        publish(reports, attempt.partitions, self.options)

    def take_over(self, attempt: Attempt, earlier: Earlier) -> None:
        """What a compiler's cache had."""
        self.attempt, self.reports = attempt, checked_reports(earlier.reports, attempt.check)
        publish(self.reports, (), self.options)

    def keep(
        self,
        attempt: Attempt,
        limit_bytes: int | None,
        note: str = "",
        step: StepFigures | None = None,
        *,
        final: bool = True,
    ) -> None:
        """Keep `attempt`, whose budget is `limit_bytes`, with what the user is told; nothing is kept of inference."""
        if not attempt.trains:
            return
        reports = self.reports
        if attempt is not self.attempt:
            native = self._native_peak_bytes if attempt.native is None else attempt.native.peak_bytes
            reports = make_reports(attempt.partitions, attempt.check, self.options, limit_bytes, native)
            if len(reports) == len(self.reports):
                reports = [replace(new, graph_name=old.graph_name) for new, old in zip(reports, self.reports)]
        notes = (note,) if note else ()
        reports = [replace(r, step=step, notes=(*(n for n in r.notes if n != PART_ONLY), *notes)) for r in reports]
        if len(reports) == 1:
            reports = [replace(reports[0], budget_bytes=limit_bytes)]
        self.attempt, self.reports, self.limit_bytes = attempt, reports, limit_bytes
        publish(reports, attempt.partitions, self.options)
        if final and self.kept is not None and attempt.failure is None:
            self.kept.write(self.key.digest, Earlier(self.key, attempt.request, limit_bytes, tuple(reports)))
