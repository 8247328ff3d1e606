"""Autograd's engine on fake tensors of a device that is not there.

The engine asks each tensor for its device and that device for its streams, in C++, past all of Python's modes.  Where
there is no driver, that fails.  So the engine is shown the ``meta`` device, which has no streams, while operators,
which the engine calls in between, see the real one:

    engine --"your device?"--> FakeTensor --> meta           asked directly by the engine
    engine --> operator --"your device?"--> FakeTensor --> cuda:0   asked while an operator runs
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.eval_frame import skip_code
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.utils import backend_registration

from remat_compiler.errors import UnsupportedTorch
from remat_compiler.torch_compat.paper_rows import (
    ENGINE,
    ENGINE_CALLBACKS,
    FAKE_MODE,
    FAKE_TENSOR,
    FUNCTION_BACKWARD,
    FUNCTIONAL_DEVICE,
    FUNCTIONAL_MODE,
    FUNCTIONAL_TENSOR,
    PROXY_MODE,
    WRAPPERS,
)
from remat_compiler.torch_compat.patches import BACKWARD_STARTS
from remat_compiler.torch_compat.patching import replaced

_META = torch.device("meta")
_UNNUMBERED = (_META, torch.device("cuda"))
"""What ``cuda`` without a number comes to where torch asks a guard that does nothing for the present device."""
_DEVICE_OF = torch.ops.prim.device.default
_TO_COPY = torch.ops.aten._to_copy.default
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
"""``c10::impl::device_guard_impl_registry``, a table of guards by type of device."""
_CUDA_PLACE, _META_PLACE, _PLACES = 1, 14, 15
"""Places of CUDA and meta in it (``c10/core/DeviceType.h``), and how many are read."""
_DISPATCH_DEVICE = 10
"""Place of ``dispatch_device`` among the arguments with which functional tensors are made, after the class."""

_asked = threading.local()


def enter_autograd(stack: ExitStack, device: torch.device) -> None:
    """Let autograd run on fake tensors of `device` until `stack` is closed.

    Raises:
        UnsupportedTorch: This torch lacks something that is changed.
    """
    _enter_guard(stack)
    stack.enter_context(replaced(ENGINE, _marked))
    stack.enter_context(replaced(BACKWARD_STARTS, _marked))
    stack.enter_context(replaced(FUNCTION_BACKWARD, _unmarked))
    stack.enter_context(replaced(ENGINE_CALLBACKS, _Engine))
    for row in (FAKE_MODE, FUNCTIONAL_TENSOR, FUNCTIONAL_MODE, PROXY_MODE):
        stack.enter_context(replaced(row, lambda original: _method(_shown_meta(original, device))))
    # A class method, which comes bound.
    stack.enter_context(replaced(FAKE_TENSOR, lambda original: _function(_shown_meta(original, device))))
    stack.enter_context(replaced(WRAPPERS, _dispatching_device))
    stack.enter_context(replaced(FUNCTIONAL_DEVICE, lambda _: property(_device_of_functional)))


def _enter_guard(stack: ExitStack) -> None:
    """Let switches of device and stream do nothing."""
    if torch.version.cuda:
        _hide_accelerator()
        # Cannot be undone, and does nothing more than that.
        torch._C._ensureCUDADeviceGuardSet()
        return
    name = {"darwin": "libc10.dylib", "win32": "c10.dll"}.get(sys.platform, "libc10.so")
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / name))
        guards = (ctypes.c_void_p * _PLACES).in_dll(library, _REGISTRY)
    except (OSError, ValueError) as error:
        raise UnsupportedTorch(
            torch.__version__, f"the table of device guards is not found ({error})", "no GPU can be stood for on paper"
        ) from error
    before = guards[_CUDA_PLACE]
    if not before:
        guards[_CUDA_PLACE] = guards[_META_PLACE]
        stack.callback(guards.__setitem__, _CUDA_PLACE, before)


@cache
def _hide_accelerator() -> None:
    """Let a CUDA build without a driver take a device of its own kind, which does nothing, for its accelerator.

    A process can do so once.
    """

    class NoHook(backend_registration._DummyPrivateUse1Hook):
        def has_primary_context(self, _: int) -> bool:
            return False

        def is_available(self) -> bool:
            return False

    class NoModule(backend_registration._DummyBackendModule):
        def is_available(self) -> bool:
            return False

        def device_count(self) -> int:
            return 0

    backend_registration._setup_privateuseone_for_python_backend("paper", backend_module=NoModule(), hook=NoHook())


def _marked(run: Callable[..., Any]) -> Callable[..., Any]:
    """The engine's entry: what asks within it, outside of operators, is the engine."""

    def run_backward(t_outputs: Any, *args: Any, **kwargs: Any) -> Any:
        before = _by_engine()
        _asked.by_engine = True
        try:
            # Threads of its own would not have the mark.
            with torch.autograd.set_multithreading_enabled(False):
                return run(t_outputs, *args, **kwargs)
        finally:
            _asked.by_engine = before

    return run_backward


