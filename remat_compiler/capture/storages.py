"""The piece of memory that each FX value lives in, and its size.

A node's *root* is the value that owns its memory: itself for what allocates, the argument's root for
views, in-place operators and items of views.  Aliasing is read from the operators' schemas.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import NodeClass, is_view, node_class


def find_roots(graph: fx.Graph, classes: Mapping[fx.Node, NodeClass] | None = None) -> dict[fx.Node, fx.Node]:
    """Root of every node that holds a tensor; items of a multi-output kernel are their own roots.

    Args:
        graph: The graph.
        classes: Class of every node but the output, if known.
    """
    roots: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        kind = node_class(node) if classes is None else classes[node]
        # Sizes live in no storage, and a reader of one reads no memory.
        if kind is NodeClass.SYMBOLIC:
            continue
        aliased = _aliased_argument(node, kind, roots)
        # The argument precedes its view, so its own root is final: chains of views lead to one root.
        roots[node] = roots.get(aliased, aliased) if aliased is not None else node
    return roots


def _aliased_argument(node: fx.Node, kind: NodeClass, roots: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """Argument that owns the memory of the node's value, or `None` if the value has memory of its own."""
    if node.op != "call_function":
        return None
    if node.target is operator.getitem:
        parent = node.args[0]
        assert isinstance(parent, fx.Node)
        # `split` and the like return views of their argument; a kernel allocates each item.
        if parent.op == "call_function" and isinstance(parent.target, torch._ops.OpOverload):
            return parent if is_view(parent.target) else None
        return None
    if kind in (NodeClass.VIEW, NodeClass.WAIT) or _writes_first_argument(node):
        # Other arguments of a view are sizes, which have no root.
        return next((a for a in node.all_input_nodes if a in roots), None)
    return None


def _writes_first_argument(node: fx.Node) -> bool:
    """Whether the node returns its first argument after changing it in place."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable:
        return False
    first = target._schema.arguments[0].alias_info
    return first is not None and first.is_write


def storage_bytes(node: fx.Node) -> int:
    """Allocated bytes of the value that `node` owns; 0 if it holds no tensor (a tuple, say), or a seed off the GPU."""
    if torch_compat.is_seed_on_cpu(node):
        return 0
    value = torch_compat.value_as_run(node)
    if not isinstance(value, torch.Tensor):
        return 0
    return torch_compat.allocated_bytes(value)


def readers(node: fx.Node, roots: dict[fx.Node, fx.Node]) -> list[fx.Node]:
    """Nodes that read the memory of `node`, directly or through views; outputs and size computations do not count."""
    found: list[fx.Node] = []
    stack = list(node.users)
    while stack:
        user = stack.pop()
        root = roots.get(user)  # none for outputs and computations of sizes
        if root is None:
            continue
        # A view or an in-place result: its readers touch the same memory.
        if user is not node and root is roots.get(node):
            stack.extend(user.users)
        else:
            found.append(user)
    return found
