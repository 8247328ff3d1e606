"""Training loops as people write them, each runnable in eager, under a stock backend and under a budget.

    outcome_of("gradient accumulation", budget=0.8)

A loop is a model, what compiles it, and a step.  Its gradients are compared with those of eager after each of a few
steps, and the peak of one more step with the budget, which is a share of the peak under ``aot_eager``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

import remat_compiler
from end_to_end.loop_models import STEPS, Backend
from end_to_end.training_loops import LOOPS, Loop
from heard import warnings_heard
from instruments.measure import measure_step
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a loop.

    Attributes:
        verdict: ``kept``, ``over, warned``, ``over in silence``, ``refused``, ``wrong``, ``crash`` or ``as stock``.
        detail: The error or the difference.
        stock_bytes: Measured peak under ``aot_eager``, or 0 where that fails.
        budget_bytes: The budget.
        measured_bytes: Measured peak under it, or 0.
        planned: How many graphs were planned.
    """

    verdict: str
    detail: str = ""
    stock_bytes: int = 0
    budget_bytes: int = 0
    measured_bytes: int = 0
    planned: int = 0

    @property
    def good(self) -> bool:
        """Whether the promise holds."""
        return self.verdict in ("kept", "over, warned", "refused", "as stock")


@dataclass(slots=True)
class _Run:
    """What the steps of a loop left, and the peak of the one after them; the error in its place."""

    gradients: list[dict[str, Tensor | None]] = field(default_factory=list)
    peak_bytes: int = 0
    error: Exception | None = None


def outcome_of(name: str, budget: float = 0.8, **options: Any) -> Outcome:
    """Train a loop in eager, under ``aot_eager``, and under `budget` of the latter's peak."""
    loop = LOOPS[name]
    expected, stock = _run(loop, None), _run(loop, "aot_eager")
    if expected.error is not None:
        raise expected.error
    allowed = int(budget * (stock.peak_bytes or expected.peak_bytes))
    remat_compiler.clear_reports()
    given = {
        "memory_budget": allowed,
        "inner": "eager",
        "cost_model": "nominal",
        "max_slowdown": None,
        "time_limit": 0.05,
    }
    with warnings_heard() as heard:
        found = _run(loop, partial(remat, options={**given, "on_infeasible": "min", **options}))
    return _judged(loop, expected, stock, found, allowed, heard)


def _judged(loop: Loop, expected: _Run, stock: _Run, found: _Run, allowed: int, heard: list[str]) -> Outcome:
    figures = (stock.peak_bytes, allowed, found.peak_bytes, len(remat_compiler.reports()))
    if found.error is not None:
        detail = f"{type(found.error).__name__}: {str(found.error).strip().splitlines()[0][:200]}"
        alike = stock.error is not None and type(stock.error) is type(found.error)
        refused = isinstance(found.error, InfeasibleBudget)
        return Outcome("refused" if refused else "as stock" if alike else "crash", detail, *figures)
    wrong = _differences(expected, found, loop.tolerance)
    if wrong:
        alike = stock.error is None and not _differences(stock, found, loop.tolerance)
        return Outcome("as stock" if alike else "wrong", "; ".join(wrong[:3]), *figures)
    if found.peak_bytes <= allowed + loop.slack_bytes:
        return Outcome("kept", "", *figures)
    return Outcome("over, warned" if heard else "over in silence", "; ".join(heard)[:300], *figures)


def _run(loop: Loop, backend: Backend | None) -> _Run:
    """The steps of a loop."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    run = _Run()
    try:
        model = loop.model()
        call = model if backend is None and not loop.wraps else loop.compiled(model, backend)
        for number in range(STEPS):
            torch.manual_seed(number)
            loop.step(call, model, number)
            run.gradients.append({name: _local(p.grad) for name, p in model.named_parameters()})
        run.peak_bytes = measure_step(lambda: loop.step(call, model, STEPS), warmup=1).peak_bytes
    except Exception as error:  # whatever it is, it is what the row shows
        run.error = getattr(error, "inner_exception", None) or error
    return run


def _local(gradient: Tensor | None) -> Tensor | None:
    """A copy of this rank's part."""
    if gradient is None:
        return None
    part = gradient.to_local() if hasattr(gradient, "to_local") else gradient
    return (part.to_dense() if part.is_sparse else part).detach().clone()


def _differences(expected: _Run, found: _Run, tolerance: float) -> list[str]:
    return [
        f"step {number}: gradient of {name}"
        for number, (before, after) in enumerate(zip(expected.gradients, found.gradients))
        for name in before
        if not _close(before[name], after[name], tolerance)
    ]


def _close(expected: Tensor | None, found: Tensor | None, tolerance: float) -> bool:
    if expected is None or found is None:
        return expected is found
    return torch.allclose(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


@contextmanager
def process_group() -> Iterator[None]:
    """One rank, without a network."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()
