"""The largest batch whose step fits: as data, and as text for people."""

from __future__ import annotations

import json
from dataclasses import dataclass

from remat_compiler.devices.allocator_setting import EXPANDABLE
from remat_compiler.fitting.fit_report import FitReport, gib
from remat_compiler.fitting.room import Room
from remat_compiler.report.notebook import Shown


@dataclass(frozen=True, slots=True)
class MaxBatch(Shown):
    """The answer.

    Attributes:
        batch: The largest batch; 0 if not even one fits.
        budget_bytes: ``memory_budget`` in bytes under which it fits, `None` if it is a fraction.
        report: The step at that batch; at batch 1 if it does not fit.
        next: What planning says of the next larger batch; `None` where that was not asked.
        expandable_batch: The largest batch with expandable segments by planning, where that is larger.
    """

    batch: int
    budget_bytes: int | None
    report: FitReport
    next: Room | None = None
    expandable_batch: int | None = None

    def to_json(self) -> str:
        """All figures, for tools."""
        beyond = self.next and {
            "batch": self.next.batch,
            "left_bytes": self.next.left_bytes,
            "needed_bytes": self.next.needed_bytes,
            "over_bytes": self.next.over_bytes,
        }
        record = {"max_batch": self.batch, "budget_bytes": self.budget_bytes, "next": beyond}
        more = {"expandable_batch": self.expandable_batch}
        return json.dumps({**record, **more, **json.loads(self.report.to_json())}, indent=1)

    def __str__(self) -> str:
        if not self.batch:
            return f"not even 1 fits\n{self.report}"
        under = "" if self.budget_bytes is None else f', with options={{"memory_budget": {self.budget_bytes}}}'
        lines = [f"the largest is {self.batch}{under}", "", *str(self.report).splitlines()]
        if self.next is not None and self.next.slack_bytes() < 0:
            lines += ["", f"{self.next.batch} does not fit: {_why_not(self.next)}"]
        if self.expandable_batch is not None:
            lines.append(f"with {EXPANDABLE} planning sees room for {self.expandable_batch}")
        return "".join(f"{line}\n" for line in lines)


def _why_not(room: Room) -> str:
    """Why a step has no room."""
    short = room.needed_bytes - room.left_bytes
    if short > 0:
        return f"its smallest peak is estimated {gib(short)} above the {gib(room.left_bytes)} that are left for it"
    return f"the caching allocator would reserve {gib(room.over_bytes)} more than the device has, as it is in pieces"
