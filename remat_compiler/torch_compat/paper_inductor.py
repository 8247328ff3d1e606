"""Tracing, Inductor and Triton for steps on paper: they ask the device nothing, and compute nothing on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch._inductor import config
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

from remat_compiler.devices.gpus import Gpu
from remat_compiler.errors import OptionError
from remat_compiler.torch_compat.paper_rows import CONSTANT_FOLDING, CONSTANTS, GENERATION, PADDING
from remat_compiler.torch_compat.patching import replaced

_CPU = torch.device("cpu")
_TIMED = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise")
"""Settings under which Inductor times kernels while it compiles."""


def enter_inductor(stack: ExitStack, gpu: Gpu) -> None:
    """Let Inductor generate code for `gpu` until `stack` is closed; without Triton, only graphs are interpreted."""
    stack.enter_context(replaced(CONSTANTS, _then_on_cpu))
    stack.enter_context(replaced(CONSTANT_FOLDING, _on_cpu))
    stack.enter_context(replaced(PADDING, _where_forced))
    _enter_triton(stack, gpu)


def enter_generation(stack: ExitStack) -> None:
    """Let Inductor generate code that never runs, for any device, until `stack` is closed."""
    stack.enter_context(replaced(GENERATION, _by_default_on_cpu))


class _OnCpu(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Makes on the CPU what should be made on the device: constants are few, and Inductor looks at their values."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = tree_map_only(torch.device, _instead, (args, kwargs or {}))
        return func(*args, **kwargs)


def _instead(device: torch.device) -> torch.device:
    return _CPU if device.type == "cuda" else device


def _then_on_cpu(disables: Callable[[], AbstractContextManager[Any]]) -> Callable[[], AbstractContextManager[Any]]:
    @contextmanager
    def without_fake_mode() -> Iterator[None]:
        with disables(), _OnCpu():  # type: ignore[no-untyped-call]
            yield

    return without_fake_mode


def _on_cpu(run: Callable[..., Any]) -> Callable[..., Any]:
    def folded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _OnCpu():  # type: ignore[no-untyped-call]
            return run(self, *args, **kwargs)

    return folded


def _by_default_on_cpu(run: Callable[..., Any]) -> Callable[..., Any]:
    def generate(*args: Any, **kwargs: Any) -> Any:
        for name in _TIMED:
            if getattr(config, name):
                raise OptionError(
                    f"{name}=True, a setting of Inductor, chooses kernels by timing them, and on paper none is run; "
                    "leave it out to be told of the step without it"
                )
        # The graph itself names the device of everything that it makes.
        with _CPU:
            return run(*args, **kwargs)

    return generate


def _where_forced(begins: Callable[..., Any]) -> Callable[..., Any]:
    """Inductor times padded products against plain ones; the plain ones, which take less memory, stand for both.

    Nothing is looked for at all, since torch traces a pattern anew for every product: 10 s for a model of 48 layers.
    """

    def begin(*args: Any, **kwargs: Any) -> None:
        if config.force_shape_pad:
            begins(*args, **kwargs)

    return begin


def _enter_triton(stack: ExitStack, gpu: Gpu) -> None:
    """Triton says that it compiles for `gpu`, and has nothing to load."""
    try:
        from triton.backends.compiler import GPUTarget  # type: ignore[import-not-found, import-untyped, unused-ignore]
        from triton.runtime import driver  # type: ignore[import-not-found, import-untyped, unused-ignore]
    except ImportError:
        return
    major, minor = gpu.capability
    target = GPUTarget("cuda", major * 10 + minor, 32)
    paper = SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        get_device_interface=lambda: torch.cuda,
        get_active_torch_device=lambda: torch.device("cuda", 0),
        set_current_device=lambda *_: None,
        is_active=lambda: True,
    )
    # Not `reset_active`, which looks for a real driver.
    stack.callback(driver.set_active, driver._active)
    driver.set_active(paper)
