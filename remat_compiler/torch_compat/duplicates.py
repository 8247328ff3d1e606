"""Common subexpressions of a joint graph, merged as torch's partitioner merges them, but in place.

`torch._functorch.compile_utils.fx_graph_cse` copies the whole graph for the few nodes that it merges.  The rules are
the same but for the fourth: two nodes of one operator with equal arguments are merged, unless

- they draw random numbers or have effects,
- an argument may have been changed between them,
- a custom operator is handed their memory to write to,
- one is a custom operator that the program calls in its backward, as where it unpacks weights again lest it keeps them,
- or an output shares their memory: the caller must not find two outputs in one memory.

Since 2.14 torch keeps apart nodes that only the forward needs from those that the backward needs as well.  Some of its
rules are younger than the oldest version supported here.  They keep results right, so they hold for all versions.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from itertools import dropwhile
from typing import Any

import torch
from torch import fx
from torch._functorch import compile_utils
from torch._higher_order_ops.auto_functionalize import get_mutable_args
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch._inductor.pattern_matcher import compute_mutation_region_ids, same_mutation_regions
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

from remat_compiler.torch_compat.operators import COLLECTIVE_NAMESPACES

# They compute nothing.
_ASIDE = ("placeholder", "get_attr", "output")
_TORCHS = frozenset({"aten", "prims", *COLLECTIVE_NAMESPACES})
"""Namespaces of operators that plans may compute anew, or that communicate."""
_KEEPS_HALVES_APART = "extra_node_key" in signature(compile_utils.fx_graph_cse).parameters
"""Whether torch's partitioner keeps apart nodes that the backward needs (2.14 and later)."""


def merge_duplicates(graph: fx.Graph, backward_outputs: Iterable[Any] = ()) -> None:
    """Erase each node that computes the same as an earlier one; afterwards users are in the order of the graph.

    Args:
        graph: A joint graph.
        backward_outputs: Outputs of its backward: nodes, or constants.
    """
    # Numbers the stretches between in-place changes, which `same_mutation_regions` compares.
    compute_mutation_region_ids(graph)
    apart, written, again = _never_merged(graph), _handed_over_to_write(graph), _called_again(graph)
    of_outputs = {_storage(n) for n in graph.output_node().all_input_nodes} - {None}
    of_backward = leading_to(backward_outputs) if _KEEPS_HALVES_APART else frozenset()
    seen: dict[tuple[Any, bool, int], tuple[Any, fx.Node]] = {}
    for node in list(graph.nodes):
        if node.op in _ASIDE or _packet(node.target) in apart or node in written or node.is_impure():
            continue
        # Arguments that were merged are replaced already, so equal chains of operators merge as a whole.
        token = _token(node)
        # As in torch the hash leaves out the nesting, and has the types in it: 1, 1.0 and True are equal in Python.
        key = (node.target, node in of_backward or node in again, hash((token[0], token[1])))
        known = seen.get(key)
        if known is None:
            seen[key] = (token, node)
            continue
        # Storages are looked up only now: most nodes have no duplicate.
        if _storage(known[1]) in of_outputs:
            # Torch never merges others into an alias of an output, so this node is the first that counts.
            seen[key] = (token, node)
        # Only the hash may be equal; then the first node keeps its place, as in torch.
        elif known[0] == token and _storage(node) not in of_outputs:
            if same_mutation_regions(node, known[1]):
                node.replace_all_uses_with(known[1])
                graph.erase_node(node)
            else:
                # An argument may have changed in between: later duplicates can only equal this node.
                seen[key] = (token, node)
    _order_users(graph)


def leading_to(outputs: Iterable[Any]) -> frozenset[fx.Node]:
    """The nodes that `outputs` are computed from, including `outputs` themselves."""
    found: set[fx.Node] = set()
    stack = [output for output in outputs if isinstance(output, fx.Node)]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return frozenset(found)


