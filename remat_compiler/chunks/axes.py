"""Along which dimensions operators may be cut: the rules of independence, by classes of operators.

An *axis* of an operator is a dimension of its results with the dimensions of operands that it is computed from, slice
by slice; or one that the operator sums over, whose slices give parts of a sum.

    mm(a, b)               row i: dimension 0 of a     column j: dimension 1 of b     summed: 1 of a with 0 of b
    log_softmax(x, 1)      dimension 0 of x; none for 1, since each element depends on its whole row

An operator without axes is not cut.  So no operator is that draws random numbers, communicates, or changes memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.chunks.axis import UNKNOWN, Axis, aligned, argument, at, may_be_cut, results_of
from remat_compiler.chunks.cut import Partial, operands, shape_of
from remat_compiler.chunks.images import IMAGES
from remat_compiler.chunks.indexing import INDEXING
from remat_compiler.torch_compat import Size, expression, same

_aten = torch.ops.aten
_prims = torch.ops.prims


def axes_of(node: fx.Node) -> list[Axis]:
    """The axes of an operator on plain tensors."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not may_be_cut(node):
        return []
    rule = _RULES.get(target)
    if rule is not None:
        return list(rule(node))
    return _pointwise(node) if is_elementwise(node) else []


def is_elementwise(node: fx.Node) -> bool:
    """Whether each element of its one result is computed from those of operands at the same place."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not isinstance(node.meta["val"], torch.Tensor):
        return False
    return torch.Tag.pointwise in target.tags or torch_compat.facts_of(target).elementwise


def _pointwise(node: fx.Node) -> list[Axis]:
    return _elementwise(node, shape_of(node))


def _elementwise(node: fx.Node, shape: Sequence[Size]) -> list[Axis]:
    """The axes of an operator that computes one element for each place of this shape."""
    found = []
    for dim, size in enumerate(shape):
        reads = [aligned(dim, shape, shape_of(operand)) for operand in operands(node)]
        if size != 1 and not any(one is UNKNOWN for one in reads):
            found.append(Axis((dim,), tuple(reads)))
    return found


def _made(node: fx.Node) -> list[Axis]:
    """A value that depends on no operand: of one number, or of any; a large operand is not to be whole for it."""
    shape, given = shape_of(node), list(map(shape_of, operands(node)))
    alike = [
        [dim if dim < len(one) and same(one[dim], size) else None for one in given] for dim, size in enumerate(shape)
    ]
    found = [Axis((dim,), tuple(reads)) for dim, reads in enumerate(alike)]
    # Of another shape than the operand, which tells but the type, each chunk of that makes all of it.
    along = [dim for one in given for dim in range(len(one)) if all(dim not in axis.operands for axis in found)]
    return [*found, *(Axis((Partial.ANY,), (dim,)) for dim in along)]


def _reduction(node: fx.Node) -> list[Axis]:
    """``op(x, dims, keepdim)``, or with an order between them; without dimensions it reduces all."""
    rank = len(shape_of(operands(node)[0]))
    given = _named(node, "dim")
    if given is None or given == []:
        # Of all elements, an index is not one along a dimension.
        given = [] if node.target in _INDICES else list(range(rank))
        if not given:
            return []
    reduced = {at(dim, rank) for dim in (given if isinstance(given, (list, tuple)) else [given])}
    return _reduced(node, reduced, kept=bool(_named(node, "keepdim")))


def _named(node: fx.Node, name: str) -> Any:
    """The argument of this name."""
    position = next(i for i, a in enumerate(node.target._schema.arguments) if a.name == name)  # type: ignore[union-attr]
    return argument(node, position)


def _reduced(node: fx.Node, reduced: set[int], *, kept: bool) -> list[Axis]:
    rank, count, found = len(shape_of(operands(node)[0])), len(results_of(node)), []
    for dim in range(rank):
        if dim not in reduced:
            place = dim if kept else dim - sum(other < dim for other in reduced)
            found.append(Axis((place,) * count, (dim,)))
        elif node.target in _SUMS:
            found.append(Axis((Partial.SUM,) * count, (dim,)))
    return found


def _sum_of_all(node: fx.Node) -> list[Axis]:
    return _reduced(node, set(range(len(shape_of(operands(node)[0])))), kept=False)


def _along(position: int) -> Callable[[fx.Node], list[Axis]]:
    """Operators that work along the dimension at this position of their arguments, and elementwise along the others."""

    def rule(node: fx.Node) -> list[Axis]:
        return _others(node, {at(argument(node, position), len(results_of(node)[0].shape))})

    return rule


def _others(node: fx.Node, taken: set[int]) -> list[Axis]:
    """All dimensions but some, where all operands and results have one size."""
    given = operands(node)
    shapes = [shape_of(operand) for operand in given] + [tuple(map(expression, one.shape)) for one in results_of(node)]
    if len({len(shape) for shape in shapes}) != 1:
        return []
    left = (dim for dim in range(len(shapes[0])) if dim not in taken)
    alike = [dim for dim in left if all(same(shape[dim], shapes[0][dim]) for shape in shapes[1:])]
    return [Axis((dim,) * len(results_of(node)), (dim,) * len(given)) for dim in alike]


def _with_one_less(node: fx.Node) -> list[Axis]:
    """``select(x, dim, i)``, ``unbind(x, dim)``: one operand, and results without that dimension."""
    rank = len(shape_of(operands(node)[0]))
    return _reduced(node, {at(argument(node, 1), rank)}, kept=False)


def _with_one_more(node: fx.Node) -> list[Axis]:
    """``unsqueeze(x, dim)``, ``stack(xs, dim)``, and ``select_backward(gradient, shape, dim, i)``."""
    rank, given = len(shape_of(node)), len(operands(node))
    new = at(argument(node, 2 if node.target is _aten.select_backward.default else 1), rank)
    return [Axis((dim,), (dim - (dim > new),) * given) for dim in range(rank) if dim != new]


def _one_put_in(node: fx.Node) -> list[Axis]:
    """``select_scatter(x, y, dim, i)``, whose second operand has not that dimension."""
    rank = len(shape_of(node))
    place = at(argument(node, 2), rank)
    return [Axis((dim,), (dim, dim - (dim > place))) for dim in range(rank) if dim != place]


def _squeezed(node: fx.Node) -> list[Axis]:
    shape = shape_of(operands(node)[0])
    given = argument(node, 1)
    dims = {at(dim, len(shape)) for dim in (given if isinstance(given, (list, tuple)) else [given])}
    return _reduced(node, {dim for dim in dims if shape[dim] == 1}, kept=False)


def _permuted(node: fx.Node) -> list[Axis]:
    rank = len(shape_of(node))
    order = list(range(rank))
    if node.target is _aten.permute.default:
        order = [at(dim, rank) for dim in argument(node, 1)]
    elif rank > 1:
        swapped = (0, 1) if node.target is _aten.t.default else (argument(node, 1), argument(node, 2))
        one, other = (at(dim, rank) for dim in swapped)
        order[one], order[other] = other, one
    return [Axis((new,), (old,)) for new, old in enumerate(order)]


def _padded(node: fx.Node) -> list[Axis]:
    rank, amounts = len(shape_of(node)), argument(node, 1)
    padded = {rank - 1 - i // 2 for i, amount in enumerate(amounts) if amount}
    return [Axis((dim,), (dim,)) for dim in range(rank) if dim not in padded]


def _product(node: fx.Node) -> list[Axis]:
    """``mm(a, b)``, ``bmm(a, b)``, and those that add a first argument."""
    rank, added = len(shape_of(node)), len(operands(node)) - 2
    row, column = rank - 2, rank - 1
    found = [Axis((dim,), (*_bias(node, dim), dim, dim)) for dim in range(row)]
    found += [Axis((row,), (*_bias(node, row), row, None)), Axis((column,), (*_bias(node, column), None, column))]
    if added:
        # It would be added once for each chunk of a sum.
        return [one for one in found if UNKNOWN not in one.operands]
    return [*found, Axis((Partial.SUM,), (column, row))]


def _bias(node: fx.Node, dim: int) -> Iterable[int | None]:
    if len(operands(node)) < 3:
        return ()
    return (aligned(dim, shape_of(node), shape_of(operands(node)[0])),)


def _normalised(node: fx.Node) -> list[Axis]:
    """``native_layer_norm(x, shape, ...)``, and ``native_layer_norm_backward(gradient, x, shape, ...)``."""
    given, backward = operands(node), node.target is _aten.native_layer_norm_backward.default
    rows = len(shape_of(given[0])) - len(argument(node, 2 if backward else 1))
    # Weights have the dimensions that are normalised alone, and what comes of them is summed up.
    made = (Partial.SUM,) * (len(results_of(node)) - 1) if backward else None
    found = []
    for dim in range(rows):
        reads = tuple(dim if len(shape_of(one)) == len(shape_of(given[0])) else None for one in given)
        found.append(Axis((dim, *made) if made else (dim,) * len(results_of(node)), reads))
    return found


NONE, SUM = 0, 2
"""How torch numbers the reductions of a loss."""
TERM_LOSSES: dict[Any, int] = {
    **dict.fromkeys((_aten.mse_loss.default, _aten.smooth_l1_loss.default, _aten.huber_loss.default), 2),
    _aten.soft_margin_loss.default: 2,
    _aten.binary_cross_entropy.default: 3,
    _aten.binary_cross_entropy_with_logits.default: 4,
}
"""Losses of a term for each element, and the position of their reduction."""
TERM_GRADIENTS: dict[Any, int] = {
    **dict.fromkeys((_aten.mse_loss_backward.default, _aten.smooth_l1_loss_backward.default), 3),
    **dict.fromkeys((_aten.huber_loss_backward.default, _aten.soft_margin_loss_backward.default), 3),
    _aten.binary_cross_entropy_backward.default: 4,
}
"""The same of their gradients."""


def _nll_loss(node: fx.Node) -> list[Axis]:
    """``nll_loss_forward(x, target, weights, reduction, ignored)``: the loss, and the weights' sum."""
    reduction, others = argument(node, 3), [None] * (len(operands(node)) - 2)
    return [
        Axis((place if reduction == NONE else Partial.SUM, Partial.SUM), (dim, place, *others))
        for dim, place in _rows_of_targets(operands(node)[0], reduction)
    ]


