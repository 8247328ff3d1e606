"""Ways to compile a model that are compared: under a byte budget, by Inductor as it is, with checkpointed blocks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._inductor.compile_fx import compile_fx
from torch.utils.checkpoint import checkpoint

from remat_compiler.backend import remat

MOST_WAYS = 256
"""How often Dynamo may compile one model."""


def backend(gm: Any, inputs: Any, **keywords: Any) -> Any:
    """remat without its entry point, so that this runs without an installation."""
    return remat(gm, inputs, **keywords)


def with_remat(budget: int, inner: str) -> Callable[[nn.Module], Any]:
    """Compile under a byte budget."""
    options = {"memory_budget": budget, "inner": inner, "max_slowdown": None}
    return lambda module: torch.compile(module, backend=backend, options=options, dynamic=False)


def with_torch(module: nn.Module) -> Any:
    """Compile with Inductor as it is, as a backend of its own: Dynamo would share code between equal ones."""
    return torch.compile(module, backend=lambda gm, inputs: compile_fx(gm, inputs), dynamic=False)


def with_checkpoints(module: nn.Module) -> Any:
    """Checkpoint each block of the longest module list, then compile with Inductor."""
    lists = [m for m in module.modules() if isinstance(m, (nn.ModuleList, nn.Sequential))]
    for block in max(lists, key=len) if lists else []:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)  # type: ignore[method-assign]
    return with_torch(module)
