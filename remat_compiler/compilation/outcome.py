"""The outcome of compiling a graph: reported to the user, and kept for the next process.

On a hit in the caches of the inner compiler the partitioner never runs.  So the final request and the reports are kept
for every graph and every way of compiling it: the next process makes the same request, hits, and has the reports.  An
entry holds the key and the request that it answers; it may speed a compilation up, and never replaces what the user
asks for.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.graph_key import PlanKey
from remat_compiler.compilation.publish import checked_reports, make_reports, publish
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.ir.json_folder import SUFFIX, JsonFolder
from remat_compiler.log import logger_of
from remat_compiler.options import RematOptions
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.report.plan_report import PlanReport, StepFigures
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.units import format_bytes

logger = logger_of(__name__)

FOLDER, FORMAT_VERSION, MOST_FILES, MOST_BYTES = "plans", 7, 4_096, 64_000_000
BUCKETS = (
    "the buckets of DistributedDataParallel hold all gradients once more, %s, resident beside the budget; with "
    "gradient_as_bucket_view=True they are the gradients"
)
PART_ONLY = "the step goes on in other graphs: this one has a part of the budget until all of them are known"


@dataclass(frozen=True, slots=True)
class StoredOutcome:
    """The outcome of an earlier compilation of the graph.

    Attributes:
        key: Everything that decided it.
        request: The last request.
        limit_bytes: The user's budget in bytes; `None` for none.
        reports: The report of each joint graph.
        native: See `Attempt`.
    """

    key: PlanKey
    request: PartitionRequest
    limit_bytes: int | None
    reports: tuple[PlanReport, ...]
    native: GraphMemory | None = None

    @property
    def of_several(self) -> bool:
        """Whether the graph was planned together with others, or for several calls in a step."""
        return any(one.step is not None for one in self.reports)


@cache
def kept_outcomes(directory: Path) -> JsonFolder[StoredOutcome]:
    """The stored outcomes of a cache folder, by the digests of their keys."""
    return JsonFolder(directory / FOLDER, StoredOutcome, "outcome", FORMAT_VERSION, MOST_FILES, MOST_BYTES)


class Outcome:
    """Reports and keeps the outcome of a graph; a later one replaces an earlier one.

    Args:
        options: The user's options.
        directory: The cache folder; `None` keeps nothing.
        key: Everything that decides the outcome.
        workspace: The table that plans and checks take workspaces from.
    """

    def __init__(
        self, options: RematOptions, directory: Path | None, key: PlanKey, workspace: WorkspaceTable | None = None
    ) -> None:
        self.options = options
        self.kept = None if directory is None else kept_outcomes(directory)
        self.key = key
        self.workspace = workspace
        self.attempt: Attempt | None = None
        self.limit_bytes: int | None = None
        self.reports: list[PlanReport] = []
        self._native_peak_bytes: int | None = None
        self._told = self._told_of_seen = False
        if workspace is not None:
            workspace.learnt = self._tell_seen
        # What is told after Dynamo is done with the graph still belongs to this compilation.
        self.compilation = torch_compat.current_compilation()
        buckets = torch_compat.bucket_bytes()
        self._beside = (BUCKETS % format_bytes(buckets),) if buckets else ()

    def earlier(self, first: PartitionRequest) -> StoredOutcome | None:
        """The outcome of an earlier compilation under the key; `None`, with a warning, if it answers another request.

        Args:
            first: The first request of this compilation.  Only the fields that a search decides are taken from the
                earlier request, and the earlier limit is lowered to the user's.
        """
        found = None if self.kept is None else self.kept.read(self.key.digest)
        if self.kept is None or found is None:
            return None
        # The earlier request must be this one but for what a search decides.  A fraction of 1.0 became a request
        # without a budget, for which the search chooses the planner (`PartitionRequest.without_budget`).
        asked = first.decided_as(found.request)
        if first.fraction == 1.0:
            asked = replace(asked, planner=found.request.planner)
        # The file name is a digest of the key; the key itself shows a file that was copied or edited.
        if found.key != self.key or found.request != asked:
            path = self.kept.path / f"{self.key.digest}{SUFFIX}"
            self.kept.warn(self.key.digest, f"ignored {path}, which answers another question; it is planned anew")
            return None
        # The step without a budget is not emitted again only to report its peak.
        if len(found.reports) == 1:
            self._native_peak_bytes = found.reports[0].peak_before_bytes
        limit, whole = found.limit_bytes, first.budget_bytes
        # Other kinds have no bytes before the step without a budget is known.
        if whole is not None and not self.options.memory_budget.minimises:
            limit = whole if limit is None else min(limit, whole)
        return replace(found, limit_bytes=limit)

    def add(self, attempt: Attempt, note: str) -> None:
        """Report one more variant of the graph, for other sizes."""
        # Not kept: the stored outcome is that of the first variant.
        reports = make_reports(attempt.partitions, attempt.check, self.options, self.limit_bytes)
        reports = [replace(report, notes=(*report.notes, note)) for report in reports]
        publish(reports, attempt.partitions, self.options, self.compilation)

    def take_over(self, attempt: Attempt, earlier: StoredOutcome) -> None:
        """Report an attempt whose code came from a compiler's cache, from the reports kept with it."""
        self.attempt, self.reports = attempt, checked_reports(earlier.reports, attempt.check)
        self._tell_unknown(attempt)
        publish(self.reports, (), self.options, self.compilation)

    def keep(
        self,
        attempt: Attempt,
        limit_bytes: int | None,
        note: str = "",
        step: StepFigures | None = None,
        *,
        final: bool = True,
    ) -> None:
        """Report and keep `attempt`, whose budget is `limit_bytes`; inference is neither reported nor kept."""
        if not attempt.trains:
            return
        reports = self.reports
        # The same code comes again once its step is known, or another step that runs it, then without its partitions:
        # only the budget, the step and the notes change.
        if self.attempt is None or attempt.compiled is not self.attempt.compiled:
            native = self._native_peak_bytes if attempt.native is None else attempt.native.peak_bytes
            reports = make_reports(attempt.partitions, attempt.check, self.options, limit_bytes, native)
            # Reports of one name replace each other, so the list shows each graph once.
            if len(reports) == len(self.reports):
                reports = [replace(new, graph_name=old.graph_name) for new, old in zip(reports, self.reports)]
        notes = (*self._beside, note) if note else self._beside
        # Whoever keeps a graph that still has only a part of the budget says so again.
        again = (PART_ONLY, *self._beside)
        reports = [replace(r, step=step, notes=(*(n for n in r.notes if n not in again), *notes)) for r in reports]
        # The budget is one for all joint graphs, so it is that of a report only if there is one.
        if len(reports) == 1:
            reports = [replace(reports[0], budget_bytes=limit_bytes)]
        self.attempt, self.reports, self.limit_bytes = attempt, reports, limit_bytes
        self._tell_unknown(attempt)
        publish(reports, attempt.partitions, self.options, self.compilation)
        # A failure to plan is not kept: the next process tries again.  Nor is what gradients from before the step led
        # to: the next process may accumulate none.
        final = final and (step is None or not step.gradient_bytes)
        # Nor is what is known too low beside a profiler: the next process, which measures it, would be over that limit.
        final = final and (self.workspace is None or not self.workspace.lacks_figures)
        if final and self.kept is not None and attempt.failure is None:
            stored = StoredOutcome(self.key, attempt.request, limit_bytes, tuple(reports), attempt.native)
            self.kept.write(self.key.digest, stored)

    @property
    def _is_limited(self) -> bool:
        """Whether the budget is less than all, of which there is nothing to tell."""
        budget = self.options.memory_budget
        # All of the peak without a budget is what torch's own partition takes, too.
        return not budget.minimises and budget.part != 1.0

    def _tell_unknown(self, attempt: Attempt) -> None:
        """Warn, once, of a budget that is kept by the plan alone, since the peak of what was compiled is not known."""
        # Of changing sizes, and of graphs that could not be planned, something else is told.
        other = bool(attempt.request.sizes) or attempt.failure is not None
        if self._told or not attempt.check.unknown or other or not self._is_limited:
            return
        self._told = True
        logger.warning(
            "memory_budget=%s is kept by the plan of a graph only, and the step may exceed it: what was compiled could "
            "not be checked, since %s; leave room for what happens in there",
            self.options.memory_budget,
            attempt.check.unknown,
        )

    def _tell_seen(self, operator: str) -> None:
        """Warn, once, that the step exceeds the budget by what an operator took inside as the program ran it."""
        if self.attempt is None or self.workspace is None or self.limit_bytes is None:
            return
        if self._told_of_seen or not self._is_limited:
            return
        known = self.workspace.known
        beside = self.attempt.check.beside_unmeasured.items()
        peak = max((live + known.get(key, 0) for key, live in beside), default=0)
        if peak > self.limit_bytes:
            self._told_of_seen = True
            logger.warning(
                "the step takes %s, over memory_budget=%s (%s): how much %s takes inside was not known when it was "
                "compiled; what is compiled from now on is planned for it, as in the next process",
                format_bytes(peak),
                self.options.memory_budget,
                format_bytes(self.limit_bytes),
                operator,
            )
