"""Records the graphs that Inductor compiles, and makes twins that run on fake tensors with the kernels left out.

Inductor emits, for each graph, a Python module: a `call` that allocates buffers, starts kernels, deletes
buffers at their last use, and returns. All that decides memory is in that function, nothing in the kernels;
so the same code object, run with other globals, is an exact and quick model of the graph's memory.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import FunctionType, MethodType, SimpleNamespace, TracebackType
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.arena.placed_graph import PlacedGraph, with_globals
from remat_compiler.arena.placing import Placement
from remat_compiler.costs.seen_workspace import watched
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.kernel_numbers import numbers_for_kernels
from remat_compiler.dry_run.placed_observer import PlacedObserver, StepObserver

# Emitted modules define each kernel at top level: ``cpp_fused_add_0 = async_compile.cpp_pybinding(...)``.
_KERNEL = re.compile(r"^(\w+) = async_compile\.\w+\(", re.MULTILINE)
# Emitted code calls collectives by their full names: ``torch.ops._c10d_functional.all_reduce_.default(buf0,``.
_COLLECTIVE = re.compile(r"torch\.ops\.(_c10d_functional\.\w+)\.\w+\((\w*)")


class DryRunUnsupported(Exception):
    """The step cannot be run on fake tensors; the message is the reason that users are shown."""


@dataclass(frozen=True, slots=True, eq=False)
class EmittedGraph:
    """One graph that Inductor compiled or took from a cache.

    Attributes:
        owner: Inductor's object, which the compiled step calls.
        call: The emitted wrapper before torch wraps it for CUDA graphs and realignment.
        partitions: Pieces of the wrapper that it calls through its runner, also unwrapped.
        is_backward: Whether it is a backward graph.
        source: Python text of the emitted module; empty when there is none.
        placed: Runs in its place, if its allocations may be placed.
    """

    owner: Any
    call: Callable[..., Any]
    partitions: tuple[Callable[..., Any], ...]
    is_backward: bool
    source: str
    placed: PlacedGraph | None = None

    @staticmethod
    def of(owner: Any) -> EmittedGraph:
        """The graph that Inductor's object has, before torch wraps its callable."""
        # A wrapper that Inductor split into partitions is a method of a runner that holds them.
        runner = getattr(owner.current_callable, "__self__", None)
        return EmittedGraph(
            owner=owner,
            call=owner.current_callable,
            partitions=tuple(getattr(runner, "partitions", ())),
            is_backward=bool(owner.fx_kwargs.get("is_backward")),
            source=owner.source_code or "",
        )

    @property
    def filename(self) -> str:
        """File name in the code object of the wrapper; empty for a wrapper that is not Python."""
        # Bound methods keep their code object in `__func__`; a C++ wrapper has none.
        code = getattr(getattr(self.call, "__func__", self.call), "__code__", None)
        return code.co_filename if code is not None else ""

    @property
    def collectives(self) -> tuple[str, ...]:
        """Collectives in the order in which emitted code issues them, each with its first argument if that is an input.

        Buffers are left out: their numbers depend on what Inductor fuses, which may differ by size.
        """
        found = _COLLECTIVE.findall(self.source)
        return tuple(f"{name} {'' if first.startswith('buf') else first}" for name, first in found)


