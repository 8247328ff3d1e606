"""The search for the largest batch whose step fits: by plans, then by the step itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
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
    _expandable: Forecast | None = None

    def run(self) -> MaxBatch:
        """The answer."""
        while asked := next_numbers(self._slack(), num_processes()):
            self._ask_next(asked)
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
                told = beyond and replace(beyond, outline=None)
                return MaxBatch(batch, step.budget_bytes, step.report, told, self._expandable_batch(batch, beyond))
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

    def _ask_next(self, batches: Sequence[int]) -> None:
        """Plan for these batches; where plans foresee the answer, compile that, and plan for the next larger one."""
        limit = GROWTH * max(self.known, default=0)
        seen = self._foreseen(limit)
        low, high = bracket(self._slack())
        # A step is not compiled where plans only say that there is more room.
        if seen is None or not low < seen.batch < (limit if high is None else high):
            self._answer([Question(batch) for batch in batches])
            return
        beyond = [Question(batch) for batch in (seen.batch + 1,) if batch not in self.known]
        with ThreadPoolExecutor(1) as beside:
            # It takes a while, and this process has nothing else to do meanwhile.
            larger = beside.submit(self._foreseen, limit, expandable=True) if seen.in_pieces else None
            self._answer([Question(seen.batch, True, seen.budget_bytes), *beyond])
        self._expandable = larger.result() if larger else None

    def _foreseen(self, limit: int, *, expandable: bool = False) -> Forecast | None:
        """The largest batch up to `limit` with room, by plans of steps that were not captured.

        `expandable` asks for an allocator whose segments expand, whatever the user has set.
        """
        outlines = [room.outline for room in list(self.known.values()) if room.outline is not None]
        if len(outlines) < 2:
            return None
        known = [
            replace(
                one,
                left_bytes=int(one.left_bytes / self.scale),
                usable_bytes=None if one.usable_bytes is None else int(one.usable_bytes / self.scale),
                expandable=one.expandable or expandable,
            )
            for one in outlines
        ]
        with nullcontext() if expandable else progress("looking for the largest batch by plans"):
            return forecast(known, limit, with_budget=not expandable)

    def _below(self, batch: int) -> tuple[int, int | None]:
        """What to try after `batch` did not fit, and under which budget."""
        least = max((n for n, step in self.tried.items() if not step.over), default=1)
        seen = self._foreseen(batch - 1)
        if seen is not None and seen.batch > least:
            return seen.batch, seen.budget_bytes
        return max(least, min(estimated(self._planned_slack()), batch - 1)), None

    def _expandable_batch(self, batch: int, beyond: Room | None) -> int | None:
        """The largest batch with expandable segments, where those of the user are in the way."""
        seen = self._expandable
        if seen is None or seen.batch <= batch or beyond is None or not beyond.over_bytes:
            return None
        return seen.batch
