"""The `torch.compile` backend: ``torch.compile(model, backend="remat", options={...})``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.errors import RematError
from remat_compiler.options import Environment, RematOptions
from remat_compiler.pipeline import compile_graph
from remat_passes.registry import planner_class


def remat(
    gm: fx.GraphModule, example_inputs: Sequence[Any], *, options: Mapping[str, object] | None = None, **_: object
) -> Callable[..., Any]:
    """Compile `gm` so that its training step stays within ``options["memory_budget"]``.

    Raises:
        OptionError: An option is unknown or its value malformed.
        UnknownName: No planner of that name is registered.
        InfeasibleBudget: No plan fits the budget.
    """
    try:
        environment = Environment.read()
        checked = RematOptions.parse(options, check_planner=planner_class, environment=environment)
        return compile_graph(gm, example_inputs, checked, environment)
    except RematError as error:
        raise torch_compat.shown_to_user(error) from error
