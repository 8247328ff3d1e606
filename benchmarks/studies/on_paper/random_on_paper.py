"""Random training programs on a GPU that is not there: are budgets kept, predictions exact, does anything crash?

    python -m studies.on_paper.random_on_paper --programs 200 --device h100 --inner inductor
    python -m studies.on_paper.random_on_paper --first 17 --programs 1     # one program, and its whole error

The programs are those of `random_programs.py`, each trained by a plain step.  One that does not run on fake tensors
without the backend either, since it asks for values, says nothing and is counted apart.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.append(str(Path(__file__).parents[3] / "tests"))

from end_to_end.random_programs import Program, draw
from remat_compiler.errors import PaperFailure
from remat_compiler.fitting.made_step import made_step
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.paper_step import fit_on_paper, on_paper
from remat_compiler.fitting.request import FitRequest

log = logging.getLogger("remat_compiler")
BUDGETS = (None, 0.8, 0.6, "min")
CHUNK = 10
"""Programs that one process tries; one that dies takes the others of its chunk with it."""

Row = dict[str, Any]


def rows(device: str, inner: str, seeds: Sequence[int], verbose: bool) -> list[Row]:
    """What became of each program under each budget; for a process that sees no GPU."""
    return [row for seed in seeds for row in _tried(device, inner, draw(seed), verbose)]


def _tried(device: str, inner: str, program: Program, verbose: bool) -> list[Row]:
    options = {"inner": inner, "max_slowdown": None, "on_infeasible": "min", "time_limit": 0.05}
    request = FitRequest(partial(_made, program), device, None, (), None, "SGD", options)
    found: list[Row] = []
    whole = 0
    for budget in BUDGETS:
        row: Row = {"seed": program.seed, "budget": budget, "verdict": "kept", "exact": None}
        found.append(row)
        warned = _Warned()
        log.addHandler(warned)
        try:
            (point,) = fit_on_paper(replace(request, budget=budget)).points
        except Exception as error:  # whatever it is, it is what the trial is about
            if verbose:
                raise
            row["verdict"] = "as eager" if _fails_in_eager(request) else f"crash: {type(error).__name__}: {error}"[:300]
            continue
        finally:
            log.removeHandler(warned)
        peak = point.budgeted_bytes
        whole = whole or peak
        row |= {"peak_bytes": peak, "planned_bytes": point.planned_bytes}
        if point.planned_bytes is None:
            row["verdict"] = "not one graph"
        else:
            row["exact"] = point.planned_bytes == peak
            if isinstance(budget, float) and peak > budget * whole:
                row["verdict"] = "over, warned" if warned.of_budget else "over in silence"
    return found


class _Warned(logging.Handler):
    """Hears whether a user is told that a budget is not kept."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.of_budget = False

    def emit(self, record: logging.LogRecord) -> None:
        self.of_budget |= "memory_budget" in record.getMessage()


def _made(program: Program) -> tuple[Any, ...]:
    loaded = program.load()
    _, inputs = loaded.inputs()
    # Made anew without what they were computed from, since each step runs its backward; one that is passed twice stays
    # one.
    fresh = {
        id(value): value.detach().requires_grad_(value.requires_grad)
        for value in inputs
        if isinstance(value, torch.Tensor)
    }
    return _OnDevice(loaded.model()), tuple(fresh.get(id(value), value) for value in inputs), _first


class _OnDevice(torch.nn.Module):
    """A program's model, which names no device where it makes tensors on the way."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Any) -> Any:
        with torch.device("cuda"):
            return self.model(*inputs)


def _first(outputs: Any) -> Any:
    return outputs[0]


def _fails_in_eager(request: FitRequest) -> bool:
    with on_paper(request.device):
        step = made_step(request, None)
        try:
            step.model(*step.inputs)[0].backward()
        except Exception:  # whatever it is: the backend need not do better
            return True
    return False


def main() -> None:
    """Try the programs, a chunk at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--device", default="h100")
    parser.add_argument("--inner", default="inductor", choices=["eager", "inductor"])
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    seeds = range(arguments.first, arguments.first + arguments.programs)
    found: list[Row] = []
    for start in range(0, len(seeds), CHUNK):
        chunk = seeds[start : start + CHUNK]
        try:
            new = call_in_process(rows, arguments.device, arguments.inner, chunk, len(seeds) == 1)
        except PaperFailure as error:
            new = [{"seed": chunk[0], "budget": None, "verdict": f"died: {error}", "exact": None}]
        found += new
        bad = [row for row in new if row["exact"] is False or row["verdict"].startswith(("crash", "died", "over in"))]
        for row in bad:
            print(row, flush=True)
        print(f"{chunk[0]} to {chunk[-1]}: {len(new)} tried, {len(bad)} to look at", flush=True)
    counts = Counter(row["verdict"].partition(":")[0] for row in found)
    exact = Counter(row["exact"] for row in found)
    print(", ".join(f"{verdict} {count}" for verdict, count in counts.most_common()))
    print(f"exact to the byte {exact[True]}, not exact {exact[False]}")
    if arguments.json:
        arguments.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
