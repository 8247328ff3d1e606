"""Memory that operators take inside, seen as the program runs them, for those that are not run while compiling.

A graph that holds such an operator is watched in its first calls: a dispatch mode sees each operator, interpreted or of
emitted code, and records the allocator's events around those that are awaited.  Only the program itself runs, and
its results are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.workspace import WorkspaceTable

LOOKS = 8
"""Calls of a graph that are watched: the memory may depend on values, and on sizes that change."""

Run = Callable[[list[Any]], Any]


def watched(run: Run, table: WorkspaceTable) -> Run:
    """A callable that runs a graph and watches its first calls, if the table awaits operators; else `run` itself."""
    return _Watched(run, table) if table.awaited else run


class _Watched:
    """Runs a graph, and watches the first calls."""

    # AOTAutograd hands over a list that is emptied, so that arguments can be freed at their last use.
    _boxed_call = True

    def __init__(self, run: Run, table: WorkspaceTable) -> None:
        self._run, self._table, self._looks = run, table, LOOKS

    def __call__(self, arguments: list[Any]) -> Any:
        """Run the graph."""
        if not self._looks or torch_compat.any_fake(arguments) or torch_compat.profiler_is_running():
            return self._run(arguments)
        self._looks -= 1
        with WorkspaceWatch(self._table.awaited, self._table.saw):
            return self._run(arguments)


class WorkspaceWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the memory that operators take inside.

    Args:
        names: Those that are watched.
        saw: Called with each call of them, and its bytes.
    """

    # Otherwise torch raises an error for those that hold graphs.
    supports_higher_order_operators = True

    def __init__(self, names: Container[str], saw: Callable[[OpCall, int], None]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._names, self._saw = names, saw

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Have compiled code run within it, as torch asks of modes that change no operator."""
        return True

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # Before it runs, which may change the sizes of an argument.
        call = OpCall.any(func, args, kwargs) if str(func) in self._names else None
        if call is None:
            return func(*args, **kwargs)
        # On a GPU the first run may also allocate memory that libraries keep: the figure is an upper limit.
        deltas, result = torch_compat.memory_deltas(lambda: func(*args, **kwargs), call.device_type)
        self._saw(call, torch_compat.peak_beyond(deltas))
        return result
