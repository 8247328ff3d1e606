"""Convolutions of joint graphs: the layout in which Inductor will run them, and the strides that follow from it.

Where Inductor decides for its layout optimisation, all 2-d convolutions of a forward run in channels-last order.  An
input of the graph that comes in another order is copied, and a copy that the backward reads is saved in place of the
input (`find_nodes_prefer_channels_last` of `torch._inductor.graph`).

For a backward that repeats no convolution Inductor decides otherwise: what the gradients are computed from is brought
into the order of the weight's strides.  Of a weight with one channel in each group two orders have the same strides,
and the one that is taken is neither the program's nor channels-last: inputs and gradients are copied for it.  Planned
backwards keep to the layout of their forward.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._inductor import config
from torch._inductor.graph import GraphLowering
from torch.utils import _pytree as pytree

from remat_compiler.torch_compat.duplicates import leading_to
from remat_compiler.torch_compat.fake_tensors import FAKE_RUN_ERRORS, FakeTensor, fake_call
from remat_compiler.torch_compat.joint import joint_outputs
from remat_compiler.torch_compat.modules import new_module
from remat_compiler.torch_compat.operators import has_unbacked_shape
from remat_compiler.torch_compat.patches import BACKWARD_LAYOUT, PREFERRED_LAYOUT
from remat_compiler.torch_compat.patching import replace
from remat_compiler.torch_compat.planned_fusion import is_fusion_limited
from remat_compiler.torch_compat.sizes import size_hint

CONVOLUTION = torch.ops.aten.convolution.default
CONVOLUTION_BACKWARD = torch.ops.aten.convolution_backward.default
_COPIED = "remat_copied_for_convolution"
_TRACED = "remat_traced_value"


def takes_channels_last(joint: fx.GraphModule, num_fwd_outputs: int) -> bool:
    """Whether Inductor will run the 2-d convolutions of the forward in channels-last order.

    Args:
        joint: The joint graph.
        num_fwd_outputs: How many of its outputs belong to the forward.
    """
    # Both may turn convolutions into products, which take other layouts.
    if config.max_autotune or config.max_autotune_gemm or config.conv_1x1_as_mm:
        return False
    if not joint.graph.find_nodes(op="call_function", target=CONVOLUTION):
        return False
    forward = _forward_part(joint, num_fwd_outputs)
    return bool(GraphLowering.decide_layout_opt(new_module(joint, forward), is_inference=False))


def _forward_part(joint: fx.GraphModule, num_fwd_outputs: int) -> fx.Graph:
    """What the outputs of the forward are computed from; torch counts the nodes of this graph."""
    outputs, _ = joint_outputs(joint, num_fwd_outputs)
    needed = leading_to(outputs)
    forward = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.nodes:
        if node in needed:
            copies[node] = forward.node_copy(node, copies.__getitem__)
    forward.output(tuple(copies[node] if isinstance(node, fx.Node) else node for node in outputs))
    return forward


def is_channels_last(value: torch.Tensor) -> bool:
    """Whether Inductor takes a 4-d value for one in channels-last order, dense or not, as it is."""
    # As `Layout.is_stride_ordered` of `torch._inductor.ir`: dimensions of one element have no place in the order.
    strides = [size_hint(value.stride(i)) for i in (1, 3, 2, 0) if size_hint(value.shape[i]) != 1]
    return strides == sorted(strides)


def propagate_channels_last(graph: fx.Graph, copies: Collection[fx.Node]) -> None:
    """Give the values of a joint graph the strides that follow from these copies, about as Inductor will.

    Args:
        graph: A joint graph that `takes_channels_last`; values of its nodes are changed, but for outputs, which callers
            get as the program lays them out.
        copies: Inputs of convolutions in channels-last order.
    """
    moved = set(copies)
    outputs = frozenset(graph.output_node().all_input_nodes)
    for node in graph.nodes:
        if node.target is CONVOLUTION:
            for argument in node.args[:2]:
                # Loops write what a convolution reads in its order, whatever they read.
                if argument not in outputs and _is_written_anew(argument) and not _fits(argument.meta["val"]):
                    _lay(argument, in_order(argument, torch.channels_last))
                    moved.add(argument)
        if node not in outputs:
            _follow(node, moved)


def propagate_strides(graph: fx.Graph, moved: Collection[fx.Node]) -> None:
    """Give the values of a graph, but for outputs, the strides that follow from those of some that were changed."""
    found = set(moved)
    outputs = frozenset(graph.output_node().all_input_nodes)
    for node in graph.nodes:
        if node not in outputs:
            _follow(node, found)


def _follow(node: fx.Node, moved: set[fx.Node]) -> None:
    """Compute the strides of a node anew if it reads one that was moved; it is added to these if they changed."""
    if node.op != "call_function" or moved.isdisjoint(node.all_input_nodes):
        return
    # What cannot be computed anew keeps the strides of the trace, which decide no size.
    with suppress(*FAKE_RUN_ERRORS, RuntimeError, TypeError, ValueError):
        value = _computed_anew(node)
        if _strides(value) != _strides(node.meta["val"]):
            _lay(node, value)
            moved.add(node)


def _lay(node: fx.Node, value: Any) -> None:
    node.meta.setdefault(_TRACED, node.meta["val"])
    node.meta["val"] = value


def traced_value(node: fx.Node) -> Any:
    """What stands for the node's value with the strides of the program, whatever layout Inductor takes."""
    return node.meta.get(_TRACED, node.meta.get("val"))


