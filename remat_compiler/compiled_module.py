"""`remat_compiler.compile`: a module compiled in place under a budget, whatever trains it afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from remat_compiler.errors import OptionError
from remat_compiler.log import SENDER
from remat_compiler.report.figures import latest_step, summarise
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.store import reports
from remat_compiler.units import counted, format_bytes

if TYPE_CHECKING:
    from torch import nn

Module = TypeVar("Module", bound="nn.Module")

PATIENCE = 32
"""Calls of a module after which its plans are told although it is not known yet which graphs make up its step."""


def compile(  # noqa: A001 - the name that users of torch expect
    model: Module,
    memory_budget: float | str | None = None,
    *,
    dynamic: bool | None = None,
    quiet: bool = False,
    **options: object,
) -> Module:
    """Compile `model` in place, so that its training steps stay within a budget.

        model = remat_compiler.compile(model, memory_budget="6GiB")

    The module stays the one that it is: its class, hooks, signature and ``state_dict`` are as before, so that trainers
    may save, wrap and shard it.  Containers of torch, such as `nn.Sequential`, are compiled, too; their own
    ``compile`` leaves them to eager execution without a word.  Copies and pickles of the module are not compiled.

    Args:
        model: The module.
        memory_budget: See `RematOptions`; by default ``REMAT_MEMORY_BUDGET``, else what the device has left.
        dynamic: See `torch.compile`.
        quiet: Whether to be silent on what was planned, which otherwise is told on stderr in the second step.
        options: Further options of the backend.

    Returns:
        `model`.

    Raises:
        OptionError: `model` is no module, one that Lightning does not call, or an option is malformed.
        UnknownName: No planner of that name is registered.
    """
    # Here, since importing this package imports no torch.
    import torch

    from remat_compiler import torch_compat
    from remat_compiler.backend import checked_options
    from remat_compiler.graphs.steps import steps_are_known
    from remat_compiler.options import Environment

    if not isinstance(model, torch.nn.Module):
        raise OptionError(
            f"got model={type(model).__name__}; allowed is a torch.nn.Module; for a function, use torch.compile"
        )
    if _is_lightning_module(model):
        raise OptionError(
            f"got model={type(model).__name__}, a LightningModule, whose Trainer calls training_step and never the "
            "module itself, so that nothing would be compiled; compile the network in it, as in "
            "remat_compiler.compile(module.network, ...)"
        )
    given: dict[str, Any] = options if memory_budget is None else {**options, "memory_budget": memory_budget}
    # Before the first step, not in it.
    checked_options(given, None, {}, Environment.read())
    call = torch_compat.traceable_call(model)
    compiled = torch.compile(call, backend="remat", options=given, dynamic=dynamic)
    model._compiled_call_impl = compiled if quiet else _Telling(model, compiled, steps_are_known)
    return model


def _is_lightning_module(model: object) -> bool:
    """Whether it is a module of one of Lightning's two packages, which need not be installed."""
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(model).__mro__}
    return not names.isdisjoint({("lightning", "LightningModule"), ("pytorch_lightning", "LightningModule")})


class _Telling:
    """Calls the compiled module, and tells once what was planned."""

    def __init__(self, model: nn.Module, compiled: Callable[..., Any], steps_are_known: Callable[[], bool]) -> None:
        self._model, self._compiled = model, compiled
        self._before = {report.graph_name for report in reports()}
        self._calls = 0
        self._steps_are_known = steps_are_known

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._compiled(*args, **kwargs)
        self._calls += 1
        # The graphs of the first step share the budget from the second one on.
        if self._calls > 1:
            self._tell()
        return result

    def _tell(self) -> None:
        new = [report for report in reports() if report.graph_name not in self._before]
        known = self._steps_are_known()
        if new and (known or self._calls >= PATIENCE):
            print(summary_of(type(self._model).__name__, new, so_far=not known), file=sys.stderr, flush=True)
            self._model._compiled_call_impl = self._compiled


def summary_of(name: str, planned: Sequence[PlanReport], *, so_far: bool) -> str:
    """One line on the plans of a module's graphs.

    Args:
        name: The module's name.
        planned: The reports of all that was compiled since it is called.
        so_far: Whether it is not known which of the graphs share the budget.
    """
    step = summarise(planned if so_far else latest_step(planned))
    peak, graphs = format_bytes(step.peak_bytes), counted(step.graphs, "graph")
    budget = "" if step.budget_bytes is None else f" of {format_bytes(step.budget_bytes)}"
    if so_far:
        figures = f"runs {graphs} so far, which do not share the budget yet: the largest peak of one is {peak}{budget}"
    else:
        figures = f"runs {graphs}, peak {peak}{budget}, recomputation adds {step.added_percent:.1f} % of the step"
    return f"{SENDER}: {name} {figures}; remat_compiler.reports() has the plans"
