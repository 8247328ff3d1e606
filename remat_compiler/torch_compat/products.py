"""Matrix products on a GPU, whose kernels are slow where a row does not end at a multiple of 16 bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from remat_compiler.torch_compat.devices import float32_precisions
from remat_compiler.torch_compat.sizes import size_hint

ROW_BYTES = 16
"""The kernels of tensor cores read and write so many bytes at once."""
_aten = torch.ops.aten
_TWO, _BATCHED = ("m", "k", "n"), ("b", "m", "k", "n")
_OPERANDS = {_aten.mm.default: (0, _TWO), _aten.addmm.default: (1, _TWO), _aten.bmm.default: (0, _BATCHED)}
"""By product: the position of its first operand, and the names of its extents."""
_HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Product:
    """A product ``c = a @ b``, of batches or not.

    Attributes:
        node: The node.
        operands: ``a`` and ``b``.
        names: Names of the extents of ``a`` and of ``b``: ``b`` for batches, and ``m``, ``k``, ``n``.
        position: Of ``a`` among the arguments; what stands before is added to the product.
    """

    node: fx.Node
    operands: tuple[fx.Node, fx.Node]
    names: tuple[tuple[str, ...], tuple[str, ...]]
    position: int = 0

    @staticmethod
    def of(node: fx.Node) -> Product | None:
        """The node as a product; `None` if it is none."""
        found = _OPERANDS.get(node.target)  # type: ignore[call-overload]
        if found is None:
            return None
        first, names = found
        *batch, m, k, n = names
        operands: Any = node.args[first : first + 2]
        a, b = operands
        return Product(node, (a, b), ((*batch, m, k), (*batch, k, n)), first)

    @property
    def extents(self) -> dict[str, int | torch.SymInt]:
        """Each extent by its name."""
        shapes = (operand.meta["val"].shape for operand in self.operands)
        return {name: size for names, shape in zip(self.names, shapes) for name, size in zip(names, shape)}

    @property
    def rows(self) -> tuple[str, str, str]:
        """The extents along which elements of ``a``, of ``b`` and of the result follow each other in memory."""
        a, b = (_row(operand, names) for operand, names in zip(self.operands, self.names))
        return a, b, "n"

    @property
    def on_tensor_cores(self) -> bool:
        """Whether a GPU computes it in such units."""
        value = self.node.meta["val"]
        if value.device.type != "cuda":
            return False
        return value.dtype in _HALF or (value.dtype == torch.float32 and float32_precisions()[0] == "tf32")

    @property
    def step(self) -> int:
        """Elements of a row that are read at once."""
        return ROW_BYTES // int(self.node.meta["val"].element_size())

    def slowdown(self) -> float:
        """How many times as long it takes as one whose rows end at multiples of 16 bytes, about."""
        if not self.on_tensor_cores:
            return 1.0
        extents, itemsize = self.extents, self.node.meta["val"].element_size()
        bytes_of_rows = (size_hint(extents[name]) * itemsize for name in self.rows)
        return max(_SLOWDOWN[min(size & -size, ROW_BYTES) if size else ROW_BYTES] for size in bytes_of_rows)


_SLOWDOWN = {2: 5.0, 4: 3.2, 8: 2.8, 16: 1.0}
"""By the largest power of two that divides a row's bytes: measured on an H100 with products of 17 to 630 GFLOP."""


def products(graph: fx.Graph) -> Iterator[Product]:
    """All products of the graph, in order."""
    for node in graph.nodes:
        product = Product.of(node)
        if product is not None:
            yield product


def may_pad_products(gm: fx.GraphModule) -> bool:
    """Whether a graph of Dynamo may have products on a GPU with rows that end between multiples of 16 bytes."""
    values = (node.meta.get("example_value") for node in gm.graph.nodes)
    matrices = (one for one in values if isinstance(one, torch.Tensor) and one.dim() > 1 and one.device.type == "cuda")
    # Under autocast, products compute in a type of half the size.
    sizes: list[Any] = [size for one in matrices for size in one.shape]
    return any(isinstance(size, int) and size >= ROW_BYTES and size % 8 for size in sizes)


def computed(target: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
    """The fake result of an operator on nodes."""
    fakes = fx.map_arg((args, kwargs), lambda node: node.meta["val"])
    mode = next(node.meta["val"].fake_mode for node in args if isinstance(node, fx.Node))
    with mode, torch.no_grad():
        result: torch.Tensor = target(*fakes[0], **fakes[1])
    return result


def _row(operand: fx.Node, names: tuple[str, ...]) -> str:
    strides = operand.meta["val"].stride()
    # The last but one if the matrix is transposed; where both are rows, either does.
    return names[-2] if size_hint(strides[-2]) == 1 and size_hint(strides[-1]) != 1 else names[-1]
