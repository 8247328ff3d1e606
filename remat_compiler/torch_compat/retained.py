"""Backward passes that may run again: ``backward(retain_graph=True)`` and ``create_graph=True``.

A backward that is compiled together with its forward is compiled as if it ran once: it may write over saved values
("donated buffers"), and torch refuses to keep the graph.  Stock backends compile the backward when it first runs, and
see then whether the graph is kept.  Here a backward that keeps its graph is given copies of what it writes over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._prims_common import clone_preserve_strides

from remat_compiler.torch_compat.patches import RETAINED_GRAPHS
from remat_compiler.torch_compat.patching import replace
from remat_compiler.torch_compat.thread_flag import ThreadFlag

_compiling = ThreadFlag()


@contextmanager
def graphs_may_be_retained() -> Iterator[None]:
    """Steps that this thread compiles within the block, or takes from AOTAutograd's cache, may keep their graph."""
    _watch_compiled_steps()
    with _compiling.set():
        yield


@cache
def _watch_compiled_steps() -> None:
    """Pass each backward through `_retainable` on its way into autograd, whether it is new or comes from the cache."""
    replace(RETAINED_GRAPHS, _through_retainable)


def _through_retainable(original: Callable[..., Any]) -> Callable[..., Any]:
    def post_compile(*args: Any, **keywords: Any) -> Any:
        if not _compiling:
            return original(*args, **keywords)
        if len(args) == 1:
            spec = args[0]
            spec.compiled_bw_func = _retainable(spec.compiled_bw_func, spec.fw_metadata)
        else:  # torch 2.11 hands over the fields of the specification one by one
            args = (args[0], _retainable(args[1], keywords["fw_metadata"]), *args[2:])
        return original(*args, **keywords)

    return post_compile


def _retainable(backward: Any, metadata: Any) -> Any:
    """`backward` that may keep its graph; `metadata` no longer forbids it."""
    if not getattr(backward, "_boxed_call", False):
        return backward  # compiled later, or called in a way unknown here: torch's own check stays
    donated = tuple(metadata.bw_donated_idxs or ())
    # torch refuses to keep the graph of a step with donated buffers; its check reads this list.
    metadata.bw_donated_idxs = []
    return _with_copies(backward, donated) if donated else backward


def keeps_graph() -> bool:
    """Whether the backward that is under way in this thread keeps its graph, so that it may run again."""
    return bool(torch._C._autograd._get_current_graph_task_keep_graph())


def _with_copies(backward: Callable[[list[Any]], Any], donated: Sequence[int]) -> Callable[[list[Any]], Any]:
    """`backward` that is given copies of the arguments at these positions if it may run again."""

    def run(arguments: list[Any]) -> Any:
        # Copies only then: the last backward may write over the saved values, as planned.
        if keeps_graph():
            for position in donated:
                arguments[position] = clone_preserve_strides(arguments[position])  # type: ignore[no-untyped-call]
        return backward(arguments)

    run._boxed_call = True  # type: ignore[attr-defined]
    return run
