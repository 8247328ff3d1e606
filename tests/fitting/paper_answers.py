"""Many questions to GPUs on paper, answered in one process: most of the time is torch's start and Dynamo's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

import remat_compiler
from fitting.paper_models import MAKERS, UncutBlocks, deeper, language
from fitting.paper_traces import Named, Seen, on_paper
from heard import warnings_heard
from remat_compiler.compilation import publish
from remat_compiler.dynamic_shapes.peak_guard import PeakGuard
from remat_compiler.errors import RematError
from remat_compiler.fitting.counted_step import BACKWARD, FORWARD, count, settle
from remat_compiler.fitting.fit_report import FitPoint
from remat_compiler.fitting.made_step import made_step
from remat_compiler.fitting.paper_step import fit_on_paper
from remat_compiler.fitting.paper_step import on_paper as fit_here
from remat_compiler.fitting.request import FitRequest, Separate
from remat_compiler.observer import Observer, observed_by
from remat_compiler.simulate.reserved import AllocationTrace, ReservedFigures
from remat_compiler.torch_compat import (
    KnownValues,
    num_bytes,
    storages_of,
)


def answers(
    inner: str, device: str, models: Sequence[str], budgets: Sequence[float | str | None], autocast: str | None
) -> dict[str, list[FitPoint]]:
    """The step of each model under each budget."""
    # To cut losses further and further takes most of the time, and is looked at under Inductor.
    chunks = "auto" if inner == "inductor" else "never"
    options = {"inner": inner, "max_slowdown": None, "on_infeasible": "min", "chunks": chunks}
    return {
        name: [
            fit_on_paper(FitRequest(MAKERS[name], device, budget, (16,), autocast, "AdamW", options)).points[0]
            for budget in budgets
        ]
        for name in models
    }


def refusals() -> dict[str, tuple[str, str]]:
    """Class and message of the error of each wrong question."""
    held = nn.Linear(8, 8)
    cases: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
        "device": (_layer, {"device": "h10"}),
        "no loss": (_layer, {}),
        "autocast": (_layer, {"autocast": "int8"}),
        "optimizer": (_layer, {"optimizer": "adamx"}),
        "on the CPU": (lambda: nn.Linear(8, 8, device="cpu"), {}),
        "real memory": (lambda: held, {}),
        "budget": (_layer, {"budget": "-3"}),
        "no inputs": (_layer, {"make": _layer}),
        "runs the step itself": (_layer, {"optimizer": "LBFGS"}),
        "sizes by data": (Chosen, {}),
        "times kernels": (Summed, {"options": {"max_autotune": True}}),
    }
    found = {}
    for name, (make_model, given) in cases.items():
        make = Separate(make_model, lambda: torch.zeros(4, 8), None)
        try:
            fit_on_paper(FitRequest(**{"make": make, "device": "h100", "options": {"inner": "eager"}, **given}))
        except RematError as error:
            kind = next(c.__name__ for c in type(error).__mro__ if c.__module__ == "remat_compiler.errors")
            found[name] = (kind, str(error))
    return found


def _layer() -> nn.Module:
    return nn.Linear(8, 8)


class Summed(nn.Linear):
    """A layer whose result is a loss."""

    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).sum()


def changing(batches: Sequence[int], part: float) -> tuple[int, list[int]]:
    """A budget, which is that part of the largest batch's peak, and what a step takes whose batches change."""
    request = FitRequest(deeper, "h100", None, (batches[-1],), None, None, {"inner": "eager", "max_slowdown": None})
    limit = int(part * fit_on_paper(request).points[0].budgeted_bytes)
    taken = []
    with fit_here("h100") as (_, mode):
        step = made_step(request, batches[0])
        step.compile(limit)
        for batch in batches:
            with torch.device("cuda"):
                step.inputs = language(batch)[1]
            settle(step)
            counted = count(step, mode)
            taken.append(max(counted.peaks[FORWARD], counted.peaks[BACKWARD]))
    return limit, taken


