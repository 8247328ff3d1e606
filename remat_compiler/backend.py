"""The `torch.compile` backend: ``torch.compile(model, backend="remat", options={...})``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import torch
from torch import fx

from remat_compiler.errors import OptionError, RematError, UnsupportedTorch, suggestion
from remat_compiler.log import logger_of

try:
    from remat_compiler import torch_compat
except (ImportError, AttributeError) as error:
    raise UnsupportedTorch(torch.__version__, str(error), "nothing can be compiled") from error

from remat_compiler.dynamic_shapes.recompile_limit import compilation_failed, watch_recompilations
from remat_compiler.graphs.steps import COORDINATOR
from remat_compiler.graphs.unread_outputs import without_unread
from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.options import Environment, RematOptions
from remat_compiler.pipeline import compile_graph
from remat_compiler.step_budget.in_the_call import InTheCall
from remat_compiler.step_budget.nothing_planned import NothingPlanned
from remat_compiler.units import format_bytes
from remat_passes.registry import planner_class

logger = logger_of(__name__)


def remat(
    gm: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
    **others: object,
) -> Callable[..., Any]:
    """Compile `gm` so that its training step stays within ``options["memory_budget"]``.

    Args:
        gm: Dynamo's graph.
        example_inputs: Its inputs.
        options: See `RematOptions`; settings of Inductor may stand among them.
        mode: Names settings of Inductor, see `torch.compile`.
        others: Further arguments of a backend; none is known here, so any of them is an error.

    Raises:
        OptionError: An option is unknown or its value malformed.
        UnknownName: No planner of that name is registered.
        InfeasibleBudget: No plan fits the budget.
    """
    try:
        environment = Environment.read()
        checked = checked_options(options, mode, others, environment)
        if checked.layout == "planned" and checked.inner != "inductor":
            _warn_of_layout(checked.inner)
            checked = replace(checked, layout="plain")
        _warn_untested()
        _warn_beyond_device(checked.memory_budget, torch_compat.total_device_bytes(example_inputs))
        watch_recompilations(gm)
        torch_compat.skip_own_frames()
        try:
            compile_ = partial(compile_graph, gm, example_inputs, checked, environment)
            return without_unread(gm, compile_) if checked.outputs == "loss" else compile_()
        except RematError:
            compilation_failed()
            raise
    except RematError as error:
        # Dynamo would wrap the error in one of its own, which hides its class and message.
        raise torch_compat.pass_through_dynamo(error) from error


def checked_options(
    options: Mapping[str, object] | None, mode: str | None, others: Mapping[str, object], environment: Environment
) -> RematOptions:
    """The checked options that the user gave by `options` and `mode`.

    Raises:
        OptionError: An option or argument is unknown or malformed.
        UnknownName: No planner of that name is registered.
    """
    for name in others:
        raise OptionError(f"unknown argument {name!r} of the backend remat{suggestion(name, ('mode', 'options'))}")
    checked = RematOptions.parse(
        options,
        check_planner=planner_class,
        environment=environment,
        is_inductors=torch_compat.is_inductor_setting,
    )
    if mode is None or mode == "default":
        return checked
    settings = torch_compat.settings_of_mode(mode)
    if checked.inner != "inductor":
        raise OptionError(f"mode={mode!r} is one of Inductor, and inner is {checked.inner!r}; leave it out")
    # A setting that is named by itself wins over the mode.
    return replace(checked, inductor=tuple(sorted({**settings, **dict(checked.inductor)}.items())))


@cache
def _warn_untested() -> None:
    """Warn once if this version of torch is not tested."""
    problem = torch_compat.untested()
    if problem:
        logger.warning(
            "%s: compiling goes on, but compare the first steps with eager; `remat doctor` says what is missing",
            problem,
        )


@cache
def _warn_of_layout(inner: str) -> None:
    """Warn once that values are not placed."""
    logger.warning(
        'layout="planned" has no effect with inner="%s": only memory that Inductor\'s code allocates is placed', inner
    )


@cache
def _warn_beyond_device(budget: MemoryBudget, device_bytes: int | None) -> None:
    """Warn once if the budget exceeds the device's memory: a step within it may still run out of memory."""
    if device_bytes is not None and budget.limit_bytes > device_bytes:
        logger.warning(
            "memory_budget=%s is more than the %s that the device has, so a step within it may still run out of "
            'memory; name fewer bytes, or "auto" for what is left',
            format_bytes(budget.limit_bytes),
            format_bytes(device_bytes),
        )


# Before `torch.compile` compiles the first function by this backend, for which it looks the backend up.
_FOLLOWERS = tuple(follower(remat, lambda: COORDINATOR.watch.here.open) for follower in (NothingPlanned, InTheCall))
