"""Means over rows as sums: each chunk gives its part of a sum, and what divides it is known before any of them.

    nll_loss(x, y, "mean")        nll_loss(x, y, "sum") / n         n: the sum of the weights of the classes in y
    its backward, given t         that of the sum, given t / n
    mse_loss(x, y, "mean")        mse_loss(x, y, "sum") / n         n: the number of elements; so of all losses by terms
    mean(x)                       sum(x) / n

What a mean divides by depends on the targets alone, so no chunk waits for the others.  A mean of 16 bits sums in 32
bits and divides before it is rounded, since sums may be too large for 16.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from remat_compiler.chunks.axes import NONE, SUM, TERM_GRADIENTS, TERM_LOSSES
from remat_compiler.chunks.axis import argument, is_plain, is_tuple
from remat_compiler.chunks.cut import shape_of
from remat_compiler.chunks.region import elements
from remat_compiler.chunks.writing import arguments_with, call, call_like
from remat_compiler.torch_compat import product

_aten = torch.ops.aten
_prims = torch.ops.prims
_MEAN = 1
_FORWARD = (_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default)
_BACKWARD = (_aten.nll_loss_backward.default, _aten.nll_loss2d_backward.default)
FEW_BITS = (torch.float16, torch.bfloat16)
"""Types whose sums are taken in 32 bits."""


def divide_last(graph: fx.Graph, large: int) -> None:
    """Have losses and means over values of at least so many elements divide what they have summed up (in place)."""
    for node in list(graph.nodes):
        if node.op != "call_function" or not node.all_input_nodes:
            continue
        of = node.args[1] if node.target in _BACKWARD or node.target in TERM_GRADIENTS else node.args[0]
        if not isinstance(of, fx.Node) or not is_plain(of) or is_tuple(of) or elements(of.meta["val"]) < large:
            continue
        with graph.inserting_before(node):
            if node.target in _FORWARD and len(shape_of(of)) > 1:
                _forward(graph, node)
            elif node.target is _aten.mean.default:
                _divided_sum(graph, node, of, of)
            elif node.target in TERM_LOSSES:
                _term_loss(graph, node, of)
            elif node.target in TERM_GRADIENTS:
                _term_gradient(graph, node, of)
    for target in _BACKWARD:
        for node in graph.find_nodes(op="call_function", target=target):
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
    if reduction != _MEAN or 0 not in taken:
        return
    few = taken[0].meta["val"].dtype is torch.float16
    changed = arguments_with(node, node.args, {3: NONE if few else SUM})
    loss = call(graph, operator.getitem, (call_like(graph, node, changed, node.kwargs), 0), like=node)
    if few:
        _divided_sum(graph, taken[0], loss, weights)
        return
    taken[0].replace_all_uses_with(call(graph, _aten.div.Tensor, (loss, weights), like=node))


def _sum_of_weights(graph: fx.Graph, node: fx.Node) -> fx.Node:
    """What the mean divides by: of the rows that are not ignored, the weights of their classes."""
    target, weights, ignored = node.args[1], argument(node, 2), argument(node, 4)
    kept = call(graph, _aten.ne.Scalar, (target, ignored), like=node)
    value = node.meta["val"][1]
    if weights is None:
        return call(graph, _aten.sum.default, (kept,), like=node, dtype=value.dtype)
    nothing = call(graph, _aten.full.default, ([], 0), like=node, dtype=torch.int64, device=value.device)
    known = call(graph, _aten.where.self, (kept, target, nothing), like=node)
    rows = call(graph, _aten.index.Tensor, (weights, [known]), like=node)
    zero: Any = call(graph, _aten.full.default, ([], 0), like=node, dtype=value.dtype, device=value.device)
    return call(graph, _aten.sum.default, (call(graph, _aten.where.self, (kept, rows, zero), like=node),), like=node)


def _backward(graph: fx.Graph, node: fx.Node) -> None:
    """The gradient divided by the weights' sum, which the operator then does not divide by."""
    gradient, weights = node.args[0], argument(node, 6)
    if argument(node, 4) != _MEAN or len(shape_of(node)) < 2 or weights.target is operator.getitem:
        return
    divided = call(graph, _aten.div.Tensor, (gradient, weights), like=node)
    _replace(graph, node, call_like(graph, node, arguments_with(node, node.args, {0: divided, 4: SUM}), node.kwargs))


def _term_loss(graph: fx.Graph, node: fx.Node, of: fx.Node) -> None:
    """The mean of a loss by terms as the sum of its terms, divided."""
    position = TERM_LOSSES[node.target]
    if argument(node, position) != _MEAN:
        return
    if node.meta["val"].dtype in FEW_BITS:
        terms = call_like(graph, node, arguments_with(node, node.args, {position: NONE}), node.kwargs)
        _divided_sum(graph, node, terms, of)
        return
    total = call_like(graph, node, arguments_with(node, node.args, {position: SUM}), node.kwargs)
    _replace(graph, node, call(graph, _aten.div.Tensor, (total, product(shape_of(of))), like=node))


def _term_gradient(graph: fx.Graph, node: fx.Node, of: fx.Node) -> None:
    """The gradient of such a mean as that of the sum, given a divided gradient."""
    position = TERM_GRADIENTS[node.target]
    if argument(node, position) != _MEAN:
        return
    divided = call(graph, _aten.div.Tensor, (node.args[0], product(shape_of(of))), like=node)
    changed = arguments_with(node, node.args, {0: divided, position: SUM})
    _replace(graph, node, call_like(graph, node, changed, node.kwargs))


def _divided_sum(graph: fx.Graph, node: fx.Node, terms: fx.Node, by: fx.Node) -> None:
    """Put the sum of the terms in the place of a node, divided by a scalar, or by the number of elements of a value."""
    dtype = node.meta["val"].dtype
    count = by if by.meta["val"].dim() == 0 else product(shape_of(by)) or 1
    wide = torch.float32 if dtype in FEW_BITS else dtype
    total = call(graph, _aten.sum.default, (terms,), like=node, dtype=wide)
    divided = call(graph, _aten.div.Tensor, (total, count), like=node)
    # A scalar of 16 bits leaves the type as it is.
    _replace(graph, node, divided if wide is dtype else _rounded(graph, divided, dtype))


def _rounded(graph: fx.Graph, node: fx.Node, dtype: torch.dtype) -> fx.Node:
    return call(graph, _prims.convert_element_type.default, (node, dtype), like=node)


def _replace(graph: fx.Graph, node: fx.Node, by: fx.Node) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)
