"""A model compiled by the backend itself, beside the same model in eager."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from remat_compiler.backend import remat


def compile_with(model: nn.Module, dynamic: bool = False, **options: Any) -> Any:
    """`model` compiled with the options, anew."""
    torch._dynamo.reset()
    given = {"inner": "eager", "max_slowdown": None, "on_infeasible": "min", **options}
    return torch.compile(model, backend=partial(remat, options=given), dynamic=dynamic)


def compiled_and_eager(
    model: nn.Module,
    inputs: Sequence[Tensor],
    *,
    steps: int = 2,
    tolerance: float = 0.0,
    precision: torch.dtype | None = None,
    dynamic: bool = False,
    **options: Any,
) -> None:
    """Several steps of the model in eager and compiled: loss, gradients, buffers and random state are equal."""
    state = {name: value.clone() for name, value in model.state_dict().items()}
    with functorch_config.patch(enable_autograd_cache=False):
        compiled = compile_with(model, dynamic, **options)
        results = []
        for call in (model, compiled):
            model.load_state_dict(state)
            torch.manual_seed(7)
            results.append([_step(model, call, inputs, precision) for _ in range(steps)])
            results[-1].append((*(b.clone() for b in model.buffers()), torch.get_rng_state()))
    for eager, planned in zip(*results):
        for a, b in zip(eager, planned):
            torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance)


def _step(model: nn.Module, call: Any, inputs: Sequence[Tensor], precision: torch.dtype | None) -> tuple[Tensor, ...]:
    model.zero_grad(set_to_none=True)
    context: AbstractContextManager[Any] = torch.autocast("cpu", dtype=precision) if precision else nullcontext()
    with context:
        loss = call(*inputs)
    loss.backward()
    return (loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None))
