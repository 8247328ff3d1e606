"""Graph modules without Python code.

A `fx.GraphModule` writes and compiles Python code each time that it gets a graph, which takes longer than making the
graph.  Nobody runs that code here: Inductor and the interpreter read the graph.  So modules are made that write
their code when it is first asked for.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import fx
from torch.fx._lazy_graph_module import _LazyGraphModule

_patch_lock = threading.RLock()
_quiet_threads: dict[int, int] = {}
_original_recompile: Any = None


def new_module(root: fx.GraphModule, graph: fx.Graph) -> fx.GraphModule:
    """A module of `graph` with the attributes of `root` that it names; it writes Python code on demand."""
    return _LazyGraphModule(root, graph)


def copy_module(module: fx.GraphModule) -> fx.GraphModule:
    """A graph module with the same nodes, which may be changed without changing `module`."""
    return new_module(module, copy.deepcopy(module.graph))


@contextmanager
def without_code() -> Iterator[None]:
    """Within the block, modules that this thread makes or changes write no Python code.

    torch's helpers write it for each module in between.  What leaves the block goes through `new_module`, or it could
    not be called.
    """
    thread = threading.get_ident()
    _enter(thread)
    try:
        yield
    finally:
        _leave(thread)


def _enter(thread: int) -> None:
    global _original_recompile
    with _patch_lock:
        _quiet_threads[thread] = _quiet_threads.get(thread, 0) + 1
        if _original_recompile is None:
            original = _original_recompile = fx.GraphModule.recompile

            def recompile(self: fx.GraphModule) -> Any:
                return None if threading.get_ident() in _quiet_threads else original(self)

            fx.GraphModule.recompile = recompile  # type: ignore[method-assign]


def _leave(thread: int) -> None:
    global _original_recompile
    with _patch_lock:
        _quiet_threads[thread] -= 1
        if not _quiet_threads[thread]:
            del _quiet_threads[thread]
        if not _quiet_threads and _original_recompile is not None:
            fx.GraphModule.recompile = _original_recompile  # type: ignore[method-assign]
            _original_recompile = None