def peaks_and_lives(model: str) -> tuple[dict[str, int], int, list[tuple[int, int, int | None]]]:
    """Of a step in eager: its peaks, when the optimizer's step begins, and bytes, begin and end of what is alive."""
    request = FitRequest(MAKERS[model], "h100", None, (4,), None, "AdamW", {})
    with fit_here("h100") as (_, mode):
        step = made_step(request, 4)
        step.leave_eager()
        settle(step)
        counted = count(step, mode)
    alive = [(life.size_bytes, life.made, life.freed) for life in (*counted.lives, *counted.inside)]
    return dict(counted.peaks), counted.update_from, alive


def kept_at(compiled: bool) -> tuple[list[tuple[str, str]], list[tuple[int, int, int | None]]]:
    """Phase and operator of each moment of a step; bytes, begin and end of what its libraries keep."""
    request = FitRequest(MAKERS["language"], "h100", None, (4,), None, None, {})
    with fit_here("h100") as (gpu, mode):
        step = made_step(request, 4)
        if compiled:
            step.compile(1.0)
        else:
            step.leave_eager()
        settle(step)
        counted = count(step, mode)
        kept = counted.trace(step, gpu).kept
    return [(one.phase, one.label) for one in counted.moments], [(one.size_bytes, one.made, one.freed) for one in kept]


def kept_as_compiled() -> list[list[tuple[int, int]]]:
    """Bytes and begin of what libraries keep, as the backend counts with it, for each graph that it reports."""
    found: list[list[tuple[int, int]]] = []
    figures = publish.reserved_figures

    def seen(trace: AllocationTrace) -> ReservedFigures:
        found.append([(one.size_bytes, one.made) for one in trace.kept])
        return figures(trace)

    request = FitRequest(MAKERS["language"], "h100", None, (4,), None, None, {"inner": "eager"})
    with fit_here("h100"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "reserved_figures", seen)
        step = made_step(request, 4)
        step.compile(1.0)
        step.run()
    return found


class Squared(nn.Sequential):
    """Layers and their loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).square().sum()


def updated_within(budgets: Sequence[int | str]) -> list[int]:
    """What a step takes under each budget whose AdamW updates each layer in the backward; the last layer is large."""

    def make(batch: int) -> tuple[nn.Module, torch.Tensor]:
        layers = (layer for _ in range(6) for layer in (nn.Linear(256, 256), nn.GELU()))
        return Squared(*layers, nn.Linear(256, 4096)), torch.zeros(batch, 256)

    options = {"inner": "eager", "cost_model": "nominal", "max_slowdown": None, "chunks": "never"}
    request = FitRequest(make, "h100", None, (256,), None, "AdamW", options, step_in_backward=True)
    return [fit_on_paper(replace(request, budget=budget)).points[0].budgeted_bytes for budget in budgets]


class Dispatches(Observer):
    """Notes what runs a graph of changing sizes."""

    def dispatch_made(self, dispatch: Any) -> None:
        self.dispatch = dispatch


def foreseen(batches: Sequence[int]) -> list[tuple[bool, int | None, int]]:
    """Of each batch after the first, whether its peak has a formula, what that foresees, and what the step takes."""

    def make(batch: int) -> tuple[nn.Module, torch.Tensor]:
        return Squared(*(layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.Tanh()))), torch.zeros(batch, 64)

    found = []
    request = FitRequest(make, "h100", None, (batches[0],), None, None, {"cost_model": "nominal"})
    with fit_here("h100") as (_, mode), observed_by(seen := Dispatches()):
        step = made_step(request, batches[0])
        step.compile("1GiB")
        settle(step)
        for batch in batches[1:]:
            with torch.device("cuda"):
                step.inputs = make(batch)[1]
            settle(step)
            peaks = count(step, mode).peaks
            variant = seen.dispatch.prepare((batch,))
            predicted = variant.predicted_bytes((batch,), seen.dispatch.allowance)
            found.append((isinstance(variant.known, PeakGuard), predicted, max(peaks[FORWARD], peaks[BACKWARD])))
    return found


class Chosen(Summed):
    """Chooses rows by what they hold."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x[x[:, 0] > 0])


