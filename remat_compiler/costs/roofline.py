"""Operator times from FLOPs and bytes over the rates of the device.

    time_ns = overhead_ns + FLOPs / flops_per_s + bytes / bytes_per_s

FLOPs come from torch's own FLOP counter; an operator that it does not know moves bytes only.  Under
Inductor a pointwise operator is part of a fused loop, so it pays no launch and only its memory traffic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree
from torch.utils.flop_counter import flop_registry

from remat_compiler import torch_compat
from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.problem import CostTable


@dataclass(frozen=True, slots=True)
class Rates:
    """Speed of a device.

    Attributes:
        flops_per_s: Floating point operations per second of a large matrix product.
        bytes_per_s: Bytes read plus written per second by a large copy.
        overhead_ns: Time to start one operator.
        name: Where the rates come from.
    """

    flops_per_s: float
    bytes_per_s: float
    overhead_ns: int
    name: str


NOMINAL = Rates(flops_per_s=50e9, bytes_per_s=10e9, overhead_ns=1000, name="nominal")
"""Rates of one CPU core, to compare plans between machines."""


def roofline_costs(
    graph: TrainingGraph,
    main_nodes: Sequence[fx.Node],
    loops: Sequence[bool],
    rates: Rates,
    workspace_bytes: tuple[int, ...] | None = None,
) -> CostTable:
    """Cost of every operator of `graph`, in whole nanoseconds.

    Args:
        graph: The step.
        main_nodes: FX node of each operator, for its FLOPs.
        loops: Whether each operator is a loop that Inductor fuses with its neighbours.
        rates: Speed of the device.
        workspace_bytes: Workspace of each operator; zero unless given.
    """
    times = tuple(
        _time_ns(flops_of(node), _moved_bytes(graph, op_id), rates) + (0 if loop else rates.overhead_ns)
        for op_id, (node, loop) in enumerate(zip(main_nodes, loops))
    )
    return CostTable(times, workspace_bytes or (0,) * len(times), (f"roofline:{rates.name}",) * len(times))


def _moved_bytes(graph: TrainingGraph, op_id: int) -> int:
    """Bytes that the operator reads and writes."""
    op = graph.ops[op_id]
    return sum(graph.storages[s].size_bytes for s in (*op.reads, *op.writes))


def _time_ns(flops: int, moved_bytes: int, rates: Rates) -> int:
    return round((flops / rates.flops_per_s + moved_bytes / rates.bytes_per_s) * 1e9)


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
    return pytree.tree_map_only(torch.Tensor, _hinted_tensor, node.meta.get("val"))


def _hinted_tensor(value: torch.Tensor) -> torch.Tensor:
    sizes = [torch_compat.size_hint(s) for s in value.shape]
    return torch.empty(sizes, dtype=value.dtype, device="meta")
