"""Rows of `kept.py` and of the study on paper: one model under one budget, and how it is shown."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One model under one budget; all sizes in bytes."""

    model: str
    inner: str
    asked: str
    budget_bytes: int
    before_bytes: int
    estimated_bytes: int
    checked_bytes: int
    measured_bytes: int
    added_percent: float
    planner: str
    seconds: float

    @property
    def kept(self) -> bool:
        """Whether the measured peak stays within the budget."""
        return self.measured_bytes <= self.budget_bytes


COLUMNS = ("budget", "estimate", "checked", "measured")
HEADER = f"{'model':15} {'inner':8} {'asked':>6} {' '.join(f'{c:>9}' for c in COLUMNS)}  kept  off B   used  added"


def line(row: Row) -> str:
    """The row as text, sizes in MB."""
    mb = [f"{b / 1e6:9.3f}" for b in (row.budget_bytes, row.estimated_bytes, row.checked_bytes, row.measured_bytes)]
    used = row.measured_bytes / row.budget_bytes if row.budget_bytes else 0.0
    off = row.measured_bytes - row.checked_bytes
    return (
        f"{row.model:15} {row.inner:8} {row.asked:>6} {' '.join(mb)}  {'yes ' if row.kept else 'NO  '} "
        f"{off:6d} {used:6.3f} {row.added_percent:5.1f} %  {row.planner}, {row.seconds:.0f} s"
    )
