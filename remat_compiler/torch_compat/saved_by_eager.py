"""Values saved for the backward by operators that autograd runs outside of compiled graphs."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from remat_compiler.torch_compat.backward_nodes import compiled_backward, outputs_of
from remat_compiler.torch_compat.backward_starts import Roots, nodes_of
from remat_compiler.torch_compat.tensors import (
    address_of,
    casts_gradient,
    dense_parts,
    is_wrapper,
    num_bytes,
    storages_of,
)

COMPILED_NODE = "CompiledFunctionBackward"
"""Name of AOTAutograd's nodes.  A walk ends there: the operators before such a node are counted with its own graph."""
MOST_NODES = 5_000
"""Most nodes that a walk visits; of longer graphs the figure is too low."""
_PREFIX, _RESULT, _OF_FUNCTION = "_raw_saved_", "_raw_saved_result", "_raw_saved_tensors"


def saved_by_eager(arguments: Iterable[Any], outputs: Any = None) -> int:
    """Bytes that eager operators hold for a backward through `arguments`, back to leaves or to compiled graphs.

    Leaves that somebody holds, such as parameters and data, do not count, and neither do the arguments themselves,
    which the program holds.  Results that autograd does not follow, such as masks, count if torch names them results,
    or if autograd alone holds them, as it does dropout's.

    Args:
        arguments: The arguments of a compiled graph.
        outputs: The result of its call, before its backward.  If given, arguments count that eager operators made and
            that the graph keeps for its own backward: between two graphs nobody else holds them.
    """
    tensors = [value for value in arguments if isinstance(value, torch.Tensor)]
    nodes, of_compiled = eager_walk(nodes_of(tensors))
    # By address, since two operators may save one value, or views of it.
    found: dict[int, int] = {}
    for node in nodes:
        found |= _storages(_made(node))
    given, handed_on = storages_of(tensors), set[int]()
    kept_by = compiled_backward(outputs, tensors)
    if kept_by is not None:
        made = _storages(value for value in tensors if value.grad_fn is not None and not _is_compiled(value))
        kept = [value for _, value in _saved(kept_by)] + getattr(kept_by, "_tensors_no_vc_check", [])
        # Views of leaves and of other graphs' results are counted with these.
        leaves = storages_of([node.variable for node in nodes if hasattr(node, "variable")])
        handed_on = storages_of(kept) & made.keys() - leaves
        found |= made
    counted = found.keys() - (given - handed_on) - of_compiled
    return sum(found[address] for address in counted)


def saved_before(roots: Roots) -> int:
    """Bytes that eager operators hold for a backward from `roots`, also those in front of compiled graphs.

    What a running backward has released does not count, nor do results of compiled graphs, which count with these.
    """
    found: dict[int, int] = {}
    nodes, of_compiled = eager_walk(nodes_of(roots), through_compiled=True)
    for node in nodes:
        found |= held_by(node)
    return sum(size for address, size in found.items() if address not in of_compiled)


def gradients_by_eager(arguments: Iterable[Any]) -> int:
    """Bytes by which a step grows, roughly, as the backward of eager operators runs after that of the graph.

    The gradients of `arguments` that eager operators made turn into those of the leaves before them, one of which may
    be a copy, for example in another layout.  May be below 0.
    """
    tensors = [value for value in arguments if isinstance(value, torch.Tensor) and value.grad_fn is not None]
    nodes = list(eager_nodes(nodes_of(tensors)))
    # Nodes that accumulate into a leaf have it as `variable`.
    leaves = {id(leaf): leaf for node in nodes if (leaf := getattr(node, "variable", None)) is not None}
    if not leaves:
        return 0
    come_in = [num_bytes(tensor) for tensor in tensors if not _is_compiled(tensor)]
    # At worst the largest gradient that comes in is still alive next to its copy.
    return sum(map(num_bytes, leaves.values())) - sum(come_in) + max(come_in)


