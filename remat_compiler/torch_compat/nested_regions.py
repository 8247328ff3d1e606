"""Regions that the program marked with `torch.compiler.nested_compile_region`, put back into the graphs that call them.

Dynamo leaves such a region a graph of its own (`invoke_subgraph`), which torch partitions by itself: it saves what it
likes, whatever the rest of the step holds, and no value of it could be computed again.  In the graph around it, a
region is planned as if it had not been marked.
"""

from __future__ import annotations

from operator import attrgetter, getitem
from typing import Any

import torch
from torch import fx

_MODULES = "nn_module_stack"


def inline_regions(gm: fx.GraphModule) -> None:
    """Put the nodes of marked regions in the place of their calls, in Dynamo's graph and in those that it holds.

    A region with compilers of its own stays as it is.
    """
    # A region may call others: those first, so that each is copied whole.
    held = [one for name, one in gm.named_modules() if name and isinstance(one, fx.GraphModule)]
    for graph in [*reversed(held), gm]:
        calls = graph.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
        traced: dict[int, dict[Any, Any]] = {}
        inlined = [_inline(graph, call, traced) for call in calls]
        if any(inlined):
            graph.recompile()


def _inline(gm: fx.GraphModule, call: fx.Node, traced: dict[int, dict[Any, Any]]) -> bool:
    """Put a region in the place of its call, unless it must stay; whether it was.

    Args:
        gm: The graph with the call.
        call: The call.
        traced: The modules around the first call of each region, at which it was traced, by its graph's identity.
    """
    name = call.args[0]
    if not isinstance(name, fx.Node):
        return False
    region = attrgetter(str(name.target))(gm)
    if not isinstance(region, fx.GraphModule) or region.meta.get("nested_region_config"):
        return False
    results = region.graph.output_node().args[0]
    values: dict[Any, Any] = dict(zip(region.graph.find_nodes(op="placeholder"), call.args[2:]))
    # What is no node, as a size that is handed through, stands for nothing that could take the place of a result.
    plain = isinstance(results, (list, tuple)) and all(isinstance(values.get(one, one), fx.Node) for one in results)
    if not plain or any(user.target is not getitem for user in call.users):
        return False
    here = call.meta.get(_MODULES) or {}
    there = traced.setdefault(id(region), here)
    with gm.graph.inserting_before(call):
        for node in region.graph.nodes:
            if node.op in ("placeholder", "output"):
                continue
            given = values.get(node.args[0]) if _takes_number(node) else None
            # A region is traced with changing numbers in tensors, and later calls are given the number itself.
            if given is not None and (not isinstance(given, fx.Node) or _takes_number(given)):
                values[node] = given
                continue
            copy = values[node] = gm.graph.node_copy(node, values.__getitem__)
            if node.op == "get_attr":
                copy.target = f"{name.target}_{node.target}".replace(".", "_")
                setattr(gm, copy.target, attrgetter(str(node.target))(region))
            _move(copy, there, here)
    for user in list(call.users):
        user.replace_all_uses_with(values[results[user.args[1]]])  # type: ignore[index]
        gm.graph.erase_node(user)
    gm.graph.erase_node(call)
    if not name.users:
        gm.graph.erase_node(name)
    return True


def _takes_number(node: fx.Node) -> bool:
    """Whether a node takes a number out of a tensor."""
    return node.op == "call_method" and node.target == "item"


def _move(node: fx.Node, there: dict[Any, Any], here: dict[Any, Any]) -> None:
    """Name the modules of a node that was traced at another call of its region."""
    stack = node.meta.get(_MODULES)
    if not stack or not here or there is here:
        return
    old, new = str(list(there.values())[-1][0]), str(list(here.values())[-1][0])
    inside = {key: one for key, one in stack.items() if key not in there}
    moved = {f"{key} in {new}": (str(path).replace(old, new, 1), kind) for key, (path, kind) in inside.items()}
    node.meta[_MODULES] = {**here, **moved}