def updates() -> dict[str, tuple[int, int]]:
    """Bytes of the state of optimizers, and of their steps, for 64 parameters and a bias of 8 in float32."""
    optimizers: dict[str, Callable[[Any], Any] | str] = {
        # It asks for the norms of parameters.
        "by values": "Adafactor",
        "compiled": _compiled_adam,
        "fused": lambda parameters: torch.optim.AdamW(parameters, fused=True),
    }
    found = {}
    for name, optimizer in optimizers.items():
        make = Separate(Summed, lambda: torch.zeros(4, 8), None)
        (point,) = fit_on_paper(FitRequest(make, "h100", None, (), None, optimizer, {"inner": "eager"})).points
        assert not any("fused" in name for name in point.unmodelled)
        found[name] = (point.optimizer_bytes, point.update_bytes)
    return found


def _compiled_adam(parameters: Any) -> torch.optim.Optimizer:
    made = torch.optim.Adam(parameters)
    made.step = torch.compile(made.step)  # type: ignore[method-assign]
    return made


def kernels() -> dict[tuple[str, str], list[str]]:
    """The operators of attention that a step captures, by GPU and type."""
    found = {}
    for device in ("h100", "a100", "t4"):
        for dtype in (torch.bfloat16, torch.float32):
            with on_paper(device), Named() as named:
                query = torch.zeros(2, 2, 128, 64, dtype=dtype, requires_grad=True)
                loss = torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum()
                loss.backward()
            found[device, str(dtype)] = named.names
    return found


def learned_mask() -> tuple[list[str], list[int]]:
    """The operators of attention with a mask that is learned, and the strides of the mask that they read."""
    with on_paper("h100"), Named() as named:
        query = torch.zeros(8, 3, 49, 32, dtype=torch.bfloat16, requires_grad=True)
        mask = torch.zeros(8, 3, 49, 49, dtype=torch.bfloat16, requires_grad=True)
        torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
    return named.names, named.mask_strides


def chosen_by_truth() -> dict[str, list[str]]:
    """Types of the mask that the operators of attention read where it is one of truth values, by GPU."""
    found = {}
    for device in ("h100", "t4"):
        with on_paper(device), Named() as named:
            query = torch.zeros(2, 2, 128, 64, dtype=torch.bfloat16, requires_grad=True)
            mask = torch.ones(2, 1, 128, 128, dtype=torch.bool)
            torch.nn.functional.scaled_dot_product_attention(query, query, query, attn_mask=mask).sum().backward()
        found[device] = [f"{name} {dtype}" for name, dtype in zip(named.names, named.mask_dtypes, strict=True)]
    return found


def moved() -> dict[str, tuple[str, str, bool]]:
    """Type and device of a weight whose module was moved, and whether it is the parameter of before."""
    ways: dict[str, Callable[[nn.Module], Any]] = {
        "to cuda": lambda module: module.to("cuda"),
        "cuda": lambda module: module.cuda(),
        "half": lambda module: module.half(),
        "to both": lambda module: module.to("cuda:0", torch.bfloat16),
        "to the CPU": lambda module: module.to("cpu"),
    }
    found = {}
    for made_on in ("cpu", "cuda"):
        for way, move in ways.items():
            with on_paper("h100"):
                module = nn.Linear(8, 8, device=made_on)
                tied, before = nn.Linear(8, 8), module.weight
                tied.weight = module.weight
                move(nn.ModuleList([module, tied]))
                weight = tied.weight
                found[f"{made_on}: {way}"] = (str(weight.dtype), str(weight.device), weight is before is module.weight)
    return found


def copied() -> list[bool]:
    """Whether moving a tensor copies it: to where it is, to another type there, and to the CPU."""
    with on_paper("h100"):
        tensor = torch.zeros(4)
        results = tensor.to("cuda"), tensor.cuda(), tensor.to("cuda", torch.float16), tensor.cpu()
        storage = tensor.untyped_storage()._cdata
        return [result.untyped_storage()._cdata != storage for result in results]


