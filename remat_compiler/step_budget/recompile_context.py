"""How a graph is compiled again, once more is known of the step that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from remat_compiler.compilation.search import BudgetSearch, SearchGoal


def follows_others(example_inputs: Sequence[Any]) -> bool:
    """Whether an input is the result of other differentiable operators."""
    return any(isinstance(x, torch.Tensor) and x.requires_grad and not x.is_leaf for x in example_inputs)


@dataclass(frozen=True, slots=True, eq=False)
class RecompileContext:
    """How a graph is compiled again after Dynamo is done with it.

    Attributes:
        search: Compiles the graph within a budget, or by one request.
        alone: The goal of the search if the graph turns out to have the budget for itself.
        dynamo_context: What Dynamo knew of the graph.
        pinned: Whether a GPU copies to and from where values are moved to.
    """

    search: BudgetSearch
    alone: SearchGoal
    dynamo_context: Callable[[], AbstractContextManager[None]]
    pinned: bool = False
