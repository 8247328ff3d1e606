"""Compiled graphs, fake tensors and the profiler: what the dry run needs of torch."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import fx
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig
from torch._dispatch.python import enable_python_dispatcher, no_python_dispatcher
from torch._inductor.output_code import CompiledFxGraph
from torch._prims_common import suggest_memory_format
from torch._subclasses import fake_tensor
from torch.utils._python_dispatch import _disable_current_modes

from remat_compiler.torch_compat.patches import BACKWARD_AT_ONCE, EMITTED_CALLABLE, EMITTED_CONTEXT, EMITTED_GRAPHS
from remat_compiler.torch_compat.patching import replace, replaced_in, settings
from remat_compiler.torch_compat.sizes import size_hint

FakeTensor = fake_tensor.FakeTensor
FakeTensorMode = fake_tensor.FakeTensorMode

FAKE_RUN_ERRORS: tuple[type[Exception], ...] = (
    fake_tensor.DataDependentOutputException,
    fake_tensor.DynamicOutputShapeException,
    fake_tensor.UnsupportedFakeTensorException,
    fake_tensor.UnsupportedOperatorException,
    fake_tensor.UnsupportedMutationAliasingException,
    NotImplementedError,
)
"""What an operator raises on fake tensors when its result depends on data or nobody described its shapes."""

_post_compile_lock = threading.RLock()
_post_compile_listeners: list[Callable[[CompiledFxGraph], None]] = []
_post_compile_undo: Callable[[], None] | None = None


def add_post_compile_listener(listener: Callable[[CompiledFxGraph], None]) -> None:
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
        for heard in tuple(_post_compile_listeners):
            heard(self)
        original(self, *args, **kwargs)

    return post_compile


def remove_post_compile_listener(listener: Callable[[CompiledFxGraph], None]) -> None:
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
    """Run `replacement` where `graph` is called with fake tensors; all that such a call would change is put back.

    Other threads may run the graph meanwhile.
    """

    def choosing(call: Callable[[list[Any]], Any] | None) -> Callable[[list[Any]], Any]:
        def chosen(inputs: list[Any]) -> Any:
            real = [type(x) is not FakeTensor for x in inputs if isinstance(x, torch.Tensor)]
            runs = call if call is not None and real and all(real) else replacement
            return runs(inputs)

        return chosen

    with replaced_in(EMITTED_CALLABLE, graph, choosing), replaced_in(EMITTED_CONTEXT, graph, lambda _: None):
        yield


def symbolic_kernels() -> AbstractContextManager[None]:
    """Context in which fake tensors take symbolic sizes in every argument of an operator, not in their shapes alone."""
    context: AbstractContextManager[None] = enable_python_dispatcher()
    return context


@contextmanager
def outside_tracing() -> Iterator[None]:
    """Leave the tracing context, all dispatch modes and the Python dispatcher of a compilation under way, and autocast.

    Casts are operators of the captured graph, so what runs it leaves autocast, too.
    """
    with torch._guards.tracing(None), _disable_current_modes(), no_python_dispatcher(), torch._C._DisableAutocast():
        yield


@contextmanager
def grad_mode_kept() -> Iterator[None]:
    """Put the grad mode back at the end of the block.

    A function may leave gradients off for its caller; tracing and running it then does the same.
    """
    enabled = torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(enabled)


def memory_deltas(run: Callable[[], object]) -> tuple[list[int], object]:
    """Bytes that `run` takes from (positive) and gives back to (negative) the CPU allocator, and its result.

    The older of torch's two profilers: it starts in 0.1 ms, where the newer one takes a second the first time
    and prints to the terminal. The result is held until the record ends, so that it counts as taken.

    Raises:
        RuntimeError: A profiler runs already, or `run` raised it.
    """
    config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    torch._C._autograd._enable_profiler_legacy(config)
    try:
        result = run()
    finally:
        records = torch._C._autograd._disable_profiler_legacy()
    events = [event for thread in records for event in thread if str(event.kind()) == "memory_alloc"]
    return [event.cpu_memory_usage() for event in events], result


def profiler_is_running() -> bool:
    """Whether somebody records a profile now (a second one would raise)."""
    return bool(torch._C._autograd._profiler_enabled())


def corrected_fake_result(func: Any, args: tuple[Any, ...], result: Any) -> Any:
    """`result` of an operator on fake tensors with the types, the layout and the storage that the real operator gives.

    On a CPU, batch norm of half-precision inputs with float32 parameters keeps its statistics in float32
    (``at::native::is_mixed_type``); torch's shape function gives them the type of the input.  And it gives the result
    the strides of a transposed input, where the real one is contiguous or lies channels last.  Unfolding and folding
    make a result like their input there, and shrink it, which leaves its storage as large as it was.
    """
    name = func._schema.name if getattr(func, "_schema", None) else ""
    if name in _RESIZED and result.device.type == "cpu" and size_hint(args[0].numel()) > size_hint(result.numel()):
        return result.new_empty(args[0].numel()).as_strided(result.shape, result.stride())
    if not name.startswith(_BATCH_NORMS):
        return result
    inputs = [arg for arg in args[:5] if isinstance(arg, torch.Tensor)]
    if inputs[0].device.type != "cpu":
        return result
    backward = "backward" in func._schema.name
    normalised, *rest = result
    like = inputs[1 if backward else 0]
    if normalised is not None:
        normalised = torch.empty_like(normalised, memory_format=suggest_memory_format(like))
    if not backward and any(arg.dtype is torch.float32 for arg in inputs):
        rest[:2] = [torch.empty_like(item, dtype=torch.float32) for item in rest[:2]]
    return (normalised, *rest)


_RESIZED = ("aten::col2im", "aten::im2col")
_BATCH_NORMS = ("aten::native_batch_norm", "aten::_native_batch_norm_legit", "aten::_batch_norm_with_update")


def new_fake(mode: Any, size: Any, stride: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """An empty fake tensor, at a tenth of the cost of the factory function, and unseen by dispatch modes."""
    with fake_tensor.in_kernel_invocation_manager(mode):
        meta = torch.empty_strided(size, stride, dtype=dtype, device="meta")
    return FakeTensor(mode, meta, device)


def fake_view(mode: Any, base: torch.Tensor, size: Any, stride: Any, offset: int) -> torch.Tensor:
    """`base.as_strided(size, stride, offset)` of a fake tensor, at a tenth of the cost; see `new_fake`."""
    with fake_tensor.in_kernel_invocation_manager(mode), torch.no_grad():
        meta = torch.as_strided(base, size, stride, offset)
    return FakeTensor(mode, meta, base.device)


def fake_call(node: fx.Node) -> tuple[Any, tuple[Any, ...], dict[str, Any], Any]:
    """The call that `node` makes, with fake tensors for its arguments and its result."""
    args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return node.target, args, kwargs, node.meta.get("val")