def _unmarked(run: Callable[..., Any]) -> Callable[..., Any]:
    """A function that the engine calls, and which asks for devices by itself."""

    def outside(*args: Any) -> Any:
        before = _by_engine()
        _asked.by_engine = False
        try:
            return run(*args)
        finally:
            _asked.by_engine = before

    return outside


class _Engine:
    """Autograd's engine, whose callbacks are outside of it."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def queue_callback(self, callback: Callable[[], None]) -> None:
        """Have the engine call `callback` at the end of the backward."""
        self._engine.queue_callback(_unmarked(callback))


def _by_engine() -> bool:
    return getattr(_asked, "by_engine", False)


def _shown_meta(original: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """A dispatch that shows the engine the meta device; `owner` is what the method is bound to, if anything."""

    def dispatch(owner: tuple[Any, ...], func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        kwargs = kwargs or {}
        if func is _DEVICE_OF and isinstance(args[0], (FunctionalTensor, FakeTensor)):
            if _by_engine():
                return _META
            if isinstance(args[0], FunctionalTensor):
                return _device_of_functional(args[0])
        if not _by_engine():
            if func is _TO_COPY and kwargs.get("device") in _UNNUMBERED:
                func, args, kwargs = _move(args, {**kwargs, "device": device})
            return original(*owner, func, types, args, kwargs)
        # The engine moves gradients to the device that it was shown: none of these moves is one.
        if func is _TO_COPY and set(kwargs) == {"device"} and kwargs["device"] == args[0].device:
            return args[0]
        if kwargs.get("device") == _META:
            kwargs = {**kwargs, "device": device}
        _asked.by_engine = False
        try:
            return original(*owner, func, types, args, kwargs)
        finally:
            _asked.by_engine = True

    return _untraced(dispatch)


def _move(args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
    """The call that moves a tensor to a device; where it is there already, nothing is copied.

    With ``copy=True`` there would be a copy, and the operator is the same.
    """
    tensor = args[0]
    same = {"dtype": tensor.dtype, "layout": tensor.layout, "device": tensor.device}
    same |= {"memory_format": torch.preserve_format, "pin_memory": False}
    if all(value in (None, same.get(name, value)) for name, value in kwargs.items()):
        return torch.ops.aten.alias.default, (tensor,), {}
    return _TO_COPY, args, kwargs


def _method(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    def torch_dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch((self,), func, types, args, kwargs)

    return _untraced(torch_dispatch)


def _function(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    def torch_dispatch(func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return dispatch((), func, types, args, kwargs)

    return _untraced(torch_dispatch)


def _untraced(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which Dynamo is not to compile where it comes to it in what it left to eager."""
    # `torch._dynamo.disable` would add a call to each operator.
    skip_code(function.__code__)
    return function


def _dispatching_device(make: Callable[..., Any]) -> Callable[..., Any]:
    """Functional tensors are asked for their device, as fake ones are, instead of telling it beforehand."""

    def make_wrapper_subclass(cls: Any, *args: Any, **kwargs: Any) -> Any:
        if cls is FunctionalTensor:
            args = (*args[:_DISPATCH_DEVICE], True, *args[_DISPATCH_DEVICE + 1 :])
        return make(cls, *args, **kwargs)

    return make_wrapper_subclass


def _device_of_functional(tensor: Any) -> torch.device:
    inner: torch.Tensor = torch._from_functional_tensor(tensor.elem)
    return inner.device
