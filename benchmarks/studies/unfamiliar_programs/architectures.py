"""Architectures that nobody tuned for, at tiny sizes: kept, exact, refused, crashed, and how much slower to compile.

    python -m studies.unfamiliar_programs.architectures       # all
    python -m studies.unfamiliar_programs.architectures --models bert,llama --budget 0.7 --inner eager

Each model trains in a process of its own: in eager, under ``aot_eager`` (``inductor`` for that inner compiler), then
under the budget.  Models of timm are named ``timm/resnet18``; they are left out where timm is not installed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import logging
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import remat_compiler
from instruments.architectures import IMAGES, TEXT, TIMM, WithLoss, built
from instruments.measure import measure_step
from instruments.row_process import row_of_process
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget

SECONDS = 240
STEPS = 2


@dataclass(frozen=True, slots=True)
class Row:
    """One model under one budget.

    Attributes:
        model: Its name.
        verdict: ``kept``, ``over, warned``, ``over in silence``, ``refused``, ``wrong``, ``crash``, ``as stock``,
            ``not built`` or ``hangs``.
        budget_bytes: What the budget means.
        predicted_bytes: The report's peak, or 0 where the step is of several graphs.
        measured_bytes: Measured peak.
        graphs: Graphs that were planned.
        stock_seconds: First step under the stock backend.
        seconds: First step under the budget.
        detail: The error, the difference or the warning.
    """

    model: str
    verdict: str
    budget_bytes: int = 0
    predicted_bytes: int = 0
    measured_bytes: int = 0
    graphs: int = 0
    stock_seconds: float = 0.0
    seconds: float = 0.0
    detail: str = ""


@dataclass(slots=True)
class Trained:
    """Gradients after each step, seconds of the first one, peak of another, or the error in place of all."""

    gradients: list[dict[str, Tensor]]
    seconds: float = 0.0
    peak_bytes: int = 0
    error: Exception | None = None


def trained(name: str, backend: Callable[..., Any] | str | None) -> Trained:
    """Some steps of a fresh model."""
    torch._dynamo.reset()
    gc.collect()
    model, inputs = built(name)
    whole = WithLoss(model)
    call: Any = whole if backend is None else torch.compile(whole, backend=backend)
    result = Trained([])
    try:
        for number in range(STEPS):
            started = time.perf_counter()
            _step(whole, call, inputs, number)
            result.seconds = result.seconds or time.perf_counter() - started
            result.gradients.append({n: p.grad.clone() for n, p in whole.named_parameters() if p.grad is not None})
        result.peak_bytes = measure_step(lambda: _step(whole, call, inputs, STEPS), warmup=1).peak_bytes
    except Exception as error:  # whatever it is, it is what the row shows
        result.error = getattr(error, "inner_exception", None) or error
    return result


def _step(model: nn.Module, call: Any, inputs: dict[str, Tensor], number: int) -> None:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(number)
    call(**inputs).backward()


def row_of(name: str, budget: float | str, inner: str) -> Row:
    """Train one model in eager, under the stock backend and under the budget."""
    try:
        built(name)
    except Exception as error:  # the configuration does not take these sizes
        return Row(name, "not built", detail=_brief(error))
    expected = trained(name, None)
    if expected.error is not None:
        return Row(name, "not built", detail=_brief(expected.error))
    stock = trained(name, "aot_eager" if inner == "eager" else "inductor")
    heard: list[str] = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: heard.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("remat_compiler").addHandler(handler)
    options = {"memory_budget": budget, "inner": inner, "max_slowdown": None}
    found = trained(name, partial(remat, options=options))
    return judged(name, budget, expected, stock, found, heard)


def judged(name: str, budget: float | str, expected: Trained, stock: Trained, found: Trained, heard: list[str]) -> Row:
    """The row of a model that eager trains."""
    if found.error is not None:
        refused = isinstance(found.error, InfeasibleBudget)
        verdict = "refused" if refused else "crash" if stock.error is None else "as stock"
        return Row(name, verdict, stock_seconds=stock.seconds, seconds=found.seconds, detail=_brief(found.error))
    reports = remat_compiler.reports()
    alone = len({report.graph_name for report in reports}) == 1
    predicted = reports[-1].peak_bytes if alone else 0
    # Where several graphs share a budget, what stock takes stands for the step without one.
    before = reports[-1].peak_before_bytes if alone else stock.peak_bytes
    allowed = int(budget * before) if isinstance(budget, float) else predicted if budget == "min" else int(budget)
    wrong = _differ(expected, found)
    if wrong:
        alike = stock.error is None and not _differ(stock, found)
        verdict, heard = "as stock" if alike else "wrong", [wrong]
    elif found.peak_bytes <= allowed or not allowed:
        verdict = "kept"
    else:
        verdict = "over, warned" if heard else "over in silence"
    figures = (allowed, predicted, found.peak_bytes, len(reports), stock.seconds, found.seconds)
    return Row(name, verdict, *figures, "; ".join(heard)[:200])


def _differ(expected: Trained, found: Trained) -> str:
    """The first gradient that differs, or nothing; no gradient counts as zeros."""
    for number, (before, after) in enumerate(zip(expected.gradients, found.gradients)):
        for name in {**before, **after}:
            one, other = (step.get(name, torch.zeros(())) for step in (before, after))
            scale = float(one.abs().max()) + 1e-3
            if float((one - other).abs().max()) > 1e-3 * scale:
                return f"step {number}: gradient of {name}"
    return ""


def _brief(error: BaseException) -> str:
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"


def row_apart(name: str, budget: str, inner: str) -> Row:
    """The same in another process."""
    command = ["-m", "studies.unfamiliar_programs.architectures", "--row", name, "--budget", budget, "--inner", inner]
    try:
        found, why = row_of_process(command, {"KINETO_LOG_LEVEL": "99", "HF_HUB_OFFLINE": "1"}, SECONDS)
    except subprocess.TimeoutExpired:
        return Row(name, "hangs", detail=f"took over {SECONDS} s")
    return Row(name, "crash", detail=why) if found is None else Row(**found)


def line(row: Row) -> str:
    """The row as text; bytes in KiB."""
    figures = " ".join(f"{b / 1024:9.1f}" for b in (row.budget_bytes, row.predicted_bytes, row.measured_bytes))
    exact = "" if not row.predicted_bytes else "exact" if row.predicted_bytes == row.measured_bytes else "not exact"
    slower = f"{row.seconds - row.stock_seconds:+6.1f} s" if row.seconds else f"{'':8}"
    return f"{row.model:28} {row.verdict:16} {figures} {exact:9} {row.graphs:3} {slower}  {row.detail[:110]}"


def main() -> None:
    """Print the table, row by row, and the sums."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    have_timm = importlib.util.find_spec("timm") is not None
    every = [*TEXT, *IMAGES, *(f"timm/{name}" for name in TIMM if have_timm)]
    parser.add_argument("--models", type=lambda text: text.split(","), default=every, help="names, comma-separated")
    parser.add_argument("--budget", default="0.8", help='a fraction, bytes, or "min"')
    parser.add_argument("--inner", choices=["eager", "inductor"], default="eager")
    parser.add_argument("--json", type=Path, help="write each row as a line of JSON")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.row:
        budget = float(arguments.budget) if "." in arguments.budget else arguments.budget
        print(json.dumps(asdict(row_of(arguments.row, budget, arguments.inner))), flush=True)
        return
    if not have_timm:
        print("timm is not installed: its models are left out")
    rows: list[Row] = []
    print(f"{'model':28} {'':16} {'budget':>9} {'predicted':>9} {'measured':>9}  (KiB)  graphs, slower to compile by")
    for number, name in enumerate(arguments.models, 1):
        rows.append(row_apart(name, arguments.budget, arguments.inner))
        print(line(rows[-1]), flush=True)
        print(f"{number} of {len(arguments.models)}", end="\r", file=sys.stderr, flush=True)
        if arguments.json:
            with arguments.json.open("a") as file:
                file.write(json.dumps(asdict(rows[-1])) + "\n")
    counts = Counter(row.verdict for row in rows)
    exact = sum(row.predicted_bytes == row.measured_bytes > 0 for row in rows)
    print(f"{len(rows)} models: {', '.join(f'{n} {verdict}' for verdict, n in counts.items())}; {exact} exact")


if __name__ == "__main__":
    main()
