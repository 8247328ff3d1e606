"""`remat_compiler.compile`: a module compiled in place under a budget, whatever trains it afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from remat_compiler.errors import OptionError
from remat_compiler.report.figures import summarise
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.store import reports
from remat_compiler.units import format_bytes

if TYPE_CHECKING:
    from torch import nn

Module = TypeVar("Module", bound="nn.Module")


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
        quiet: Whether to be silent on what was planned, which otherwise is told on stderr after the first step.
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
    model._compiled_call_impl = compiled if quiet else _Telling(model, compiled)
    return model


def _is_lightning_module(model: object) -> bool:
    """Whether it is a module of one of Lightning's two packages, which need not be installed."""
    names = {(kind.__module__.partition(".")[0], kind.__name__) for kind in type(model).__mro__}
    return not names.isdisjoint({("lightning", "LightningModule"), ("pytorch_lightning", "LightningModule")})


class _Telling:
    """Calls the compiled module, and tells once what was planned."""

    def __init__(self, model: nn.Module, compiled: Callable[..., Any]) -> None:
        self._model, self._compiled = model, compiled
        self._before = {report.graph_name for report in reports()}
        self._calls = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        result = self._compiled(*args, **kwargs)
        self._calls += 1
        # The graphs of the first step share the budget from the second one on.
        new = [report for report in reports() if report.graph_name not in self._before] if self._calls > 1 else []
        if new:
            print(summary_of(type(self._model).__name__, new), file=sys.stderr, flush=True)
            self._model._compiled_call_impl = self._compiled
        return result


def summary_of(name: str, planned: list[PlanReport]) -> str:
    """One line on the plans of a module's graphs."""
    step = summarise(planned)
    budget = "" if step.budget_bytes is None else f" of {format_bytes(step.budget_bytes)}"
    graphs = "1 graph" if step.graphs == 1 else f"{step.graphs} graphs"
    return (
        f"remat: {name} runs {graphs}, peak {format_bytes(step.peak_bytes)}{budget}, recomputation adds "
        f"{step.added_percent:.1f} % of the step; remat_compiler.reports() has the plans"
    )