def _nll_loss_backward(node: fx.Node) -> list[Axis]:
    """``nll_loss_backward(gradient, x, target, weights, reduction, ignored, sum of weights)``."""
    reduction, others = argument(node, 4), [None] * (len(operands(node)) - 3)
    return [
        Axis((dim,), (place if reduction == NONE else None, dim, place, *others))
        for dim, place in _rows_of_targets(operands(node)[1], reduction)
    ]


def _rows_of_targets(x: fx.Node, reduction: int) -> list[tuple[int, int]]:
    """Dimensions of scores that a likelihood may be cut along, and those of targets, which have none of classes."""
    rank = len(shape_of(x))
    return [(dim, max(dim - 1, 0)) for dim in range(rank) if dim != 1 and rank > 1 and reduction in (NONE, SUM)]


def _term_loss(node: fx.Node) -> list[Axis]:
    """``mse_loss(x, target, reduction)`` and its like: terms of single elements, or their sum."""
    reduction = argument(node, TERM_LOSSES[node.target])
    terms = [(axis.operands, axis.results[0]) for axis in _elementwise(node, shape_of(operands(node)[0]))]
    if reduction == NONE:
        return [Axis((dim,), given) for given, dim in terms]
    return [Axis((Partial.SUM,), given) for given, _ in terms] if reduction == SUM else []


