"""Common subexpressions of a joint graph, merged as torch's partitioner merges them, but in place.

`torch._functorch.compile_utils.fx_graph_cse` copies the whole graph for the few nodes that it merges.  The rules are
its: two nodes of one operator with equal arguments are one, unless they draw random numbers, an argument may have
been changed between them, or the memory of an output is at stake, which the caller must not find shared.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx
from torch._functorch import compile_utils
from torch._inductor.pattern_matcher import compute_mutation_region_ids, same_mutation_regions
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree


def merge_duplicates(graph: fx.Graph) -> None:
    """Erase each node that computes what an earlier one has; afterwards users stand in the order of the graph."""
    compute_mutation_region_ids(graph)
    apart = _never_merged(graph)
    of_outputs = {_storage(n) for n in graph.output_node().all_input_nodes} - {None}
    seen: dict[tuple[Any, int], tuple[Any, fx.Node]] = {}
    for node in list(graph.nodes):
        if node.op in ("placeholder", "get_attr", "output") or _packet(node.target) in apart:
            continue
        token = _token(node)
        key = (node.target, hash((token[0], token[1])))
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
    """Values, their types, and how they are nested: all that decides what the operator computes."""
    leaves: list[Any] = []
    shape: list[Any] = []
    _flatten(node.args, leaves, shape)
    if node.kwargs:
        shape.append(tuple(node.kwargs))
        _flatten(tuple(node.kwargs.values()), leaves, shape)
    return tuple(leaves), tuple(map(type, leaves)), tuple(shape)


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