def gradients_by_casts(arguments: Iterable[Any]) -> int:
    """Bytes by which a step grows once its backward has run, as autograd casts gradients of leaves one by one."""
    leaves = {id(x): x for x in arguments if isinstance(x, torch.Tensor) and x.requires_grad and casts_gradient(x)}
    widths = {one: leaf.grad_dtype.itemsize for one, leaf in leaves.items() if leaf.grad_dtype is not None}
    sizes = [(num_bytes(leaf), num_bytes(leaf) // leaf.itemsize * widths[one]) for one, leaf in leaves.items()]
    # One that is cast is still there beside its copy.
    return sum(cast - made for made, cast in sizes) + max((made for made, _ in sizes), default=0)


def eager_nodes(
    starts: Iterable[Any], *, through_compiled: bool = False, met: list[Any] | None = None
) -> Iterator[Any]:
    """Autograd's nodes from `starts` back to leaves or to compiled graphs; at most about `MOST_NODES`.

    Args:
        starts: Nodes.
        through_compiled: Whether to go on before compiled graphs; their own nodes are left out in any case.
        met: Gets those.
    """
    waiting = list(starts)
    seen: set[Any] = set(waiting)
    while waiting and len(seen) < MOST_NODES:
        node = waiting.pop()
        compiled = type(node).__name__ == COMPILED_NODE
        if compiled and met is not None:
            met.append(node)
        if not compiled:
            yield node
        elif not through_compiled:
            continue
        for before, _ in node.next_functions:
            if before is not None and before not in seen:
                seen.add(before)
                waiting.append(before)


def eager_walk(starts: Iterable[Any], *, through_compiled: bool = False) -> tuple[list[Any], set[int]]:
    """`eager_nodes`, and the addresses of what the compiled graphs on the way returned, as far as that was noted."""
    met: list[Any] = []
    nodes = list(eager_nodes(starts, through_compiled=through_compiled, met=met))
    return nodes, {storage.cdata for node in met for storage in outputs_of(node) or ()}


def runs_eager_before(node: Any) -> bool:
    """Whether operators left to eager ran before the compiled graph of this node of autograd."""
    before = [one for one, _ in node.next_functions if one is not None]
    # Nodes that accumulate into a leaf have it as `variable`.
    return any(not hasattr(one, "variable") for one in eager_nodes(before, through_compiled=True))


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


def held_by(node: Any) -> dict[int, int]:
    """Bytes by address that an eager operator holds for its backward, but for leaves and results of compiled graphs."""
    made = _made(node)
    return _storages(tensor for tensor in made if not (_is_compiled(tensor) or _is_compiled(tensor._base)))


def _made(node: Any) -> list[torch.Tensor]:
    """Tensors that a node holds and that operators made."""
    # A saved tensor without a node is a leaf, which its owner holds anyway, unless it is a result or nobody holds it.
    # So is one that is a view of a leaf, such as the transposed weight of a linear layer.  What a function of the
    # user's saves may be its own: only its inputs have nodes.
    return [
        tensor
        for name, tensor, owner, holds in _with_owners(node)
        if owner.grad_fn is not None
        or name.startswith(_RESULT)
        or (name == _OF_FUNCTION and owner.is_floating_point() and not owner.requires_grad)
        # Numbers without a dimension, such as factors, are on a CPU whatever the device.
        or (tensor.dim() and not owner.requires_grad and holds in _OF_AUTOGRAD_ALONE)
    ]


def _with_owners(node: Any) -> list[tuple[str, torch.Tensor, torch.Tensor, tuple[bool, int, int]]]:
    """What a node saved, by name: the tensor, that which has its memory, and what holds this one.

    The last is whether the tensor is a view, and how often Python and other tensors hold its owner.  The lists here
    hold each tensor, too, so that counts can be compared with those made here only.
    """
    saved = _saved(node)
    owners = [tensor if tensor._base is None else tensor._base for _, tensor in saved]
    # By C code alone: what Python's calls hold of their arguments changes as the interpreter adapts to them.
    held = list(map(sys.getrefcount, owners))
    return [
        (name, tensor, owner, (owner is not tensor, count, _uses_of_storage(owner)))
        for (name, tensor), owner, count in zip(saved, owners, held)
    ]


def _uses_of_storage(tensor: torch.Tensor) -> int:
    # What others wrap has no storage of its own.
    return 0 if is_wrapper(tensor) or not dense_parts(tensor) else torch._C._storage_Use_Count(address_of(tensor))


def _is_compiled(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and type(tensor.grad_fn).__name__ == COMPILED_NODE


def _storages(tensors: Iterable[torch.Tensor]) -> dict[int, int]:
    """Bytes by address."""
    parts = (part for tensor in tensors for part in dense_parts(tensor))
    return {address_of(part): part.untyped_storage().nbytes() for part in parts}


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


def _of_autograd_alone() -> frozenset[tuple[bool, int, int]]:
    """What `_with_owners` says of the holds of a tensor, and for a view, that nothing but a node of autograd holds."""
    # The package may be imported where no gradients are recorded.
    with torch.inference_mode(False), torch.enable_grad():
        weight = torch.ones(2, device="cpu", requires_grad=True)
        made = [weight * torch.ones(2, device="cpu"), weight * torch.ones(4, device="cpu")[:2]]
    return frozenset(holds for one in made for name, _, _, holds in _with_owners(one.grad_fn) if name.endswith("other"))


_OF_AUTOGRAD_ALONE = _of_autograd_alone()