class GraphRecorder:
    """Context manager around a compilation: afterwards `graphs` holds the compiled graphs, in that order.

    Within it the backward is compiled together with the forward. Recorders nest, and each records only the thread
    that entered it.

    Args:
        placed_on: Device type on which allocations of the graphs may be placed; empty for none.
        workspace: Its table is told what operators take inside that it awaits, as the graphs run them.
    """

    def __init__(self, placed_on: str = "", workspace: WorkspaceTable | None = None) -> None:
        self.graphs: list[EmittedGraph] = []
        self._placed_on = placed_on
        self._workspace = workspace
        self._thread = 0
        self._config = torch_compat.compile_backward_at_once()

    def __enter__(self) -> GraphRecorder:
        self._thread = threading.get_ident()
        self._config.__enter__()
        torch_compat.add_post_compile_listener(self._hear)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch_compat.remove_post_compile_listener(self._hear)
        self._config.__exit__(kind, error, trace)

    @property
    def forward(self) -> tuple[EmittedGraph, ...]:
        """Graphs of the forward (or of inference)."""
        return tuple(graph for graph in self.graphs if not graph.is_backward)

    @property
    def backward(self) -> tuple[EmittedGraph, ...]:
        """Graphs of the backward."""
        return tuple(graph for graph in self.graphs if graph.is_backward)

    def interpreted(self, graph: torch_compat.InterpretedGraph) -> None:
        """Have a graph that is interpreted tell the table of workspaces; it is not recorded, since it needs no twin."""
        if self._workspace is not None:
            graph.current_call = watched(graph.current_call, self._workspace)

    def _hear(self, owner: Any) -> None:
        # Listeners are process-wide, and another thread may compile a backward at the same time.
        if threading.get_ident() != self._thread:
            return
        graph = EmittedGraph.of(owner)
        if self._placed_on and graph.filename:
            placed = PlacedGraph(graph.call, graph.partitions, graph.is_backward, self._placed_on)
            # Before torch wraps the callable: its wrappers then call this.
            torch_compat.run_instead(owner, placed)
            graph = replace(graph, placed=placed)
        # Awaited since the joint graph was partitioned, which was before any of its graphs is emitted.
        if self._workspace is not None and self._workspace.awaited and graph.filename:
            torch_compat.run_instead(owner, watched(owner.current_callable, self._workspace))
        self.graphs.append(graph)


class _SkippedKernel:
    """Stands for a compiled kernel: reports that it was started and does nothing."""

    __slots__ = ("_name", "_report")

    def __init__(self, name: str, report: Callable[[str], None]) -> None:
        self._name = name
        self._report = report

    def __call__(self, *args: object, **kwargs: object) -> None:
        self._report(self._name)

    def run(self, *args: object, **kwargs: object) -> None:
        """Triton's way to start a kernel."""
        self._report(self._name)


def make_twin(
    graph: EmittedGraph, observer: StepObserver, placement: Placement | None = None
) -> Callable[[list[Any]], Any]:
    """The wrapper of `graph` with kernels left out, to be called under a fake tensor mode.

    Args:
        graph: A graph that Inductor emitted.
        observer: Is told of kernels, and makes the tensors.
        placement: The places of its allocations on the counted device; `None` for the allocator's own.

    Raises:
        DryRunUnsupported: The wrapper is not Python (C++ wrapper, ahead-of-time Inductor).
    """
    placed = PlacedObserver(observer)
    call = _without_kernels(graph, observer, placed)
    numbers = numbers_for_kernels(graph.filename, graph.source)

    def observed(arguments: list[Any]) -> Any:
        observer.entered(graph.is_backward, arguments)
        placed.begin(placement, arguments)
        with numbers:
            results = call(arguments)
        observer.left(results)
        return results

    return observed


