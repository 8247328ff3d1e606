"""The search for the largest batch whose step fits: by plans, then by the step itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from remat_compiler.fitting.forecast import Forecast, forecast
from remat_compiler.fitting.largest import GROWTH, bracket, estimated, next_numbers
from remat_compiler.fitting.max_batch_report import MaxBatch
from remat_compiler.fitting.room import Confirmed, Question, Room
from remat_compiler.fitting.side_by_side import num_processes
from remat_compiler.progress import progress


@dataclass(slots=True)
class Search:
    """The largest batch that has room.

    Attributes:
        ask: Answers questions, as many at a time as there are processes: one of plans by a `Room`, one of the step
            itself by a `Confirmed`.
        known: What plans said.
        tried: Steps that were compiled and measured.
        scale: How much more steps took than was planned for them.
    """

    ask: Callable[[Sequence[Question]], list[Room | Confirmed]]
    known: dict[int, Room] = field(default_factory=dict)
    tried: dict[int, Confirmed] = field(default_factory=dict)
    scale: float = 1.0

    def run(self) -> MaxBatch:
        """The answer."""
        while asked := next_numbers(self._slack(), num_processes()):
            self._answer(self._foreseen_questions() or [Question(batch) for batch in asked])
            if any(step.over for step in self.tried.values()):
                break
        found, _ = bracket(self._slack())
        # At least the smallest step is measured, if only to show why it does not fit.
        batch, budget = max([found, 1, *self.tried]), None
        while True:
            if batch not in self.tried:
                self._answer([Question(batch, True, budget, self.scale)])
            step = self.tried[batch]
            if not step.over:
                beyond = self.known.get(batch + 1)
                larger = self._expandable(batch, beyond)
                told = beyond and replace(beyond, outline=None)
                return MaxBatch(batch, step.budget_bytes, step.report, told, larger)
            if batch == 1:
                return MaxBatch(0, None, step.report)
            # Emitted code, or the allocator, takes more than was planned: as much more, it is taken, at other batches.
            self.scale *= 1 + step.over
            batch, budget = self._below(batch)

    def _answer(self, questions: Sequence[Question]) -> None:
        """Ask, and keep the answers."""
        for question, answer in zip(questions, self.ask(questions)):
            if isinstance(answer, Room):
                self.known[question.batch] = answer
            else:
                self.tried[question.batch] = answer

    def _slack(self) -> dict[int, int]:
        """What is left at each batch: what plans say, and whether the step itself had room."""
        return self._planned_slack() | {batch: -1 if step.over else 0 for batch, step in self.tried.items()}

    def _planned_slack(self) -> dict[int, int]:
        return {batch: room.slack_bytes(self.scale) for batch, room in self.known.items()}

    def _foreseen_questions(self) -> list[Question]:
        """The batch that plans foresee, to be compiled, and the next larger one, to be planned; none if none can."""
        limit = GROWTH * max(self.known, default=0)
        seen = self._foreseen(limit)
        low, high = bracket(self._slack())
        # A step is not compiled where plans only say that there is more room.
        if seen is None or not low < seen.batch < (limit if high is None else high):
            return []
        return [Question(seen.batch, True, seen.budget_bytes)] + [
            Question(batch) for batch in (seen.batch + 1,) if batch not in self.known
        ]

    def _foreseen(self, limit: int, *, expandable: bool | None = None) -> Forecast | None:
        """The largest batch up to `limit` with room, by plans of steps that were not captured."""
        outlines = [room.outline for room in self.known.values() if room.outline is not None]
        if len(outlines) < 2:
            return None
        known = [
            replace(
                one,
                left_bytes=int(one.left_bytes / self.scale),
                usable_bytes=int(one.usable_bytes / self.scale),
                expandable=one.expandable if expandable is None else expandable,
            )
            for one in outlines
        ]
        with progress("looking for the largest batch by plans"):
            return forecast(known, limit)

    def _below(self, batch: int) -> tuple[int, int | None]:
        """What to try after `batch` did not fit, and under which budget."""
        least = max((n for n, step in self.tried.items() if not step.over), default=1)
        seen = self._foreseen(batch - 1)
        if seen is not None and seen.batch > least:
            return seen.batch, seen.budget_bytes
        return max(least, min(estimated(self._planned_slack()), batch - 1)), None

    def _expandable(self, batch: int, beyond: Room | None) -> int | None:
        """The largest batch with expandable segments, where those of the user are in the way."""
        if beyond is None or not beyond.over_bytes or beyond.outline is None or beyond.outline.expandable:
            return None
        seen = self._foreseen(GROWTH * max(self.known), expandable=True)
        return seen.batch if seen is not None and seen.batch > batch else None
