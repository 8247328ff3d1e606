"""How attention by one operator is cut: by sequences, or by heads, of which several may share a key.

    o, sums = attention(q, k, v)       q, o: (batch, heads, rows, width)     sums of exponentials: (batch, heads, rows)
    dq, dk, dv = its gradient          k, v: (batch, keys' heads, ..), where every so many heads in order read one

Each sequence and each head is computed by itself.
"""

from __future__ import annotations

import torch
from torch import fx

from remat_compiler.chunks.axis import may_be_cut, results_of
from remat_compiler.chunks.cut import Cut, Cutting, Partial, operands, shape_of
from remat_compiler.torch_compat import Size, divided, expression

_aten = torch.ops.aten
ATTENTION = frozenset({
    _aten._scaled_dot_product_flash_attention_for_cpu.default,
    _aten._scaled_dot_product_flash_attention.default,
    _aten._scaled_dot_product_efficient_attention.default,
    _aten._scaled_dot_product_cudnn_attention.default,
})  # fmt: skip
"""Attention by one operator, whose first operand has all heads."""
GRADIENTS = frozenset({
    _aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    _aten._scaled_dot_product_flash_attention_backward.default,
    _aten._scaled_dot_product_efficient_attention_backward.default,
    _aten._scaled_dot_product_cudnn_attention_backward.default,
})  # fmt: skip
"""Their gradients, likewise."""
BATCH, HEADS = 0, 1
"""Dimensions that may be cut."""


def attention_cutting(node: fx.Node, operand: int | None, cut: Cut) -> Cutting | None:
    """How an attention or its gradient is cut; arguments and result as for `rules.cutting`."""
    if cut.first not in (BATCH, HEADS) or cut.last != cut.first or not may_be_cut(node):
        return None
    given = list(map(shape_of, operands(node)))
    made = [tuple(map(expression, one.shape)) if isinstance(one, torch.Tensor) else () for one in results_of(node)]
    own = made[0] if operand is None else given[operand]
    if not _has_heads(own):
        return None
    placed = [_placed(shape, own[cut.first], cut) for shape in (*given, *made)]
    if any(one is _ACROSS for one in placed):
        return None
    reads = tuple(one if isinstance(one, Cut) else None for one in placed[: len(given)])
    # A mask or key that all of them read has a gradient that is a sum.
    lacking = (Partial.SUM if _has_heads(shape) else Partial.ANY for shape in made)
    makes = tuple(one if isinstance(one, Cut) else lack for one, lack in zip(placed[len(given) :], lacking))
    return Cutting(reads, makes, tuple({} for _ in range(cut.chunks)))


def _has_heads(shape: tuple[Size, ...]) -> bool:
    """Whether it is a value of each head, unlike a mask of rows, and seeds, which nothing reads if nothing is drawn."""
    return len(shape) > 2


_ACROSS = object()
"""Heads of two chunks share one."""


def _placed(shape: tuple[Size, ...], rows: Size, cut: Cut) -> Cut | object | None:
    """How a value of this shape is cut; `None` if every chunk reads all of it.

    Args:
        shape: Of an operand or a result.
        rows: Of the value that is cut, along the same dimension.
        cut: How that is cut.
    """
    if not _has_heads(shape) or (shape[cut.first] == 1 and rows != 1):
        return None
    bounds = [divided(bound * shape[cut.first], rows) for bound in cut.bounds]
    known = tuple(one for one in bounds if one is not None)
    return Cut(cut.first, cut.first, known) if len(known) == len(bounds) else _ACROSS
