"""What operators take inside as the program itself runs them, of those that are not run while compiling.

A graph that holds such an operator is watched in its first calls: a dispatch mode sees each operator, interpreted or of
emitted code, and takes down the allocator's events around those that are awaited.  Nothing runs that the program
does not run, and results are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.workspace import WorkspaceTable, peak_beyond

LOOKS = 8
"""Calls of a graph that are watched: what is taken may depend on values, and on sizes that change."""

Run = Callable[[list[Any]], Any]


def watched(run: Run, table: WorkspaceTable) -> Run:
    """What runs a graph, watched in its first calls if the table awaits operators; else `run` itself."""
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
        with _WorkspaceWatch(self._table):
            return self._run(arguments)


class _WorkspaceWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Takes down what awaited operators take inside."""

    # Otherwise torch raises an error for those that hold graphs.
    supports_higher_order_operators = True

    def __init__(self, table: WorkspaceTable) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._table = table

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        # Before it runs, which may change the sizes of an argument.
        call = OpCall.any(func, args, kwargs) if str(func) in self._table.awaited else None
        if call is None:
            return func(*args, **kwargs)
        seen = _on_cuda if call.device_type == "cuda" else _on_cpu
        result, size_bytes = seen(lambda: func(*args, **kwargs))
        self._table.saw(call, size_bytes)
        return result


def _on_cpu(run: Callable[[], Any]) -> tuple[Any, int]:
    """The result of `run`, and the most bytes that it took at once beside that."""
    deltas, result = torch_compat.memory_deltas(run)
    return result, peak_beyond(deltas)


def _on_cuda(run: Callable[[], Any]) -> tuple[Any, int]:
    """The same on a GPU; at most, unless this is the highest peak so far.

    The allocator's highest peak is the user's to reset.  All that it gave out meanwhile, less what is kept, is no less.
    """
    before, highest = torch.cuda.memory_stats(), torch.cuda.max_memory_allocated()
    result = run()
    after, now = torch.cuda.memory_stats(), torch.cuda.max_memory_allocated()
    left = after.get(_LIVE, 0)
    given_out = after.get(_GIVEN_OUT, 0) - before.get(_GIVEN_OUT, 0) - (left - before.get(_LIVE, 0))
    return result, max(0, min(given_out, now - left) if now > highest else given_out)


_LIVE, _GIVEN_OUT = "allocated_bytes.all.current", "allocated_bytes.all.allocated"
