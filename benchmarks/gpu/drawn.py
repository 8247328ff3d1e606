"""Questions of programs drawn at random: the same numbers as eager, within the budget, on the device."""

from __future__ import annotations

from dataclasses import replace

from end_to_end.judged_programs import BAD, Verdict, judge
from end_to_end.random_programs import draw, trains
from gpu.asked import Asked

BUDGETS = (0.6, "min")
"""What each program is run under, one by turns."""
NUMBERS = BAD - {Verdict.SILENT}
"""Verdicts that must not be; peaks are told, since a library's workspaces count among what is measured."""


def drawn(asked: Asked, inner: str, first: int, programs: int, step: int) -> None:
    """Programs of some seeds under budgets in turns, those that eager trains on the device.

    Args:
        asked: What is asked.
        inner: The inner compiler.
        first: Seed of the first program.
        programs: How many.
        step: From seed to seed.
    """
    for number, seed in enumerate(range(first, first + programs * step, step)):
        program = replace(draw(seed), device=asked.device)
        if not trains(program):
            continue
        with asked.row(str(seed)) as row:
            budget = BUDGETS[number % len(BUDGETS)]
            (trial,) = judge(program, (budget,), inner)
            figures = {"measured": trial.measured_bytes, "predicted": trial.predicted_bytes, "exact": trial.exact}
            row.figures |= {"budget": budget, "verdict": trial.verdict.name, **figures}
            if trial.verdict in BAD:
                print(f"# {budget}: {trial.verdict.name} {trial.detail}\n{program.source}", flush=True)
            row.expect(trial.verdict not in NUMBERS, trial.detail)