def in_order(node: fx.Node, order: torch.memory_format) -> torch.Tensor:
    """What stands for a copy of the node's value in that order."""
    value: Any = node.meta["val"]
    with value.fake_mode, torch.no_grad():
        copy: torch.Tensor = value.clone(memory_format=order)
    return copy


def _fits(value: torch.Tensor) -> bool:
    return value.dim() != 4 or is_channels_last(value)


def _is_written_anew(node: fx.Node) -> bool:
    """Whether an operator writes the value to memory of its own."""
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and all(r.alias_info is None for r in target._schema.returns)


def _computed_anew(node: fx.Node) -> Any:
    """The fake result of `node` from its arguments' present ones."""
    target, args, kwargs, value = fake_call(node)
    if target is operator.getitem:
        return args[0][args[1]]
    # Each change of an argument is made once, and each size that depends on data has one name.
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable or has_unbacked_shape(node):
        return value
    # Inductor copies where the elements of a view are apart.
    if target is torch.ops.aten.view.default:
        target = torch.ops.aten.reshape.default
    mode = next(one.fake_mode for one in pytree.tree_leaves(args) if isinstance(one, FakeTensor))
    with mode, torch.no_grad():
        return target(*args, **kwargs)


def _strides(value: Any) -> list[Any]:
    return [one.stride() for one in pytree.tree_leaves(value) if isinstance(one, torch.Tensor)]


def mark_copy(node: fx.Node) -> None:
    """Mark a copy of an input that convolutions read in its place, so that Inductor leaves the input as it is."""
    node.meta[_COPIED] = True


@cache
def guard_layout() -> None:
    """Have planned graphs copy for the layout of convolutions only what the plan copies.

    Inductor would save a channels-last copy of an input where the backward reads the input itself.
    """
    replace(PREFERRED_LAYOUT, _without_inputs)
    replace(BACKWARD_LAYOUT, _as_the_forward)


def _as_the_forward(decide: Callable[..., bool]) -> Callable[..., bool]:
    def decide_layout_opt(gm: fx.GraphModule, *, is_inference: bool) -> bool:
        decided = decide(gm, is_inference=is_inference)
        if decided or not config.layout_optimization or not is_fusion_limited():
            return decided
        nodes = gm.graph.find_nodes(op="call_function", target=CONVOLUTION_BACKWARD)
        inputs = [node.args[1].meta["val"] for node in nodes]
        return bool(inputs) and all(value.dim() == 4 and is_channels_last(value) for value in inputs)

    return decide_layout_opt


def _without_inputs(find: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def find_nodes_prefer_channels_last(self: Any) -> Any:
        preferring = find(self)
        for node in [one for one in preferring if one.op == "placeholder"]:
            if not any(user.target is CONVOLUTION for user in node.users) and (
                is_fusion_limited() or any(_COPIED in user.meta for user in node.users)
            ):
                preferring.discard(node)
        return preferring

    return find_nodes_prefer_channels_last
