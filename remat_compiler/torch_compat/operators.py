"""Properties of single operators, as torch knows them: effects, checkpoint tags, random state."""

from __future__ import annotations

from functools import lru_cache
from operator import attrgetter
from typing import Any

import torch
import torch._prims.rng_prims
from torch import fx
from torch._higher_order_ops import flex_attention, flex_attention_backward
from torch._library.custom_ops import CustomOpDef
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.utils.checkpoint import CheckpointPolicy

from remat_compiler.ir.graph import SavePolicy
from remat_compiler.operators.row import Row
from remat_compiler.operators.table import NO_FACTS, row_of

FLEX_ATTENTION, FLEX_ATTENTION_BACKWARD = flex_attention, flex_attention_backward
"""Attention with scores of the program's own."""
COLLECTIVE_NAMESPACES = frozenset({"_c10d_functional", "c10d_functional", "c10d", "_dtensor", "symm_mem"})
"""Namespaces of operators that communicate between ranks."""


def is_functional_hop(node: fx.Node) -> bool:
    """Whether the node is a higher-order operator that makes the same results again, and does nothing else."""
    if not facts_of(node.target).is_functional:
        return False
    held = [one for one in node.all_input_nodes if one.op == "get_attr"]
    modules = [attrgetter(str(one.target))(node.graph.owning_module) for one in held]
    graphs = [module.graph for module in modules if isinstance(module, fx.GraphModule)]
    return all(_is_pure(inner.target) for graph in graphs for inner in graph.nodes if inner.op == "call_function")


def _is_pure(target: object) -> bool:
    """Whether an operator on scores draws no random numbers, and writes nothing but its result."""
    if isinstance(target, OpOverload):
        return not target._schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags
    return not isinstance(target, HigherOrderOperator)


def overloads_of(op: object) -> tuple[OpOverload, ...]:
    """The overloads that `op` means: an overload, a packet, a `torch.library.custom_op`, or a name of one of these."""
    if isinstance(op, CustomOpDef):
        return (op._opoverload,)
    if isinstance(op, str):
        # "ns::name" means all overloads, "ns::name.overload" the one; an unknown name has none.
        namespace, _, rest = op.partition("::")
        name, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, namespace, None), name, None) if namespace and name else None
        if overload and isinstance(packet, OpOverloadPacket):
            return tuple(one for one in _overloads(packet) if one._overloadname == overload)
        op = packet
    if isinstance(op, OpOverloadPacket):
        return _overloads(op)
    return (op,) if isinstance(op, OpOverload) else ()


def _overloads(packet: OpOverloadPacket) -> tuple[OpOverload, ...]:
    return tuple(getattr(packet, name) for name in packet.overloads())  # type: ignore[no-untyped-call]


def overload_name(op: OpOverload) -> str:
    """Name of the overload, such as ``"ns::name"`` or ``"ns::name.overload"``."""
    return str(op.name())  # type: ignore[no-untyped-call]


@lru_cache(4096)
def facts_of(target: object) -> Row:
    """The row of an operator in the table of operators; `NO_FACTS` for any other target of a node."""
    if isinstance(target, HigherOrderOperator):
        return row_of(f"higher_order::{target}")
    return row_of(overload_name(target)) if isinstance(target, OpOverload) else NO_FACTS


def arguments_by_name(node: fx.Node) -> dict[str, Any]:
    """The arguments that are given to an overload, by their names in its schema."""
    names = (argument.name for argument in node.target._schema.arguments)  # type: ignore[union-attr]
    return {**dict(zip(names, node.args)), **node.kwargs}


def never_repeatable(op: OpOverload) -> str:
    """Why users may not declare the operator repeatable; empty if they may."""
    # What torch itself knows of the operator, a declaration cannot change.
    if op._schema.is_mutable:
        return "changes an argument in place"
    if torch.Tag.nondeterministic_seeded in op.tags:
        return "draws random numbers"
    if op.namespace in COLLECTIVE_NAMESPACES:
        return "communicates between ranks"
    return ""


def can_replay(node: fx.Node) -> bool:
    """Whether the random state of the node's device can be saved and restored around it."""
    value = node.meta.get("val")
    # The first result tells the device of the operator, whose generator it draws from.
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    return isinstance(first, torch.Tensor) and first.device.type in ("cpu", "cuda")


def sizes_depend_on_data(gm: fx.GraphModule) -> bool:
    """Whether one of the sizes in Dynamo's graph is known only after running it."""
    return any(has_unbacked_shape(node, "example_value") for node in gm.graph.nodes)


def has_unbacked_shape(node: fx.Node, key: str = "val") -> bool:
    """Whether the size of the node's result is known only after running it.

    Args:
        node: The node.
        key: Under which name its traced result is kept with it.
    """
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    value = node.meta.get(key)
    leaves = value if isinstance(value, (list, tuple)) else [value]
    # Finding symbols is slow, and most values have none.
    symbolic = [v for v in leaves if isinstance(v, torch.Tensor) and v._has_symbolic_sizes_strides]
    return any(bool(free_unbacked_symbols(v)) for v in symbolic)


def meta_of_copy(node: fx.Node) -> dict[str, Any]:
    """What is noted of a copy of the value of `node`, which defines none of the sizes that depend on data."""
    return {key: note for key, note in node.meta.items() if key != "unbacked_bindings"}


def is_of_gloo(group: object) -> bool:
    """Whether the process group of that name communicates by gloo, which copies what it gathers and scatters."""
    try:
        found = torch.distributed.distributed_c10d._resolve_process_group(str(group))  # type: ignore[attr-defined,arg-type]
    except (RuntimeError, ValueError, KeyError):
        # The group of another process, whose code is only looked at.
        return False
    return str(torch.distributed.get_backend(found)) == "gloo"


def has_fixed_sizes(node: fx.Node) -> bool:
    """Whether the node's value is a tensor whose sizes and strides are numbers, the same in every call."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and not value._has_symbolic_sizes_strides


def save_policy(node: fx.Node) -> SavePolicy:
    """Save policy that the node's checkpoint tag demands; MUST_ and PREFER_RECOMPUTE count alike, as in torch."""
    tag = node.meta.get("recompute")
    if tag in (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE):
        return SavePolicy.MUST_NOT_SAVE
    if tag is CheckpointPolicy.MUST_SAVE:
        return SavePolicy.MUST_SAVE
    return SavePolicy.FREE


def run_and_save_rng_state() -> Any:
    """Higher-order operator ``(op, *args) -> (state, result)``."""
    return torch._prims.rng_prims.run_and_save_rng_state


def run_with_rng_state() -> Any:
    """Higher-order operator ``(state, op, *args) -> result``, which restores the generator afterwards."""
    return torch._prims.rng_prims.run_with_rng_state


def rng_state_value(node: fx.Node) -> torch.Tensor:
    """Fake tensor of the random state before `node` is executed."""
    value = node.meta["val"]
    first = value[0] if isinstance(value, (list, tuple)) else value
    # Generators return real tensors even under a fake mode; their states are always in the memory of the CPU.
    length = CUDA_RNG_STATE_LENGTH if first.device.type == "cuda" else torch.get_rng_state().numel()
    with first.fake_mode:
        return torch.empty(length, dtype=torch.uint8, device="cpu")


CUDA_RNG_STATE_LENGTH = 16
"""Bytes of a CUDA generator's state: its seed and its offset."""
