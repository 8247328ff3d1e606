"""Common subexpressions of a joint graph, merged as torch's partitioner merges them, but in place.

`torch._functorch.compile_utils.fx_graph_cse` copies the whole graph for the few nodes that it merges.  The rules are
its: two nodes of one operator with equal arguments are one, unless they draw random numbers or have effects, an
argument may have been changed between them, a custom operator is handed their memory to write to, or the memory of an
output is at stake, which the caller must not find shared.

Since 2.14 torch merges nothing that only the forward needs with what the backward needs, too.  Some of its rules are
younger than the oldest version here, and hold in all: they keep results right.
"""

from __future__ import annotations

from collections.abc import Iterable
from inspect import signature
from typing import Any

import torch
from torch import fx
from torch._functorch import compile_utils
from torch._higher_order_ops.auto_functionalize import get_mutable_args
from torch._higher_order_ops.triton_kernel_wrap import triton_kernel_wrapper_functional
from torch._inductor.pattern_matcher import compute_mutation_region_ids, same_mutation_regions
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree

_ASIDE = ("placeholder", "get_attr", "output")
_KEEPS_HALVES_APART = "extra_node_key" in signature(compile_utils.fx_graph_cse).parameters
"""Whether torch's partitioner tells apart what the backward needs (2.14 and later)."""


def merge_duplicates(graph: fx.Graph, backward_outputs: Iterable[Any] = ()) -> None:
    """Erase each node that computes what an earlier one has; afterwards users stand in the order of the graph.

    Args:
        graph: A joint graph.
        backward_outputs: What its backward returns: nodes, or constants.
    """
    compute_mutation_region_ids(graph)
    apart, written = _never_merged(graph), _handed_over_to_write(graph)
    of_outputs = {_storage(n) for n in graph.output_node().all_input_nodes} - {None}
    of_backward = _leading_to(backward_outputs) if _KEEPS_HALVES_APART else frozenset()
    seen: dict[tuple[Any, bool, int], tuple[Any, fx.Node]] = {}
    for node in list(graph.nodes):
        if node.op in _ASIDE or _packet(node.target) in apart or node in written or node.is_impure():
            continue
        token = _token(node)
        key = (node.target, node in of_backward, hash((token[0], token[1])))
        known = seen.get(key)
        if known is None:
            seen[key] = (token, node)
            continue
        if _storage(known[1]) in of_outputs:
            # Torch never lets it stand for others, so it did not take the place of what comes now.
            seen[key] = (token, node)
        elif known[0] == token and _storage(node) not in of_outputs:
            if same_mutation_regions(node, known[1]):
                node.replace_all_uses_with(known[1])
                graph.erase_node(node)
            else:
                seen[key] = (token, node)
    _order_users(graph)


def _leading_to(outputs: Iterable[Any]) -> frozenset[fx.Node]:
    """The nodes that `outputs` are computed from, themselves included."""
    found: set[fx.Node] = set()
    stack = [output for output in outputs if isinstance(output, fx.Node)]
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack.extend(node.all_input_nodes)
    return frozenset(found)


def _handed_over_to_write(graph: fx.Graph) -> frozenset[fx.Node]:
    """What functional forms of operators that write to their arguments may write to in its place."""
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


def _packet(target: Any) -> Any:
    return getattr(target, "overloadpacket", target)


def _never_merged(graph: fx.Graph) -> frozenset[Any]:
    """Operators that give other values each time.

    torch's own list of them lacks many, attention with dropout and ``randn_like`` among them.
    """
    targets = {n.target for n in graph.nodes if isinstance(n.target, torch._ops.OpOverload)}
    random = {t.overloadpacket for t in targets if torch.Tag.nondeterministic_seeded in t.tags}
    return frozenset({*compile_utils.rand_ops, *random, torch.ops.aten.empty})


def _storage(node: fx.Node) -> StorageWeakRef | None:
    """The memory of the node's value; `None` where it is no tensor with memory of its own."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    try:
        return StorageWeakRef(value.untyped_storage())  # type: ignore[no-untyped-call]
    except NotImplementedError:
        return None


def _token(node: fx.Node) -> tuple[tuple[Any, ...], tuple[type, ...], tuple[Any, ...]]:
    """Values, their types, and how they are nested: all that decides what the operator computes, and where."""
    leaves: list[Any] = []
    shape: list[Any] = []
    _flatten(node.args, leaves, shape)
    if node.kwargs:
        shape.append(tuple(node.kwargs))
        _flatten(tuple(node.kwargs.values()), leaves, shape)
    place: dict[str, Any] = node.meta.get("custom") or {}
    shape.append(tuple(place.get(name) for name in ("stream", "mempool", "mempool_device")))
    return tuple(map(_told_apart, leaves)), tuple(map(type, leaves)), tuple(shape)


def _told_apart(leaf: Any) -> Any:
    """A float as its digits, for 0.0 and -0.0 are equal to Python."""
    if isinstance(leaf, float):
        return leaf.hex()
    return (leaf.real.hex(), leaf.imag.hex()) if isinstance(leaf, complex) else leaf


def _flatten(values: Iterable[Any], leaves: list[Any], shape: list[Any]) -> None:
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
            leaves.append(value.node if isinstance(value, (torch.SymBool, torch.SymInt, torch.SymFloat)) else value)
    shape.append(len(leaves))


def _order_users(graph: fx.Graph) -> None:
    """Bring the users of each node to the order of the graph, so that later passes do not depend on its history."""
    place = {node: i for i, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if len(node.users) > 1:
            users = sorted(node.users, key=place.__getitem__)
            if users != list(node.users):
                node.users.clear()
                node.users.update(dict.fromkeys(users))