def _without_kernels(graph: EmittedGraph, observer: StepObserver, placed: PlacedObserver) -> Callable[[list[Any]], Any]:
    """The wrapper of `graph` with other globals: kernels that do nothing, and allocators that `placed` has."""
    function = graph.call.__func__ if isinstance(graph.call, MethodType) else graph.call
    if not isinstance(function, FunctionType):
        raise DryRunUnsupported(f"the emitted wrapper is a {type(graph.call).__name__}, not a Python function")
    # New globals rather than changed ones: other threads may run the module meanwhile.
    old = function.__globals__
    # By name, since kernels have no type in common: it differs by device.
    kernels = set(_KERNEL.findall(graph.source))
    new: dict[str, Any] = {}
    for name, value in old.items():
        if name in kernels:
            new[name] = _SkippedKernel(name, observer.saw_kernel)
        elif isinstance(value, torch.Tensor):
            new[name] = observer.adopt_constant(value)
        # Functions of the module start kernels and allocate, too; imported ones stay as they are.
        elif isinstance(value, FunctionType) and value.__globals__ is old:
            new[name] = _with_globals(value, new)
        else:
            new[name] = value
    # torch adds assertions from version to version (on groups of tensors since 2.14); all read real memory.
    new.update((name, _assert_nothing) for name in old if name.startswith("assert_"))
    new.update((name, stand_in) for name, stand_in in _stand_ins(placed).items() if name in old)
    call: Callable[[list[Any]], Any] = _with_globals(function, new)
    if isinstance(graph.call, MethodType):
        # The wrapper calls its pieces as `self.partitions[i]`, so its twin needs a runner with twins of them.
        runner = SimpleNamespace(partitions=[_with_globals(piece, new) for piece in graph.partitions])
        call = MethodType(call, runner)
    return call


def _with_globals(function: Callable[..., Any], new: dict[str, Any]) -> FunctionType:
    if not isinstance(function, FunctionType):
        raise DryRunUnsupported(f"a piece of the emitted wrapper is a {type(function).__name__}, not a function")
    return with_globals(function, new)


def _stand_ins(observer: PlacedObserver) -> dict[str, Callable[..., Any]]:
    """Replacements for the wrapper's helpers, which are C++ functions on real memory."""

    def reinterpret(base: torch.Tensor, size: Any, stride: Any, offset_increment: int) -> torch.Tensor:
        # The emitted offset counts from the base's own, a view's from the start of the storage.
        return observer.view(base, size, stride, int(base.storage_offset()) + offset_increment)

    def from_pool(pool: torch.Tensor, offset_bytes: int, dtype: torch.dtype, size: Any, stride: Any) -> torch.Tensor:
        # A view, so that the pool counts once, from its own allocation.
        return torch.as_strided(pool.view(torch.uint8)[offset_bytes:].view(dtype), size, stride)

    def symmetric(size: Any, stride: Any, dtype: torch.dtype, device: torch.device, **_: object) -> torch.Tensor:
        return observer.make_outside(size, stride, dtype, device)

    allocators: dict[str, Callable[..., Any]] = {f"empty_strided_{t}": _allocator(observer, t) for t in _DEVICE_TYPES}
    return allocators | {
        "empty_strided_p2p": symmetric,
        "empty_strided_cpu_pinned": _allocator(observer, "cpu"),
        "reinterpret_tensor": reinterpret,
        "alloc_from_pool": from_pool,
        "copy_if_misaligned": _copied_if_misaligned,
    }


_ALIGNMENT_BYTES = 16
"""Of inputs of graphs on a GPU that were compiled for as aligned."""


def _copied_if_misaligned(tensor: torch.Tensor) -> torch.Tensor:
    """An input as kernels on a GPU read it; memory itself begins at a multiple of more bytes."""
    begin = torch_compat.size_hint(tensor.storage_offset()) * tensor.dtype.itemsize
    return tensor.clone() if begin % _ALIGNMENT_BYTES else tensor


def _assert_nothing(*_: object, **__: object) -> None:
    """Replaces layout checks, which fake tensors pass by construction."""


# Inductor emits one allocator for each, such as `empty_strided_cuda`.
_DEVICE_TYPES = ("cpu", "cuda", "xpu", "mtia")


def _allocator(observer: PlacedObserver, device_type: str) -> Callable[..., torch.Tensor]:
    def empty_strided(size: Any, stride: Any, dtype: torch.dtype, *_: object) -> torch.Tensor:
        # A device without an index would not compare equal to that of the other tensors.
        device = "cpu" if device_type == "cpu" else f"{device_type}:{torch.accelerator.current_device_index()}"
        return observer.allocate(size, stride, dtype, torch.device(device))

    return empty_strided
