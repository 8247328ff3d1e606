"""The class of each FX node, and the reasons why an operator may not be executed again.

The classes follow what Inductor does with a node: views cost nothing, pointwise nodes are inlined into
their consumers, reductions materialise their result and inline their producers, everything else is a
kernel of its own whose inputs and outputs are materialised.
"""

from __future__ import annotations

import operator
from enum import Enum
from functools import cache
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.declared import WITHOUT_DROPOUT, is_declared
from remat_compiler.costs.op_call import COLLECTIVE_NAMESPACES
from remat_compiler.ir.graph import SavePolicy, Trait


class NodeClass(Enum):
    """How the inner compiler treats a node."""

    INPUT = "input"
    SYMBOLIC = "symbolic"
    VIEW = "view"
    ITEM = "item"
    WAIT = "wait"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    KERNEL = "kernel"


_aten = torch.ops.aten
_prims = torch.ops.prims

# Some of their schemas declare no alias, though the result shares the memory of the argument.
_VIEWS_WITHOUT_ALIAS_SCHEMA = frozenset(
    {_aten._unsafe_view, _aten.reshape, _aten.lift, _aten.lift_fresh, _aten._reshape_alias, torch_compat.STORE}
)
_REDUCTIONS = frozenset(
    {
        _aten.sum, _aten.mean, _aten.amax, _aten.amin, _aten.var, _aten.var_mean, _aten.std, _aten.std_mean,
        _aten.prod, _aten.argmax, _aten.argmin, _aten.any, _aten.all, _aten.max, _aten.min, _aten.logsumexp,
        _prims.sum, _prims.var, _prims.amax, _prims.amin, _prims.prod, _prims.prepare_softmax_online,
        _aten.native_layer_norm, _aten.native_group_norm,
    }
)  # fmt: skip
_POOLINGS = frozenset(
    {
        _prims._low_memory_max_pool_with_offsets, _aten.max_pool2d_with_indices_backward, _aten.avg_pool2d,
        _aten.avg_pool2d_backward, _aten.avg_pool3d, _aten.avg_pool3d_backward, _aten._adaptive_avg_pool2d,
    }
)  # fmt: skip
_SCATTERS = frozenset(
    {
        _aten.scatter, _aten.scatter_add, _aten.scatter_reduce, _aten.index_put, _aten._unsafe_index_put,
        _aten.index_add, _aten._unsafe_masked_index_put_accumulate,
    }
)  # fmt: skip
UNROLLED_BELOW = 8
"""A reduction over fewer elements is written out as pointwise arithmetic (``unroll_reductions_threshold``)."""
_POINTWISE = frozenset(
    {
        _aten.embedding, _aten.cat, _aten.constant_pad_nd, _aten.index, _aten.index_select, _aten.gather,
        _aten.select_scatter, _aten.slice_scatter, _aten.flip, _aten.repeat, _aten._to_copy, _aten.clone,
        _aten.roll, _aten.tril, _aten.triu, _aten.one_hot, _aten.upsample_nearest2d, _aten._unsafe_index,
        _aten.empty, _aten.new_full, _aten.new_empty, _aten.full, _aten.arange, _aten.scalar_tensor,
        _aten.lift_fresh_copy, _prims.iota, _prims.convert_element_type, _prims.inductor_lookup_seed,
    }
)  # fmt: skip
_CASTS = frozenset({_aten._to_copy, _aten.clone, _aten.constant_pad_nd, _prims.convert_element_type})
_KNOWN_NAMESPACES = frozenset({"aten", "prims", "quantized_decomposed", "inductor", "mkldnn", "rngprims"})
_SEEDS = frozenset({_prims.inductor_seeds.default, _prims.inductor_seed.default})


def node_class(node: fx.Node) -> NodeClass:
    """Class of `node`; the result of a scalar computation on sizes is SYMBOLIC."""
    if node.op in ("placeholder", "get_attr"):
        return NodeClass.INPUT
    # Before items: a number taken out of a tuple is a size, not a storage.
    if not has_tensor(node):
        return NodeClass.SYMBOLIC
    if node.target is operator.getitem:
        return NodeClass.ITEM
    if _waits_for_collective(node):
        return NodeClass.WAIT
    if isinstance(node.target, torch._ops.OpOverload):
        return NodeClass.POINTWISE if _is_unrolled(node, node.target) else _overload_class(node.target)
    return NodeClass.KERNEL