def _handed_over_to_write(graph: fx.Graph) -> frozenset[fx.Node]:
    """Arguments that functional forms of writing operators may write to in place.

    Two equal ones must stay apart, since Inductor may have each operator write to its own.
    """
    # Each form lists the arguments in another way.
    functional = torch.ops.higher_order
    listing = graph.find_nodes(op="call_function", target=functional.auto_functionalized_v2)
    handed: list[Any] = [node.kwargs.get("_all_bases", ()) for node in listing]
    for node in graph.find_nodes(op="call_function", target=functional.auto_functionalized):
        names, _ = get_mutable_args(node.args[0])
        handed += [node.kwargs.get(name) for name in names]
    for node in graph.find_nodes(op="call_function", target=triton_kernel_wrapper_functional):
        arguments: Any = node.kwargs.get("kwargs", {})
        names = node.kwargs.get("tensors_to_clone", ())
        handed += [arguments.get(name) for name in names]
    return frozenset(leaf for leaf in pytree.tree_leaves(handed) if isinstance(leaf, fx.Node))


def _called_again(graph: fx.Graph) -> frozenset[fx.Node]:
    """Calls of custom operators, whose results no plan may compute anew by itself, in the program's backward."""
    # What the program's own functions compute there is not marked, so it is told by what stands before it.
    calls = (node for node in graph.nodes if node.op == "call_function")
    backward = dropwhile(lambda node: node.meta.get("partitioner_tag") != "is_backward", calls)
    overload = torch._ops.OpOverload
    return frozenset(n for n in backward if isinstance(n.target, overload) and n.target.namespace not in _TORCHS)


def _packet(target: Any) -> Any:
    return getattr(target, "overloadpacket", target)


def _never_merged(graph: fx.Graph) -> frozenset[Any]:
    """Operators that give other values each time.

    torch's own list lacks many of them, such as attention with dropout and ``randn_like``.
    """
    targets = {n.target for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload)}
    random = {t.overloadpacket for t in targets if torch.Tag.nondeterministic_seeded in t.tags}
    # `empty` gives other values each time, too: those that its memory happens to hold.
    return frozenset({*compile_utils.rand_ops, *random, torch.ops.aten.empty})


def _storage(node: fx.Node) -> StorageWeakRef | None:
    """The storage of the node's value; `None` if it is no tensor with a storage."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    # Of a sparse tensor, for example, torch gives no storage but an error.
    try:
        return StorageWeakRef(value.untyped_storage())  # type: ignore[no-untyped-call]
    except NotImplementedError:
        return None


def _token(node: fx.Node) -> tuple[tuple[Any, ...], tuple[type, ...], tuple[Any, ...]]:
    """Values, their types, and their nesting: everything that decides what the operator computes, and where."""
    leaves: list[Any] = []
    shape: list[Any] = []
    _flatten(node.args, leaves, shape)
    if node.kwargs:
        shape.append(tuple(node.kwargs))
        _flatten(tuple(node.kwargs.values()), leaves, shape)
    # Operators on other streams or in other pools have results of their own, equal or not.
    place: dict[str, Any] = node.meta.get("custom") or {}
    shape.append(tuple(place.get(name) for name in ("stream", "mempool", "mempool_device")))
    return tuple(map(_told_apart, leaves)), tuple(map(type, leaves)), tuple(shape)


def _told_apart(leaf: Any) -> Any:
    """A float as its digits, since 0.0 and -0.0 are equal in Python."""
    if isinstance(leaf, float):
        return leaf.hex()
    return (leaf.real.hex(), leaf.imag.hex()) if isinstance(leaf, complex) else leaf


def _flatten(values: Iterable[Any], leaves: list[Any], shape: list[Any]) -> None:
    # Positions of the leaves at both ends stand for the brackets.
    shape.append(len(leaves))
    for value in values:
        if isinstance(value, (list, tuple)):
            shape.append(type(value))
            _flatten(value, leaves, shape)
        elif isinstance(value, dict):
            inner, spec = pytree.tree_flatten(value)
            leaves.extend(inner)
            shape.append(str(spec))
        else:
            # The node, since comparing symbolic numbers themselves would put a guard on them.
            leaves.append(value.node if isinstance(value, (torch.SymBool, torch.SymInt, torch.SymFloat)) else value)
    shape.append(len(leaves))


def _order_users(graph: fx.Graph) -> None:
    """Bring the users of each node to the order of the graph, so that later passes do not depend on its history."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if len(node.users) > 1:
            users = sorted(node.users, key=place.__getitem__)
            # Most are in order already.
            if users != list(node.users):
                node.users.clear()
                node.users.update(dict.fromkeys(users))
