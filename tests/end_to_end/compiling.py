"""A model compiled by the backend itself, beside the same model in eager."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config

import remat_compiler
from remat_compiler.backend import remat


def compile_with(model: nn.Module, dynamic: bool = False, **options: Any) -> Any:
    """`model` compiled with the options, anew."""
    torch._dynamo.reset()
    given = {"inner": "eager", "max_slowdown": None, "on_infeasible": "min", **options}
    return torch.compile(model, backend=partial(remat, options=given), dynamic=dynamic)


def differences_from_eager(
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    steps: int = 2,
    tolerance: float = 0.0,
    precision: torch.dtype | None = None,
    dynamic: bool = False,
    **options: Any,
) -> list[str]:
    """What several steps of the compiled model leave behind otherwise than in eager, random state included.

    Raises:
        AssertionError: The backend was not asked to plan anything.
    """
    state = {name: value.clone() for name, value in model.state_dict().items()}
    remat_compiler.clear_reports()
    with functorch_config.patch(enable_autograd_cache=False):
        compiled = compile_with(model, dynamic, **options)
        results = []
        for call in (model, compiled):
            model.load_state_dict(state)
            torch.manual_seed(7)
            results.append([_step(model, call, inputs, precision) for _ in range(steps)])
            results[-1].append({**{n: b.clone() for n, b in model.named_buffers()}, "state": torch.get_rng_state()})
    assert remat_compiler.reports(), "nothing was planned"
    return [
        f"step {number}: {name}"
        for number, (eager, planned) in enumerate(zip(*results))
        for name in sorted({*eager, *planned})
        if name not in eager or name not in planned or not _close(eager[name], planned[name], tolerance)
    ]


def _close(eager: Tensor, planned: Tensor, tolerance: float) -> bool:
    same_kind = eager.shape == planned.shape and eager.dtype == planned.dtype
    return same_kind and torch.allclose(planned, eager, rtol=tolerance, atol=tolerance, equal_nan=True)


def _step(model: nn.Module, call: Any, inputs: Sequence[Tensor], precision: torch.dtype | None) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    context: AbstractContextManager[Any] = torch.autocast("cpu", dtype=precision) if precision else nullcontext()
    with context:
        loss = call(*inputs)
    loss.backward()
    gradients = {f"gradient of {n}": p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **gradients}