def numbers() -> dict[str, Any]:
    """What small tensors say when a model is made by their values; `None` where they have none."""
    asked: dict[str, Callable[[], Any]] = {
        "each": lambda: [rate.item() for rate in torch.linspace(0, 1, 3)],
        "list": lambda: torch.arange(3, device="cpu").tolist(),
        "list on the GPU": lambda: torch.arange(3).tolist(),
        "computed": lambda: float((torch.tensor([1.0, 2.0]) * 3).to(torch.float16).cumsum(0)[-1]),
        "compared": lambda: bool((torch.arange(4) > 5).any()),
        "tensor": lambda: torch.tensor(7).item(),
        "random": lambda: torch.rand(2).sum().item(),
        "changed": lambda: torch.zeros(2).add_(1).sum().item(),
        "changed by a view": lambda: _changed_by_a_view().item(),
        "uninitialised": lambda: torch.empty(1).item(),
        "large": lambda: torch.zeros(5000).sum().item(),
        "truncated": lambda: tuple(nn.init.trunc_normal_(torch.empty(3, 3), std=0.02).shape),
    }
    found = {}
    for name, ask in asked.items():
        with on_paper("h100"), KnownValues():
            try:
                found[name] = ask()
            except (RuntimeError, NotImplementedError):
                found[name] = None
    return found


def _changed_by_a_view() -> torch.Tensor:
    tensor = torch.zeros(2)
    value = tensor[0]
    tensor[:1].fill_(5)
    return value


def memory() -> tuple[int, bool, bool]:
    """Bytes of a tensor, whether a view shares its memory, and whether another tensor does."""
    with on_paper("h100"):
        tensor, other = torch.zeros(3, 4), torch.zeros(3, 4)
        mine = storages_of([tensor])
        return num_bytes(tensor), storages_of([tensor[1:]]) == mine, storages_of([other]) == mine


def warnings_of(make: Callable[[], Any], budget: float) -> list[str]:
    """What the user is told of the step under the budget."""
    with warnings_heard() as told:
        fit_on_paper(FitRequest(make, "h100", budget, (), None, None, {"inner": "eager", "max_slowdown": None}))
    return told


def checked_with_numbers(numbers: Sequence[Any]) -> list[bool]:
    """Whether the peak of each graph is known that is compiled as numbers come, which kernels are given."""
    remat_compiler.clear_reports()
    with fit_here("h100"):
        with torch.device("cuda"):
            model, inputs = Tempered(), torch.zeros(64, 32)
        step = torch.compile(model, backend="remat", options={"memory_budget": 0.7, "max_slowdown": None})
        for number in numbers:
            step(inputs, number).backward()
    return [report.checked_peak_bytes is not None for report in remat_compiler.reports()]


class Tempered(nn.Module):
    """Layers whose results are multiplied by a number that is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(2))

    def forward(self, x: torch.Tensor, number: Any) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x)) * number
        return x.square().mean()


def in_blocks(expandable: bool) -> list[tuple[int, int]]:
    """The checked peak, and of it what is asked for: without a budget, and at the smallest peak."""
    found = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTORCH_CUDA_ALLOC_CONF", f"expandable_segments:{expandable}")
        for budget in (None, "min"):
            remat_compiler.clear_reports()
            make = Separate(UncutBlocks, lambda: torch.zeros(23 * 2**17), None)
            fit_on_paper(FitRequest(make, "h100", budget, options={"inner": "eager", "on_infeasible": "min"}))
            report = remat_compiler.reports()[-1]
            found.append((report.checked_peak_bytes or 0, report.requested_bytes))
    return found


def gated() -> list[str]:
    """The operators of the backward of two gates, outside of all that is captured."""
    with fit_here("h100"):
        x = torch.zeros(8, 16, device="cuda", requires_grad=True)
        loss = (nn.functional.silu(x) + nn.functional.mish(x)).sum()
        with Seen() as seen:
            loss.backward()
    return seen.names