def _term_loss_backward(node: fx.Node) -> list[Axis]:
    """``mse_loss_backward(gradient, x, target, reduction)`` and its like; of a mean, the gradient is divided inside."""
    return _pointwise(node) if argument(node, TERM_GRADIENTS[node.target]) in (NONE, SUM) else []


_INDICES = frozenset({_aten.argmax.default, _aten.argmin.default})
REDUCTIONS = frozenset({
    _aten.sum.dim_IntList, _aten.mean.dim, _aten.amax.default, _aten.amin.default, _aten.logsumexp.default,
    _aten.argmax.default, _aten.argmin.default, _aten.any.dim, _aten.any.dims, _aten.all.dim, _aten.all.dims,
    _aten.max.dim, _aten.min.dim, _aten.prod.dim_int, _aten.var.correction, _aten.var_mean.correction,
    _aten.linalg_vector_norm.default, _aten.norm.ScalarOpt_dim,
})  # fmt: skip
"""Operators that make one element of all along some dimensions."""
_SUMS = frozenset({_aten.sum.default, _aten.sum.dim_IntList})


def _rows(rule: Callable[[fx.Node], Sequence[Axis]], *targets: Any) -> dict[Any, Callable[[fx.Node], Sequence[Axis]]]:
    return dict.fromkeys(targets, rule)


_RULES: dict[Any, Callable[[fx.Node], Sequence[Axis]]] = {
    **_rows(_product, _aten.mm.default, _aten.addmm.default, _aten.bmm.default, _aten.baddbmm.default),
    **_rows(_reduction, *REDUCTIONS),
    **_rows(_sum_of_all, _aten.sum.default),
    **_rows(
        _along(1), _aten._log_softmax.default, _aten._softmax.default, _aten.scatter.value,
        _aten.scatter.src, _aten.cumsum.default, _aten.cat.default, _aten.slice.Tensor,
        _aten.sort.default,
    ),
    **_rows(
        _along(2), _aten._log_softmax_backward_data.default, _aten._softmax_backward_data.default,
        _aten.slice_backward.default, _aten.slice_scatter.default, _aten.topk.default, _aten.split.Tensor,
    ),
    **_rows(_with_one_less, _aten.select.int, _aten.unbind.int),
    **_rows(_with_one_more, _aten.unsqueeze.default, _aten.stack.default, _aten.select_backward.default),
    **_rows(_one_put_in, _aten.select_scatter.default),
    **_rows(_squeezed, _aten.squeeze.dim, _aten.squeeze.dims),
    **_rows(_permuted, _aten.permute.default, _aten.t.default, _aten.transpose.int),
    **_rows(_pointwise, _aten.expand.default),
    **_rows(_padded, _aten.constant_pad_nd.default),
    **_rows(_normalised, _aten.native_layer_norm.default, _aten.native_layer_norm_backward.default),
    **_rows(
        _made, _aten.full.default, _aten.zeros.default, _aten.ones.default, _aten.new_full.default,
        _aten.new_zeros.default, _aten.new_ones.default,
    ),
    **INDEXING,
    **IMAGES,
    **_rows(_nll_loss, _aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default),
    **_rows(_nll_loss_backward, _aten.nll_loss_backward.default, _aten.nll_loss2d_backward.default),
    **_rows(_term_loss, *TERM_LOSSES),
    **_rows(_term_loss_backward, *TERM_GRADIENTS),
}  # fmt: skip
