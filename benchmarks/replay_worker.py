"""The half of `replay` that runs under another revision: it plans, in words that every revision understands.

It reads a request as JSON from standard input, ``{"planner", "positions", "questions": [[path, budgets or null]]}``,
and prints a line of JSON for each plan: path, budget, status, peak, added time, and a digest of the plan.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from remat_compiler.ir.json_form import loads
from remat_compiler.ir.problem import RematProblem
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll
from remat_passes.registry import make_planner


def answer(request: dict[str, Any]) -> None:
    """Print a line for each plan that `request` asks for; budgets of `None` mean all positions."""
    planner = make_planner(request["planner"])
    for path, asked in request["questions"]:
        problem = replace(loads(RematProblem, gzip.decompress(Path(path).read_bytes())), reference=None)
        for budget in budgets_at(problem, request["positions"]) if asked is None else asked:
            result = planner.plan(replace(problem, budget_bytes=budget))
            steps = None if result.plan is None else [result.plan.boundary, *result.plan.steps]
            digest = hashlib.sha256(json.dumps(steps).encode()).hexdigest()
            line = [path, budget, result.status.value, result.peak_bytes, result.added_ns, digest]
            print(json.dumps(line), flush=True)


def budgets_at(problem: RematProblem, positions: list[float]) -> list[int]:
    """Budgets between the smallest peak that `auto` finds and the peak of saving everything."""
    low = Auto().smallest_peak(replace(problem, budget_bytes=0)).peak_bytes
    high = SaveAll().plan(problem).peak_bytes
    return list(dict.fromkeys(low + round(position * (high - low)) for position in positions))


if __name__ == "__main__":
    answer(json.load(sys.stdin))
