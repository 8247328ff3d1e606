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
from remat_compiler.gradients.leave import LEAVE
from remat_compiler.ir.graph import Trait


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


UNROLLED_BELOW = 8
"""A reduction over fewer elements is written out as pointwise arithmetic (``unroll_reductions_threshold``)."""
_KNOWN_NAMESPACES = frozenset({"aten", "prims", "quantized_decomposed", "inductor", "mkldnn", "rngprims"})


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
    if torch_compat.facts_of(node.target).collective != "wait":
        return False
    started = node.args[0]
    if isinstance(started, fx.Node) and started.target is operator.getitem:
        started = started.args[0]
    target = started.target if isinstance(started, fx.Node) else None
    if not isinstance(target, torch._ops.OpOverload) or torch_compat.facts_of(target).collective == "wait":
        return False
    # One that writes into an argument has no memory of its own to return.
    return target.namespace in torch_compat.COLLECTIVE_NAMESPACES and not target._schema.is_mutable


def _is_unrolled(node: fx.Node, target: torch._ops.OpOverload) -> bool:
    """Whether the node reduces a few elements to each element of its one result."""
    if not _is_reduction(target):
        return False
    value, argument = node.meta.get("val"), node.args[0]
    if not isinstance(value, torch.Tensor) or not isinstance(argument, fx.Node):
        return False
    results = torch_compat.size_hint(value.numel())
    # On a CPU, Inductor never unrolls a reduction to a single element.
    return results > 1 and torch_compat.size_hint(argument.meta["val"].numel()) < UNROLLED_BELOW * results


def is_pooling(node: fx.Node) -> bool:
    """Whether the node is a loop over windows: its arguments are in memory, its results may be inlined."""
    return torch_compat.facts_of(node.target).loop == "windows"


@cache
def _overload_class(target: torch._ops.OpOverload) -> NodeClass:
    # Views first: torch counts many of them as fusible, too.
    if is_view(target):
        return NodeClass.VIEW
    # An operator of its own, so that every plan keeps its effect in order.
    if target._schema.is_mutable:
        return NodeClass.KERNEL
    loop = torch_compat.facts_of(target).loop
    if loop in ("windows", "scatter") or _is_reduction(target):
        return NodeClass.REDUCTION
    is_pointwise = loop == "pointwise" or torch.Tag.pointwise in target.tags
    if is_pointwise or target.overloadpacket in torch_compat.fusible_ops():
        return NodeClass.POINTWISE
    return NodeClass.KERNEL


def _is_reduction(target: torch._ops.OpOverload) -> bool:
    return torch.Tag.reduction in target.tags or torch_compat.facts_of(target).loop == "reduction"


@cache
def is_view(target: torch._ops.OpOverload) -> bool:
    """Whether the results share the memory of an argument."""
    # Its result aliases an argument as a view does, but it computes.
    if target._schema.is_mutable:
        return False
    if torch_compat.facts_of(target).loop == "view":
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
    return torch_compat.facts_of(node.target).seeds == "drawn"


@cache
def _may_draw(target: torch._ops.OpOverload) -> bool:
    """Whether the operator draws from a generator, depending on its arguments."""
    # One that is given a seed computes its numbers from that, and so repeats them by itself.
    return torch.Tag.nondeterministic_seeded in target.tags and torch_compat.facts_of(target).seeds != "given"


def _dropout_probability(node: fx.Node, target: torch._ops.OpOverload) -> float | None:
    """Value of the argument ``dropout_p`` (attention tagged as random), or `None` if there is no such argument."""
    argument = next((one for one in target._schema.arguments if one.name == "dropout_p"), None)
    if argument is None:
        return None
    given = torch_compat.arguments_by_name(node).get("dropout_p")
    return float(argument.default_value or 0.0) if given is None else float(given)


def masked_out(node: fx.Node) -> set[int]:
    """Positions of results that the caller excluded (``output_mask``)."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return set()
    given = torch_compat.arguments_by_name(node)
    mask = given.get("output_mask", given.get("grad_input_mask"))
    return {i for i, wanted in enumerate(mask or ()) if not wanted}


def traits_of(node: fx.Node) -> frozenset[Trait]:
    """Restrictions on `node` that follow from its operator."""
    target = node.target
    # A higher-order operator has no schema to tell what it does.
    if not isinstance(target, torch._ops.OpOverload):
        if torch_compat.is_functional_hop(node):
            return frozenset()
        effectful = torch_compat.facts_of(target).runs == "in order of effects"
        return frozenset({Trait.EFFECTFUL} if effectful else {Trait.UNKNOWN})
    # What it does to its parameter, `Op.ends` says.
    if target is LEAVE:
        return frozenset()
    traits = set()
    if is_random(node):
        traits.add(Trait.RANDOM)
    if target._schema.is_mutable:
        traits.add(Trait.MUTATING)
    if target.namespace in torch_compat.COLLECTIVE_NAMESPACES:
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
    if torch_compat.facts_of(node.target).collective != "gather" or not torch_compat.has_fixed_sizes(node):
        return False
    part = node.args[0]
    while isinstance(part, fx.Node) and part.op == "call_function" and _reshapes_or_casts(part.target):
        part = part.args[0]
    return isinstance(part, fx.Node) and part.op == "placeholder" and not torch_compat.is_tangent(part)


def _reshapes_or_casts(target: Any) -> bool:
    """Whether an operator returns the values of its first argument: viewed, copied, as another type, or padded."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return is_view(target) or torch_compat.facts_of(target).same_values


def reason_not_to_recompute(node: fx.Node, traits: frozenset[Trait], gathers: bool = False) -> str:
    """Why executing `node` again is not allowed; empty when it is.

    Args:
        node: The node.
        traits: Its traits.
        gathers: Whether all ranks may gather inputs again.
    """
    name = str(node.target)
    if node.target is LEAVE:
        return "it hands a gradient over"
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
