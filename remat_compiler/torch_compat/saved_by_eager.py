"""What operators hold for their backward that autograd runs without a compiled graph."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from remat_compiler.torch_compat.compile_again import dense_parts

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
    given = {part.untyped_storage().data_ptr() for tensor in tensors for part in dense_parts(tensor)}
    waiting = [tensor.grad_fn for tensor in tensors if tensor.grad_fn is not None]
    seen: set[Any] = set(waiting)
    found: dict[int, int] = {}
    while waiting and len(seen) < MOST_NODES:
        node: Any = waiting.pop()
        if type(node).__name__ == COMPILED_NODE:
            continue
        made = [tensor for name, tensor in _saved(node) if tensor.grad_fn is not None or name.startswith(_RESULT)]
        for storage in (part.untyped_storage() for tensor in made for part in dense_parts(tensor)):
            if storage.data_ptr() not in given:
                found[storage.data_ptr()] = storage.nbytes()
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)
    return sum(found.values())


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
                found[id(base)] = sum(one.numel() * one.element_size() for one in dense_parts(base))
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
