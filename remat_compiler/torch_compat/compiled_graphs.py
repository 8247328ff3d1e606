"""Compiled graphs of Inductor: listeners hear of them as they are made, and something else may run for them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor.output_code import CompiledFxGraph

from remat_compiler.torch_compat.fake_tensors import FakeTensor
from remat_compiler.torch_compat.patches import BACKWARD_AT_ONCE, EMITTED_CALLABLE, EMITTED_CONTEXT, EMITTED_GRAPHS
from remat_compiler.torch_compat.patching import replace, replace_in, replaced_in, settings

_post_compile_lock = threading.RLock()

Listener = Callable[[CompiledFxGraph], Callable[[], None] | None]
"""Hears of a graph; what it returns, if anything, is called once torch has wrapped the graph's callable."""

_post_compile_listeners: list[Listener] = []

_post_compile_undo: Callable[[], None] | None = None


def add_post_compile_listener(listener: Listener) -> None:
    """Call `listener` with each graph that Inductor compiled or loaded, before torch wraps its callable.

    Every way into a compiled graph passes `post_compile`: a fresh compile, a hit of the FX graph cache, and
    a hit of AOTAutograd's cache. torch is patched only while somebody listens.
    """
    global _post_compile_undo
    with _post_compile_lock:
        if _post_compile_undo is None:
            _post_compile_undo = replace(EMITTED_GRAPHS, _telling_listeners)
        _post_compile_listeners.append(listener)


def _telling_listeners(original: Callable[..., None]) -> Callable[..., None]:
    def post_compile(self: CompiledFxGraph, *args: Any, **kwargs: Any) -> None:
        # A copy, as another thread may remove its listener meanwhile.
        later = [listener(self) for listener in tuple(_post_compile_listeners)]
        # Afterwards: it wraps the callable, and a wrapper runs on real memory only.
        original(self, *args, **kwargs)
        for finish in later:
            if finish is not None:
                finish()

    return post_compile


def remove_post_compile_listener(listener: Listener) -> None:
    """Undo one `add_post_compile_listener`; the last one restores torch's own method."""
    global _post_compile_undo
    with _post_compile_lock:
        _post_compile_listeners.remove(listener)
        if not _post_compile_listeners and _post_compile_undo is not None:
            _post_compile_undo()
            _post_compile_undo = None


def compile_backward_at_once() -> AbstractContextManager[None]:
    """Context in which AOTAutograd compiles the backward with the forward, not at the first `.backward()`."""
    return settings({BACKWARD_AT_ONCE: True})


@contextmanager
def callable_replaced(graph: CompiledFxGraph, replacement: Callable[[list[Any]], Any]) -> Iterator[None]:
    """Run `replacement` if `graph` is called with fake tensors; everything that such a call changes is put back.

    Other threads may run the graph meanwhile.
    """

    def choosing(call: Callable[[list[Any]], Any] | None) -> Callable[[list[Any]], Any]:
        def chosen(inputs: list[Any]) -> Any:
            real = [type(x) is not FakeTensor for x in inputs if isinstance(x, torch.Tensor)]
            # A call without tensors may be either; on fake tensors the emitted code would fail.
            runs = call if call is not None and real and all(real) else replacement
            return runs(inputs)

        return chosen

    with replaced_in(EMITTED_CALLABLE, graph, choosing), replaced_in(EMITTED_CONTEXT, graph, lambda _: None):
        yield


def run_instead(graph: CompiledFxGraph, replacement: Callable[[list[Any]], Any]) -> None:
    """Run `replacement` in place of `graph` from now on."""
    replace_in(EMITTED_CALLABLE, graph, lambda _: replacement)


def symbolic_kernels() -> AbstractContextManager[None]:
    """Context in which operators on fake tensors take symbolic sizes in every argument, not only as shapes."""
    context: AbstractContextManager[None] = enable_python_dispatcher()
    return context
