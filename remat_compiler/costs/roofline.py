"""Operator times from their arithmetic and memory traffic over the rates of their device.

    time_ns = overhead_ns + FLOPs / flops_per_s + bytes / bytes_per_s + evaluations / special_per_s

On a GPU, evaluations take their time beside the bytes: the longer of both counts.

A gather from other ranks takes the time of the link on top (`peers`).

FLOPs (of products, convolutions and attention) come from torch's own FLOP counter, bytes and evaluations from
`traffic`.  A fused loop pays no launch, because it shares the launch of its neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from remat_compiler import torch_compat
from remat_compiler.costs.peers import received_bytes
from remat_compiler.costs.rates import Rates, rates_of
from remat_compiler.costs.traffic import CapturedOps, Traffic
from remat_compiler.gradients.leave import LEAVE
from remat_compiler.operators.table import family_of


class Roofline:
    """Times of the operators of one graph.

    Args:
        captured: The step.
        directory: Where calibrated rates are kept; `None` keeps them for this process only.
        rates: Rates to use for every device instead of calibrated ones.
    """

    def __init__(self, captured: CapturedOps, directory: Path | None, rates: Rates | None = None) -> None:
        self.captured = captured
        self.directory = directory
        self.traffic = Traffic(captured)
        self._fixed = rates
        self._by_device: dict[str, Rates] = {}
        self._flops: dict[Hashable, int] = {}

    def time_ns(self, op_id: int) -> int:
        """Time of the operator, in nanoseconds."""
        rates = self.rates(op_id)
        node = self.captured.main[op_id]
        # The work of the hooks that it calls is the optimizer's.
        if node.target is LEAVE:
            return 0
        flops = self._flops_of(node)
        seconds = self.traffic.moved_bytes(op_id) / rates.bytes_per_s
        # A kernel's arithmetic is in its FLOPs; all others are charged by element.
        if flops:
            product = torch_compat.Product.of(node)
            slowdown = 1.0 if product is None else product.slowdown()
            seconds += slowdown * flops / rates.kernel_rate(family_of(str(node.target)), _result(node).dtype)
        # Infinite among nominal rates, where elements cost nothing.
        elif rates.special_per_s < math.inf:
            arithmetic = self.traffic.evaluations(op_id, on_gpu=rates.on_gpu) / rates.special_per_s
            seconds = max(seconds, arithmetic) if rates.on_gpu else seconds + arithmetic
        received = received_bytes(node)
        if received is not None:
            seconds += received / rates.peers.bytes_per_s + rates.peers.latency_ns / 1e9
        return round(seconds * 1e9) + (0 if self.captured.loops[op_id] else rates.overhead_ns)

    def provenance(self, op_id: int) -> str:
        """Where `time_ns` comes from."""
        return f"roofline:{self.rates(op_id).name}"

    def _flops_of(self, node: fx.Node) -> int:
        """`flops_of`, once for equal calls: layers repeat, and a formula takes longer than to recognise them."""
        # First, because most nodes have no formula and need no key.
        if _formula(node) is None:
            return 0
        # Keyword names belong to the key: their values alone do not say which is which.
        key = (node.target, _sizes(node.args), tuple(node.kwargs), _sizes(tuple(node.kwargs.values())), _sizes(node))
        found = self._flops.get(key)
        if found is None:
            found = self._flops[key] = flops_of(node)
        return found

    def rates(self, op_id: int) -> Rates:
        """Rates of the operator's device."""
        if self._fixed is not None:
            return self._fixed
        device_type = _result(self.captured.main[op_id]).device.type
        if device_type not in self._by_device:
            self._by_device[device_type] = rates_of(device_type, self.directory)
        return self._by_device[device_type]


_NO_TENSOR = torch.empty(0)


def _result(node: fx.Node) -> torch.Tensor:
    """The node's first tensor, for its type and device; an empty CPU tensor if it has none."""
    value = node.meta.get("val")
    leaves = value if isinstance(value, (list, tuple)) else (value,)
    return next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), _NO_TENSOR)


def flops_of(node: fx.Node) -> int:
    """Floating point operations of the node by torch's FLOP counter; 0 if it has no formula."""
    formula = _formula(node)
    if formula is None:
        return 0
    args, kwargs = fx.map_arg((node.args, node.kwargs), _hinted_node)
    return int(formula(*args, **kwargs, out_val=_hinted_node(node)))


def _formula(node: fx.Node) -> Callable[..., Any] | None:
    target = node.target
    return _FORMULAS.get(target.overloadpacket if isinstance(target, torch._ops.OpOverload) else target)


def _sizes(value: Any) -> Hashable:
    """The part of the arguments that a formula can see: sizes of tensors, and numbers."""
    if isinstance(value, fx.Node):
        value = value.meta.get("val")
    if isinstance(value, torch.Tensor):
        return tuple(map(torch_compat.size_hint, value.shape))
    if isinstance(value, (list, tuple)):
        return tuple(map(_sizes, value))
    return torch_compat.size_hint(value) if isinstance(value, torch.SymInt) else str(value)


def _attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query.shape, key.shape, value.shape))  # type: ignore[no-untyped-call]


def _attention_backward_flops(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    shapes = (grad.shape, query.shape, key.shape, value.shape)
    return int(sdpa_backward_flop_count(*shapes))  # type: ignore[no-untyped-call]


def _flexible_backward_flops(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, out: torch.Tensor, *_: Any, **__: Any
) -> int:
    return _attention_backward_flops(out, query, key, value)


_FORMULAS: dict[Any, Callable[..., Any]] = {
    # Where torch has formulas of its own, from 2.12 on, these know how much a mask leaves out.
    torch_compat.FLEX_ATTENTION: _attention_flops,
    torch_compat.FLEX_ATTENTION_BACKWARD: _flexible_backward_flops,
    **flop_registry,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention_flops,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward_flops,
}
"""torch's formulas, and those of the attention kernels that it leaves out."""


def _hinted_node(node: fx.Node) -> Any:
    return _hinted(node.meta.get("val"))


def _hinted(value: Any) -> Any:
    """The value with every size replaced by its hint, so that counting makes no guards."""
    if isinstance(value, torch.Tensor):
        sizes = [torch_compat.size_hint(size) for size in value.shape]
        # Formulas read shapes alone, so the tensor needs no memory.
        return torch.empty(sizes, dtype=value.dtype, device="meta")
    if isinstance(value, (list, tuple)):
        return [_hinted(item) for item in value]
    return torch_compat.size_hint(value) if isinstance(value, torch.SymInt) else value
