"""Operator times from what they must do over the rates of their device.

    time_ns = overhead_ns + FLOPs / flops_per_s + bytes / bytes_per_s + evaluations / special_per_s

FLOPs (of products, convolutions and attention) come from torch's own FLOP counter; bytes and evaluations from
`traffic`.  A fused loop pays no launch: it shares its neighbours'.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from remat_compiler import torch_compat
from remat_compiler.costs.families import family_of
from remat_compiler.costs.rates import Rates, rates_of
from remat_compiler.costs.traffic import CapturedOps, Traffic


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

    def time_ns(self, op_id: int) -> int:
        """Time of the operator, in nanoseconds."""
        rates = self.rates(op_id)
        node = self.captured.main[op_id]
        flops = flops_of(node)
        seconds = self.traffic.moved_bytes(op_id) / rates.bytes_per_s
        if flops and isinstance(node.target, torch._ops.OpOverload):
            seconds += flops / rates.kernel_rate(family_of(node.target), _result(node).dtype)
        else:
            seconds += self.traffic.evaluations(op_id) / rates.special_per_s
        return round(seconds * 1e9) + (0 if self.captured.loops[op_id] else rates.overhead_ns)

    def provenance(self, op_id: int) -> str:
        """Where `time_ns` comes from."""
        return f"roofline:{self.rates(op_id).name}"

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
    """The node's first tensor, for its type and device; one of a CPU where it has none."""
    leaves = pytree.tree_leaves(node.meta.get("val"))
    return next((leaf for leaf in leaves if isinstance(leaf, torch.Tensor)), _NO_TENSOR)


def flops_of(node: fx.Node) -> int:
    """Floating point operations of the node by torch's FLOP counter; 0 where it has no formula."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.overloadpacket not in flop_registry:
        return 0
    args, kwargs = pytree.tree_map_only(fx.Node, _hinted_value, (node.args, node.kwargs))
    out = pytree.tree_map_only(torch.Tensor, _hinted_tensor, node.meta.get("val"))
    return int(flop_registry[target.overloadpacket](*args, **kwargs, out_val=out))


def _hinted_value(node: fx.Node) -> Any:
    """The node's value with every size replaced by its hint, so that counting makes no guards."""
    value = pytree.tree_map_only(torch.Tensor, _hinted_tensor, node.meta.get("val"))
    return torch_compat.size_hint(value) if isinstance(value, torch.SymInt) else value


def _hinted_tensor(value: torch.Tensor) -> torch.Tensor:
    sizes = [torch_compat.size_hint(s) for s in value.shape]
    return torch.empty(sizes, dtype=value.dtype, device="meta")
