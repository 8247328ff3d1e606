"""Candidates of a search for numbers of chunks: each graph is made once, and planned at most once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from remat_compiler.partition.candidate import WHOLE, Candidate, Chunks, Within
from remat_compiler.partition.defects import NO_DEFECT, warn_of_chunks
from remat_compiler.partition.result import NoPlan, Partition
from remat_compiler.simulate.timeline import simulate

FEW = 4
"""The first number of chunks that is tried."""


@dataclass(slots=True)
class Candidates:
    """Graphs in chunks and what became of them.  They go by the number of chunks that they were asked for in.

    Attributes:
        budget_bytes: The budget.
        in_chunks: Gives the candidates.
        candidates: All so far.
        ready: Those that the search has come to, the fewest chunks first.
        made: Those that are planned.
        refusals: Those that were refused.
        failed: Those in chunks whose planning is a defect.
        within: What `within_bytes` found.
    """

    budget_bytes: int
    in_chunks: Callable[[Chunks], Candidate]
    candidates: dict[Chunks, Candidate] = field(default_factory=dict)
    ready: list[Chunks] = field(default_factory=list)
    made: dict[Chunks, Partition] = field(default_factory=dict)
    refusals: dict[Chunks, NoPlan] = field(default_factory=dict)
    failed: set[Chunks] = field(default_factory=set)
    within: dict[tuple[Chunks, Within], int] = field(default_factory=dict)

    @property
    def whole(self) -> Candidate:
        """The one of the graph as it is."""
        return self.candidate(WHOLE)

    def fits(self, chunks: Chunks) -> bool:
        """Whether there is a plan in so many chunks that fits."""
        return chunks in self.made and self.made[chunks].peak_bytes <= self.budget_bytes

    def partition(self, chunks: Chunks) -> Partition:
        """The partition in so many chunks, beside the whole step; `NoPlan` if it was refused."""
        if chunks in self.refusals:
            raise self.refusals[chunks]
        before = self.made[WHOLE].before if WHOLE in self.made else self.whole.before
        return replace(self.made[chunks], before=before, stages=self._stages)

    def candidate(self, chunks: Chunks) -> Candidate:
        """The graph in so many chunks."""
        if chunks not in self.candidates:
            self.candidates[chunks] = self.in_chunks(chunks)
        return self.candidates[chunks]

    def add(self, chunks: Chunks) -> bool:
        """Have the graph in so many chunks, too; whether it is another one."""
        # The whole one first: what fails there is no defect of chunks.
        fewer = [self.candidate(one).chunked for one in self.ready]
        try:
            candidate = self.candidate(chunks)
        except NO_DEFECT:
            raise
        except Exception as error:
            warn_of_chunks(chunks, error)
            return False
        # Few rows may be in as many chunks as they can be.
        if candidate.chunked in fewer:
            return False
        self.ready.append(chunks)
        return True

    def plan_if_it_may_fit(self, chunks: Chunks) -> None:
        """Plan the graph in so many chunks unless its floor is above the budget."""
        if self.candidate(chunks).floor_bytes <= self.budget_bytes:
            self.plan(chunks)

    def plan(self, chunks: Chunks) -> None:
        """Plan the graph in so many chunks, unless it is planned."""
        if self.is_planned(chunks):
            return
        candidate, whole_ns = self.candidate(chunks), None if chunks == WHOLE else self.whole.step_ns
        try:
            self.made[chunks] = candidate.planned(whole_ns)
        except NoPlan as refused:
            self.refusals[chunks] = refused
        except NO_DEFECT:
            raise
        except Exception as error:
            # There is another way, unlike for the whole.
            if chunks == WHOLE:
                raise
            self.failed.add(chunks)
            warn_of_chunks(chunks, error)

    def is_planned(self, chunks: Chunks) -> bool:
        """Whether it was tried to plan the graph in so many chunks."""
        return chunks in self.made or chunks in self.refusals or chunks in self.failed

    def needed_bytes(self, chunks: Chunks) -> int | None:
        """The smallest peak in so many chunks; `None` as long as none is known."""
        if chunks in self.made:
            return self.made[chunks].peak_bytes
        refusal = self.refusals.get(chunks)
        # Without a plan, a refusal knows no peak.
        return None if refusal is None or refusal.result.plan is None else refusal.needed_bytes

    def within_bytes(self, chunks: Chunks, within: Within) -> int:
        """Bytes of values within losses, or whole layers, that are there at the peak of the plan of these chunks."""
        if (chunks, within) not in self.within:
            self.within[chunks, within] = self._find_within_bytes(chunks, within)
        return self.within[chunks, within]

    def _find_within_bytes(self, chunks: Chunks, within: Within) -> int:
        made = self.made.get(chunks)
        if made is not None:
            problem, timeline = made.problem, made.graphs.timeline
        else:
            problem, refused = self.refusals[chunks].problem, self.refusals[chunks].result.plan
            assert refused is not None
            timeline = simulate(problem.graph, problem.costs, refused)
        try:
            return self.candidate(chunks).within_bytes(problem, timeline, within)
        except NO_DEFECT:
            raise
        except Exception as error:
            warn_of_chunks(Chunks(FEW) if within is Within.LOSSES else Chunks(1, FEW), error)
            return 0

    @property
    def _stages(self) -> tuple[tuple[str, float], ...]:
        """Seconds of each stage, of all candidates together."""
        total: dict[str, float] = {}
        for one in self.candidates.values():
            for stage, seconds in one.times:
                total[stage] = total.get(stage, 0.0) + seconds
        return tuple(total.items())
