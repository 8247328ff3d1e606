"""Which operators are layers that compute much: the planners of the papers treat these apart."""

from __future__ import annotations

from remat_compiler.ir.graph import Op, Phase, TrainingGraph

_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm", "linear", "matmul", "_scaled_mm", "addmv", "mv"})


def is_convolution(op: Op) -> bool:
    """Whether `op` is a convolution, or the backward of one."""
    return "convolution" in op.target


def is_product(op: Op) -> bool:
    """Whether `op` is a matrix product, an attention, or the backward of one."""
    return "attention" in op.target or bool(_PRODUCTS & set(op.target.split(".")))


def heavy_layers(graph: TrainingGraph) -> frozenset[int]:
    """The layers that vDNN and SuperNeurons move values of: convolutions, or products where a model has none of them.

    Both papers are about convolutional networks; on others they would move nothing.
    """
    found = frozenset(op.id for op in graph.ops if is_convolution(op))
    if any(graph.ops[op].phase is Phase.FORWARD for op in found):
        return found
    return frozenset(op.id for op in graph.ops if is_product(op))