def _waits_for_collective(node: fx.Node) -> bool:
    """Whether the node waits for a collective of the same graph, and returns the collective's result itself."""
    if node.target not in torch_compat.WAITS:
        return False
    started = node.args[0]
    if isinstance(started, fx.Node) and started.target is operator.getitem:
        started = started.args[0]
    target = started.target if isinstance(started, fx.Node) else None
    return isinstance(target, torch._ops.OpOverload) and _is_functional_collective(target)


def _is_functional_collective(target: torch._ops.OpOverload) -> bool:
    """Whether the operator communicates, and returns memory of its own."""
    communicates = target.namespace in COLLECTIVE_NAMESPACES and target not in torch_compat.WAITS
    return communicates and not target._schema.is_mutable


def _is_unrolled(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    """Whether the node reduces a few elements to each element of its one result."""
    if target.overloadpacket not in _REDUCTIONS or _is_elementwise_extremum(target):
        return False
    value, argument = node.meta.get("val"), node.args[0]
    if not isinstance(value, torch.Tensor) or not isinstance(argument, fx.Node):
        return False
    results = torch_compat.size_hint(value.numel())
    # On a CPU, Inductor never unrolls a reduction to a single element.
    return results > 1 and torch_compat.size_hint(argument.meta["val"].numel()) < UNROLLED_BELOW * results


def is_pooling(node: fx.Node) -> bool:
    """Whether the node is a loop over windows: its arguments are in memory, its results may be inlined."""
    return isinstance(node.target, torch._ops.OpOverload) and node.target.overloadpacket in _POOLINGS


@cache
def _overload_class(target: torch._ops.OpOverload) -> NodeClass:
    packet = target.overloadpacket
    # Views first: torch counts many of them as fusible, too.
    if is_view(target):
        return NodeClass.VIEW
    # An operator of its own, so that every plan keeps its effect in order.
    if target._schema.is_mutable:
        return NodeClass.KERNEL
    if packet in _REDUCTIONS | _POOLINGS | _SCATTERS and not _is_elementwise_extremum(target):
        return NodeClass.REDUCTION
    if packet in _POINTWISE or torch.Tag.pointwise in target.tags or packet in torch_compat.fusible_ops():
        return NodeClass.POINTWISE
    return NodeClass.KERNEL


def _is_elementwise_extremum(target: torch._ops.OpOverload) -> bool:
    """`aten.max.other` and `aten.min.other` compare two tensors; their siblings reduce one."""
    return target._overloadname == "other"


@cache
def is_mutable(target: torch._ops.OpOverload) -> bool:
    """Whether the operator changes an argument in place."""
    return bool(target._schema.is_mutable)


@cache
def is_view(target: torch._ops.OpOverload) -> bool:
    """Whether the results share the memory of an argument."""
    # Its result aliases an argument as a view does, but it computes.
    if target._schema.is_mutable:
        return False
    if target.overloadpacket in _VIEWS_WITHOUT_ALIAS_SCHEMA:
        return True
    return any(r.alias_info is not None for r in target._schema.returns)


def has_tensor(node: fx.Node) -> bool:
    """Whether the node's value holds a tensor (or is not known to be free of tensors)."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        # An empty tuple says nothing, and to take it for a size would drop the operator.
        return any(isinstance(v, torch.Tensor) for v in value) or not value
    return not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool))


def is_random(node: fx.Node) -> bool:
    """Whether executing the node draws from a generator, so that a second execution gives other values."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not _may_draw(target):
        return False
    # Attention kernels are tagged as random even without dropout; `None` means another random operator.
    return _dropout_probability(node, target) != 0.0


def draws_seeds(node: fx.Node) -> bool:
    """Whether the node draws seeds only, from which Inductor computes random numbers by their positions."""
    return node.target in _SEEDS


@cache
def _may_draw(target: torch._ops.OpOverload) -> bool:
    """Whether the operator draws from a generator, depending on its arguments."""
    # `inductor_random` computes its numbers from a seed that it is given, so it repeats them by itself.
    return torch.Tag.nondeterministic_seeded in target.tags and target is not _prims.inductor_random.default


def _dropout_probability(node: fx.Node, target: torch._ops.OpOverload) -> float | None:
    """Value of the argument ``dropout_p`` (attention tagged as random), or `None` if there is no such argument."""
    for position, argument in enumerate(target._schema.arguments):
        if argument.name == "dropout_p":
            given: Any = node.args[position] if position < len(node.args) else node.kwargs.get("dropout_p")
            return float(argument.default_value or 0.0) if given is None else float(given)
    return None


def masked_out(node: fx.Node) -> set[int]:
    """Positions of results that the caller excluded (``output_mask``)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return set()
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.name in ("output_mask", "grad_input_mask"):
            mask: Any = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            return {i for i, wanted in enumerate(mask or ()) if not wanted}
    return set()


def traits_of(node: fx.Node) -> frozenset[Trait]:
    """Restrictions on `node` that follow from its operator."""
    target = node.target
    # A higher-order operator has no schema to tell what it does.
    if not isinstance(target, torch._ops.OpOverload):
        if torch_compat.is_functional_hop(node):
            return frozenset()
        effectful = torch_compat.is_effectful_hop(node)
        return frozenset({Trait.EFFECTFUL} if effectful else {Trait.UNKNOWN})
    traits = set()
    if is_random(node):
        traits.add(Trait.RANDOM)
    if target._schema.is_mutable:
        traits.add(Trait.MUTATING)
    if target.namespace in COLLECTIVE_NAMESPACES:
        traits.add(Trait.COLLECTIVE)
        if _gathers_input(node):
            traits.add(Trait.GATHER)
    # Operators of other libraries may do what their schema does not say.
    elif target.namespace not in _KNOWN_NAMESPACES and not _is_known(node, torch_compat.overload_name(target)):
        traits.add(Trait.UNKNOWN)
    return frozenset(traits)


def _is_known(node: fx.Node, name: str) -> bool:
    """Whether an operator of another library makes the same results again, and does nothing else."""
    drops = name in WITHOUT_DROPOUT and _dropout_probability(node, node.target) != 0.0  # type: ignore[arg-type]
    return is_declared(name) and not drops


def _gathers_input(node: fx.Node) -> bool:
    """Whether the node gathers an input of the forward, at most viewed, cast or padded: what FSDP does within a graph.

    Such an input is there on all ranks at any time of the step, whatever else their plans drop.
    """
    if node.target not in torch_compat.GATHERS or not torch_compat.has_fixed_sizes(node):
        return False
    part = node.args[0]
    while isinstance(part, fx.Node) and part.op == "call_function" and _reshapes_or_casts(part.target):
        part = part.args[0]
    return isinstance(part, fx.Node) and part.op == "placeholder" and not torch_compat.is_tangent(part)


def _reshapes_or_casts(target: Any) -> bool:
    """Whether an operator returns the values of its first argument: viewed, copied, as another type, or padded."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return is_view(target) or target.overloadpacket in _CASTS


def reason_not_to_recompute(node: fx.Node, traits: frozenset[Trait], gathers: bool = False) -> str:
    """Why executing `node` again is not allowed; empty when it is.

    Args:
        node: The node.
        traits: Its traits.
        gathers: Whether all ranks may gather inputs again.
    """
    name = str(node.target)
    # Forward and backward compute their random numbers from these seeds, so both must see the same.
    if draws_seeds(node):
        return "it draws the seeds of the step"
    if Trait.MUTATING in traits:
        return f"{name} changes an input in place"
    if Trait.COLLECTIVE in traits and not (gathers and Trait.GATHER in traits):
        return f"{name} communicates between ranks"
    if Trait.EFFECTFUL in traits:
        return f"{name} has side effects"
    if Trait.UNKNOWN in traits:
        return f"{name} is not known to be free of side effects"
    if Trait.RANDOM in traits and not torch_compat.can_replay(node):
        return f"{name} draws random numbers that cannot be replayed"
    if torch_compat.has_unbacked_shape(node):
        return f"{name} has a result whose size depends on data"
    return ""


def save_policy_of(node: fx.Node) -> SavePolicy:
    """Demand that the user's checkpoint regions and policies put on the node's results."""
    return torch_compat.save_policy(node)
