"""The `torch.compile` backend: ``torch.compile(model, backend="remat", options={...})``."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.errors import RematError
from remat_compiler.nothing_planned import FirstStep
from remat_compiler.options import Environment, MemoryBudget, RematOptions, format_bytes
from remat_compiler.pipeline import compile_graph
from remat_compiler.recompilations import watch_recompilations
from remat_passes.registry import planner_class

logger = logging.getLogger(__name__)


def remat(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, object] | None = None, **_: object
) -> Callable[..., Any]:
    """Compile `gm` so that its training step stays within ``options["memory_budget"]``.

    Raises:
        OptionError: An option is unknown or its value malformed.
        UnknownName: No planner of that name is registered.
        InfeasibleBudget: No plan fits the budget.
    """
    _first_step.graph_given()
    try:
        environment = Environment.read()
        checked = RematOptions.parse(options, check_planner=planner_class, environment=environment)
        watch_recompilations(gm)
        _warn_beyond_device(checked.memory_budget, torch_compat.total_device_bytes(example_inputs))
        return compile_graph(gm, example_inputs, checked, environment)
    except RematError as error:
        raise torch_compat.shown_to_user(error) from error


@cache
def _warn_beyond_device(budget: MemoryBudget, device_bytes: int | None) -> None:
    """Say once that the budget is more than the device has: it cannot keep a step from running out of memory."""
    if device_bytes is not None and budget.limit_bytes > device_bytes:
        logger.warning(
            "memory_budget=%s is more than the %s that the device has, so a step within it may still run out of "
            'memory; name fewer bytes, or "auto" for what is left',
            budget,
            format_bytes(device_bytes),
        )


_first_step = FirstStep(remat)
