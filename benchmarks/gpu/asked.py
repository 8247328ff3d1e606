"""What all questions share: rows, steps, peaks, and what was said of a step."""

from __future__ import annotations

import gc
import json
import os
import re
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._inductor.compile_fx import compile_fx

import remat_compiler
from gpu.models import Model
from instruments.measure import measure_step
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.report.figures import latest_step, summarise

NEAR = 0.02
"""Largest difference of losses and gradients, relative to their norm, beside twice that of the stock compiler's own."""
EXACT = 0.003
"""Largest difference of a measured peak from the predicted one, relative to that."""

LOOPS = os.environ.get("GPU_LOOPS")
"""File that is there once the planners' loops are compiled."""


@dataclass
class Row:
    """The answer to a part of a question: figures, and what is not as promised."""

    case: str
    status: str = "ok"
    why: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def expect(self, held: bool, why: str) -> None:
        """Fall short unless it held."""
        if not held:
            self.status = "short"
            self.why.append(why)


class Asked:
    """One question: where its rows go, and the device."""

    def __init__(self, name: str, device: str, folder: Path) -> None:
        self.name, self.device, self.folder = name, device, folder
        self.cuda = device == "cuda"

    @contextmanager
    def row(self, case: str) -> Iterator[Row]:
        """A part of the answer; what it raises is noted, and the question goes on."""
        row, began = Row(case), time.monotonic()
        try:
            yield row
        except InfeasibleBudget as refused:
            row.status, row.why = "told", [" ".join(str(refused).split())[:250]]
        except Exception as error:
            row.status, row.why = "failed", [f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"]
            traceback.print_exc()
        found = {"question": self.name, "case": case, "status": row.status, "why": "; ".join(row.why)}
        figures = row.figures | {"seconds": round(time.monotonic() - began, 1)}
        with (self.folder / f"{self.name}.rows").open("a", encoding="utf-8") as file:
            file.write(json.dumps(found | figures, default=str) + "\n")
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()

    def step(self, model: Model, call: Callable[..., Tensor]) -> Step:
        """A training step on this device."""
        return Step(model, call, self.device)

    def peak_bytes(self, step: Step) -> int:
        """Most that a step has on top of what is there before it."""
        step.release()
        return measure_step(step, warmup=0, device=self.device).peak_bytes

    def trace(self, steps: Mapping[str, Step]) -> None:
        """Keep a profile of each step."""
        for way, step in steps.items():
            with torch.profiler.profile() as profile:
                step()
            name = "-".join(re.findall(r"[\w.]+", f"{self.name} {way}"))
            profile.export_chrome_trace(str(self.folder / f"trace-{name}.json.gz"))

    def quiet(self) -> None:
        """Return once nothing else runs on this machine."""
        (self.folder / f"{self.name}.ready").touch()
        while not (self.folder / f"{self.name}.go").exists():
            time.sleep(0.05)


class Step:
    """Gradients dropped, forward, backward; always with the same random numbers."""

    def __init__(self, model: Model, call: Callable[..., Tensor], device: str) -> None:
        self.model, self.call, self.device = model, call, device

    def __call__(self) -> Tensor:
        """One step; its loss."""
        torch.manual_seed(3)
        self.release()
        loss = self.forward()
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def forward(self) -> Tensor:
        """The loss."""
        kind = self.model.autocast
        with torch.autocast(self.device, kind) if kind else nullcontext():
            return self.call(**self.model.inputs)

    def release(self) -> None:
        """Drop the gradients."""
        for parameter in self.model.module.parameters():
            parameter.grad = None


def stock(module: Callable[..., Any]) -> Any:
    """Compiled by Inductor alone; by a backend of its own, since Dynamo shares code between equal ones."""
    return torch.compile(module, backend=lambda gm, inputs: compile_fx(gm, inputs), dynamic=False)


def planned(module: Callable[..., Any], budget: Any, dynamic: bool | None = False, **options: Any) -> Any:
    """Compiled under a budget; no installation is needed for a backend that is a function."""
    while LOOPS and not Path(LOOPS).exists():
        time.sleep(0.1)
    return torch.compile(module, backend=partial(remat, options={"memory_budget": budget, **options}), dynamic=dynamic)


def distance(found: Sequence[Tensor], right: Sequence[Tensor]) -> float:
    """The norm of all differences, relative to that of what is right."""
    pairs = [(a.double(), b.double()) for a, b in zip(found, right, strict=True)]
    apart = sum(float((a - b).square().sum()) for a, b in pairs)
    return float((apart / max(sum(float(b.square().sum()) for _, b in pairs), 1e-30)) ** 0.5)


def predicted() -> dict[str, Any]:
    """What is said of the step that was compiled last."""
    reports = latest_step(remat_compiler.reports())
    if not reports:
        raise RuntimeError("nothing was planned")
    whole = summarise(reports)
    requested = reports[0].requested_bytes if len(reports) == 1 else 0
    return {"predicted": whole.peak_bytes, "requested": requested, "added_percent": round(whole.added_percent, 2)}


def first_backward(asked: Asked, step: Step) -> int:
    """Compile, and run a step; the peak of its backward, in which kernels are timed as they first run."""
    step.release()
    loss = step.forward()
    if not asked.cuda:
        loss.backward()  # type: ignore[no-untyped-call]
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    del loss
    step.release()
    return int(torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated())


def held(asked: Asked, row: Row, step: Step, budget: Any) -> None:
    """Whether the budget is kept, and the predicted peak the measured one."""
    said, measured = predicted(), asked.peak_bytes(step)
    row.figures |= {"budget": budget, "measured": measured, **said}
    if isinstance(budget, int):
        row.expect(measured <= budget, f"{measured - budget:+,} B beside the budget")
    apart = measured - said["predicted"]
    row.expect(abs(apart) <= EXACT * said["predicted"], f"{apart:+,} B beside the prediction")
