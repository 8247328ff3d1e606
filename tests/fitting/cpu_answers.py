"""Steps on this machine's CPU, on paper and for real, answered in a process of their own."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fitting.paper_models import MAKERS
from instruments.measure import measure_step
from remat_compiler.costs import workspace
from remat_compiler.devices.cpus import Cpu
from remat_compiler.fitting.fit_report import FitPoint
from remat_compiler.fitting.made_step import MadeStep, made_step
from remat_compiler.fitting.paper_step import fit_on_paper
from remat_compiler.fitting.request import FitRequest

Budgets = Sequence[float | str | None]
PROCESSOR = Cpu("a processor", threads=1, total_bytes=2**34, usable_bytes=2**33, compiler="c++", figures={})


def cpu_request(model: str, budget: float | str | None, inner: str) -> FitRequest:
    # Down to the smallest peak, losses would be cut further and further, which takes most of the time.
    chunks = "never" if budget == "min" else "auto"
    options = {
        "inner": inner, "cost_model": "nominal", "max_slowdown": None, "on_infeasible": "min", "chunks": chunks
    }  # fmt: skip
    return FitRequest(MAKERS[model], PROCESSOR, budget, (16,), None, "AdamW", options)


def on_paper(model: str, budgets: Budgets, inner: str) -> list[FitPoint]:
    """The step of a model under each budget."""
    return [fit_on_paper(cpu_request(model, budget, inner)).points[0] for budget in budgets]


def really(model: str, budgets: Budgets, inner: str) -> list[tuple[int, int]]:
    """For each budget, what forward and backward take for real, and what they take with the optimizer."""
    return [_measured(cpu_request(model, budget, inner)) for budget in budgets]


def _measured(request: FitRequest) -> tuple[int, int]:
    step = made_step(request, request.batch, real=True)
    step.compile(request.budget)

    def whole() -> None:
        step.run()
        step.update()

    def forward_and_backward() -> None:
        _drop_gradients(step)
        step.run()

    taken = measure_step(whole).peak_bytes
    _drop_gradients(step)
    return measure_step(forward_and_backward, warmup=0).peak_bytes, taken


def _drop_gradients(step: MadeStep) -> None:
    step.model.zero_grad()


def tries_large_operators(left_bytes: int) -> tuple[str, ...]:
    """Names of operators of which nothing is known inside, where the machine has so many bytes left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(workspace, "available_bytes", lambda: left_bytes)
        return fit_on_paper(cpu_request("vision", None, "eager")).points[0].unmodelled
