"""Values saved for the backward by operators that autograd runs outside of compiled graphs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from remat_compiler.torch_compat.tensors import address_of, dense_parts, num_bytes, storages_of

COMPILED_NODE = "CompiledFunctionBackward"
"""Name of AOTAutograd's nodes.  A walk ends there: the operators before such a node are counted with its own graph."""
MOST_NODES = 5_000
"""Most nodes that a walk visits; of longer graphs the figure is too low."""
_PREFIX, _RESULT = "_raw_saved_", "_raw_saved_result"


def saved_by_eager(arguments: Iterable[Any]) -> int:
    """Bytes saved by the operators that made `arguments`, back to leaves or to compiled graphs.

    Leaves, such as parameters and data, do not count, and neither do the arguments themselves.  Results that autograd
    does not follow, such as masks, count if torch names them results.
    """
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    given = storages_of(tensors)
    # By address, since two operators may save one value, or views of it.
    found: dict[int, int] = {}
    for node in _eager_nodes(tensors):
        # A saved tensor without a node is a leaf, which its owner holds anyway, unless it is a result.
        made = [tensor for name, tensor in _saved(node) if tensor.grad_fn is not None or name.startswith(_RESULT)]
        for part in (part for tensor in made for part in dense_parts(tensor)):
            if address_of(part) not in given:
                found[address_of(part)] = part.untyped_storage().nbytes()
    return sum(found.values())


def gradients_by_eager(arguments: Iterable[Any]) -> int:
    """Bytes by which a step grows, roughly, as the backward of eager operators runs after that of the graph.

    The gradients of `arguments` that eager operators made turn into those of the leaves before them, one of which may
    be a copy, for example in another layout.  May be below 0.
    """
    tensors = [value for value in arguments if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    nodes = list(_eager_nodes(tensors))
    # Nodes that accumulate into a leaf have it as `variable`.
    leaves = {id(leaf): leaf for node in nodes if (leaf := getattr(node, "variable", None)) is not None}
    if not leaves:
        return 0
    come_in = [num_bytes(tensor) for tensor in tensors if type(tensor.grad_fn).__name__ != COMPILED_NODE]
    # At worst the largest gradient that comes in is still alive next to its copy.
    return sum(map(num_bytes, leaves.values())) - sum(come_in) + max(come_in)


def _eager_nodes(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Autograd's nodes that made `tensors`, back to leaves or to compiled graphs; at most about `MOST_NODES`."""
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
    """Bytes of the gradients that autograd makes outside of a compiled graph, for inputs that outputs are views of.

    AOTAutograd makes such views again after the graph has run, so their backward is not part of the graph's own.

    Args:
        arguments: The arguments of the graph.
        outputs: The result of its call.
    """
    given = {id(value): value for value in arguments if isinstance(value, torch.Tensor) and value.requires_grad}
    # Views share the memory of their base.
    bases = {address_of(part): value for value in given.values() for part in dense_parts(value)}
    found: dict[int, int] = {}
    for output in outputs if isinstance(outputs, (list, tuple)) else [outputs]:
        node = output.grad_fn if isinstance(output, torch.Tensor) else None
        if node is None or id(output) in given or type(node).__name__ == COMPILED_NODE:
            continue
        for part in dense_parts(output):
            base = bases.get(address_of(part))
            # Once for an input, however many views of it there are: autograd adds their gradients up.
            if base is not None:
                found[id(base)] = num_bytes(base)
    return sum(found.values())


def _saved(node: Any) -> list[tuple[str, torch.Tensor]]:
    """Tensors that a node of autograd holds, in packed form, with the names of the attributes.

    Unpacking them would run the user's hooks, and recompute the values that a checkpoint has dropped.
    """
    values: list[tuple[str, Any]] = []
    for name in dir(node):
        if name.startswith(_PREFIX):
            try:
                value = getattr(node, name)
            except RuntimeError:  # a backward has released them
                continue
            values += [(name, one) for one in (value if isinstance(value, (list, tuple)) else [value])]
    # A value that hooks have packed need not be a tensor.
    kept = [(name, getattr(one, "data", None)) for name, one in values]
    return [(name, one) for name, one in kept if isinstance(one, torch.Tensor)]
