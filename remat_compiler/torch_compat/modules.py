"""Graph modules without Python code, and graphs without dead code.

A `fx.GraphModule` writes and compiles Python code each time that it gets a graph, which takes longer than making the
graph.  That code is not run here: Inductor and the interpreter read the graph.  So the modules made here write their
code only when it is first needed.
"""

from __future__ import annotations

import copy
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._inductor import config as inductor_config
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.utils import _pytree as pytree

from remat_compiler.torch_compat.patches import GRAPH_CODE, NODE_ARGUMENTS
from remat_compiler.torch_compat.patching import replace

_patch_lock = threading.RLock()
# Blocks nest and threads overlap, so each patch is put in by the first block and taken out by the last.
_quiet_threads: Counter[int] = Counter()
_write_code_again: Callable[[], None] | None = None
_copying = 0
_search_again: Callable[[], None] | None = None
# torch's own, from before `mincut` replaces it by a function that calls `erase_dead_code`.
_eliminate_dead_code = fx.Graph.eliminate_dead_code


def new_module(root: fx.GraphModule | dict[str, Any], graph: fx.Graph) -> fx.GraphModule:
    """A module of `graph`, with those attributes of `root` that the graph names; it writes Python code on demand."""
    return _LazyGraphModule(root, graph)


def copy_module(module: fx.GraphModule) -> fx.GraphModule:
    """A graph module with the same nodes, which may be changed without changing `module`."""
    graph = module.graph
    codegen = graph._codegen
    # A deep copy of it would copy the structure of a joint graph's inputs, of which torch warns the user.
    graph._codegen = fx.graph.CodeGen()
    try:
        copied = copy.deepcopy(graph)
    finally:
        graph._codegen = codegen
    copied._codegen = copy.copy(codegen)
    return new_module(module, copied)


def erase_dead_code(graph: fx.Graph, outputs: Iterable[fx.Node] = ()) -> bool:
    """Erase the nodes that neither the graph's output nor `outputs` need, with torch's notion of side effects.

    torch's own pass looks for effects of every node rather than of those without users; it is used only if the graph
    has higher-order operators, since it also cleans up their bodies.

    Returns:
        Whether there was anything to erase.
    """
    owner = graph.owning_module
    if owner is not None and any(isinstance(child, fx.GraphModule) for child in owner.children()):
        return _eliminate_dead_code(graph)
    count = len(graph.nodes)
    needed = set(outputs)
    # Random operators change the generator; Inductor does not draw from it unless told to.
    impure_random = torch._guards.TracingContext.try_get() is None or inductor_config.fallback_random
    # Backwards, so that a node loses its dead users before its turn.
    for node in reversed(graph.nodes):
        if not node.users and node not in needed and not node.is_impure(impure_random):
            graph.erase_node(node)
    return len(graph.nodes) < count


@contextmanager
def without_code() -> Iterator[None]:
    """Within the block, modules that this thread makes or changes write no Python code.

    torch's helpers write code for each intermediate module.  A module that leaves the block must go through
    `new_module`, or it could not be called.
    """
    thread = threading.get_ident()
    _enter(thread)
    try:
        yield
    finally:
        _leave(thread)


def _enter(thread: int) -> None:
    global _write_code_again
    with _patch_lock:
        _quiet_threads[thread] += 1
        if _write_code_again is None:
            _write_code_again = replace(GRAPH_CODE, _unless_quiet)


def _unless_quiet(original: Callable[[fx.GraphModule], Any]) -> Callable[[fx.GraphModule], Any]:
    def recompile(self: fx.GraphModule) -> Any:
        return None if threading.get_ident() in _quiet_threads else original(self)

    return recompile


def _leave(thread: int) -> None:
    global _write_code_again
    with _patch_lock:
        _quiet_threads[thread] -= 1
        # `recompile` asks for the key, which a count of 0 would keep; and numbers of threads are used again.
        if not _quiet_threads[thread]:
            del _quiet_threads[thread]
        if not _quiet_threads and _write_code_again is not None:
            _write_code_again()
            _write_code_again = None


class _Unsearched:
    """`torch.utils._pytree`, except that `tree_iter` yields no leaves."""

    def __getattr__(self, name: str) -> Any:
        return getattr(pytree, name)

    def tree_iter(self, _: Any) -> tuple[Any, ...]:
        """No leaves."""
        return ()


@contextmanager
def copying_nodes() -> Iterator[None]:
    """Within the block, arguments of new nodes are not searched for symbolic numbers.

    Since 2.13 torch searches them to warn whenever a node is made, which is half of the time of making one.  For
    copied nodes it has warned of the originals.
    """
    global _copying, _search_again
    with _patch_lock:
        _copying += 1
        if _search_again is None:
            _search_again = replace(NODE_ARGUMENTS, lambda _: _Unsearched())
    try:
        yield
    finally:
        with _patch_lock:
            _copying -= 1
            if not _copying and _search_again is not None:
                _search_again()
                _search_again = None
