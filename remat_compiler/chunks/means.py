"""Means over rows as sums: each chunk gives its part of a sum, and the number of rows is known before any of them.

    nll_loss(x, y, "mean")        nll_loss(x, y, "sum") / n         n: the sum of the weights of the classes in y
    its backward, given t         that of the sum, given t / n
    mean(x)                       sum(x) / n

What a mean divides by depends on the targets alone, so no chunk waits for the others.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from remat_compiler.chunks.axes import argument, is_plain, is_tuple
from remat_compiler.chunks.cut import shape_of
from remat_compiler.chunks.writing import arguments_with, call, call_like

_aten = torch.ops.aten
_MEAN, _SUM = 1, 2
_FORWARD, _BACKWARD = _aten.nll_loss_forward.default, _aten.nll_loss_backward.default


def divide_last(graph: fx.Graph, large: int) -> None:
    """Have losses and means over values of at least so many elements divide what they have summed up (in place)."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not node.all_input_nodes:
            continue
        of = node.args[1] if node.target is _BACKWARD else node.args[0]
        if not isinstance(of, fx.Node) or not is_plain(of) or is_tuple(of) or of.meta["val"].numel() < large:
            continue
        with graph.inserting_before(node):
            if node.target is _FORWARD and len(shape_of(of)) == 2:
                _forward(graph, node)
            elif node.target is _aten.mean.default:
                _mean(graph, node, of)
    for node in graph.find_nodes(op="call_function", target=_BACKWARD):
        with graph.inserting_before(node):
            _backward(graph, node)
    graph.eliminate_dead_code()


def _forward(graph: fx.Graph, node: fx.Node) -> None:
    """The weights' sum apart from the loss, and the loss divided by it."""
    taken = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if len(taken) != len(node.users):
        return
    reduction = argument(node, 3)
    weights = _sum_of_weights(graph, node)
    if 1 in taken:
        taken[1].replace_all_uses_with(weights)
    if reduction != _MEAN:
        return
    summed = call_like(graph, node, arguments_with(node, node.args, {3: _SUM}), node.kwargs)
    loss = call(graph, operator.getitem, (summed, 0), like=node)
    divided = call(graph, _aten.div.Tensor, (loss, weights), like=node)
    if 0 in taken:
        taken[0].replace_all_uses_with(divided)


def _sum_of_weights(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """What the mean divides by: of the rows that are not ignored, the weights of their classes."""
    target, weights, ignored = node.args[1], argument(node, 2), argument(node, 4)
    kept = call(graph, _aten.ne.Scalar, (target, ignored), like=node)
    value = node.meta["val"][1]
    if weights is None:
        return call(graph, _aten.sum.default, (kept,), like=node, dtype=value.dtype)
    nothing = call(graph, _aten.full.default, ([], 0), like=node, dtype=torch.int64, device=value.device)
    known = call(graph, _aten.where.self, (kept, target, nothing), like=node)
    rows = call(graph, _aten.gather.default, (weights, 0, known), like=node)
    zero: Any = call(graph, _aten.full.default, ([], 0), like=node, dtype=value.dtype, device=value.device)
    return call(graph, _aten.sum.default, (call(graph, _aten.where.self, (kept, rows, zero), like=node),), like=node)


def _backward(graph: fx.Graph, node: fx.Node) -> None:
    """The gradient divided by the weights' sum, which the operator then does not divide by."""
    gradient, weights = node.args[0], argument(node, 6)
    if argument(node, 4) != _MEAN or len(shape_of(node)) != 2 or weights.target is operator.getitem:
        return
    divided = call(graph, _aten.div.Tensor, (gradient, weights), like=node)
    new = call_like(graph, node, arguments_with(node, node.args, {0: divided, 4: _SUM}), node.kwargs)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _mean(graph: fx.Graph, node: fx.Node, of: fx.Node) -> None:
    value = node.meta["val"]
    total = call(graph, _aten.sum.default, (of,), like=node, dtype=value.dtype)
    node.replace_all_uses_with(call(graph, _aten.div.Tensor, (total, max(of.meta["val"].numel(), 1)), like=node))
    graph.erase_node(node)
