"""What operators hold for their backward that autograd runs without a compiled graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from remat_compiler.torch_compat.compile_again import dense_parts, num_bytes, storages_of

COMPILED_NODE = "CompiledFunctionBackward"
"""Name of autograd's nodes that AOTAutograd makes; what is behind them is looked at when their graph is called."""
MOST_NODES = 5_000
"""Where looking ends; a figure that is too low says less than there is to say."""
_PREFIX, _RESULT = "_raw_saved_", "_raw_saved_result"


def saved_by_eager(arguments: Iterable[Any]) -> int:
    """Bytes that the operators hold which made `arguments`, back to leaves or to compiled graphs.

    Leaves, such as parameters and data, do not count, and neither do the arguments themselves.  Results that autograd
    does not follow, such as masks, count where torch names them results.
    """
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    given = storages_of(tensors)
    found: dict[int, int] = {}
    for node in _eager_nodes(tensors):
        made = [tensor for name, tensor in _saved(node) if tensor.grad_fn is not None or name.startswith(_RESULT)]
        for storage in (part.untyped_storage() for tensor in made for part in dense_parts(tensor)):
            if storage.data_ptr() not in given:
                found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def gradients_by_eager(arguments: Iterable[Any]) -> int:
    """Bytes, about, by which a step grows when the graph's backward is over and that of the operators before it runs.

    The gradients of `arguments` that eager operators made become those of the leaves before these, one of which may be
    a copy, as where it is laid out otherwise.  May be below 0.
    """
    tensors = [value for value in arguments if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    nodes = list(_eager_nodes(tensors))
    leaves = {id(leaf): leaf for node in nodes if (leaf := getattr(node, "variable", None)) is not None}
    if not leaves:
        return 0
    come_in = [num_bytes(tensor) for tensor in tensors if type(tensor.grad_fn).__name__ != COMPILED_NODE]
    return sum(map(num_bytes, leaves.values())) - sum(come_in) + max(come_in)


def _eager_nodes(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Autograd's nodes that made `tensors`, back to leaves or to compiled graphs; the first of very many."""
    waiting: list[Any] = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen: set[Any] = set(waiting)
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        if type(node).__name__ == COMPILED_NODE:
            continue
        yield node
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)


def gradients_of_views(arguments: Iterable[Any], outputs: Any) -> int:
    """Bytes of the gradients that autograd makes beside a compiled graph, for inputs that outputs are views of.

    AOTAutograd makes such views anew behind the graph, so that their backward is no part of the graph's own.

    Args:
        arguments: What the graph was given.
        outputs: What its call returned.
    """
    given = {id(value): value for value in arguments if isinstance(value, torch.Tensor) and value.requires_grad}
    bases = {part.untyped_storage().data_ptr(): value for value in given.values() for part in dense_parts(value)}
    found: dict[int, int] = {}
    for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
        node = output.grad_fn if isinstance(output, torch.Tensor) else None
        if node is None or id(output) in given or type(node).__name__ == COMPILED_NODE:
            continue
        for part in dense_parts(output):
            base = bases.get(part.untyped_storage().data_ptr())
            if base is not None:
                found[id(base)] = num_bytes(base)
    return sum(found.values())


def _saved(node: Any) -> list[tuple[str, torch.Tensor]]:
    """Tensors that a node of autograd holds, as they are kept: asking for them would run the hooks of those who packed
    them, and make what a checkpoint forgot.
    """
    values: list[tuple[str, Any]] = []
    for name in dir(node):
        if name.startswith(_PREFIX):
            try:
                value = getattr(node, name)
            except RuntimeError:  # they were let go
                continue
            values += [(name, one) for one in (value if isinstance(value, (list, tuple)) else [value])]
    kept = [(name, getattr(one, "data", None)) for name, one in values]
    return [(name, one) for name, one in kept if isinstance(one, torch.Tensor)]
