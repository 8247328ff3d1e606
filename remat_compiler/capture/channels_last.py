"""Copies of inputs that Inductor makes for its layout of convolutions, made operators of the joint graph.

Inductor runs 2-d convolutions in channels-last order where it expects that to be faster.  Parameters and images that
come in another order are copied for it, the copies are kept until the backward, and gradients are copied back:

    conv(x, w)                                          convolution_backward(g, x, w) -> dw
    x' = clone(x)   w' = clone(w)   conv(x', w')        convolution_backward(g, x', w') -> dw'   dw = clone(dw')

As operators, these copies are counted, and a plan may make one again in the backward rather than keep it: what it is
made of stays anyway.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import NodeClass, draws_seeds, is_random, node_class

_CLONE = torch.ops.aten.clone.default
_READERS = (torch_compat.CONVOLUTION, torch_compat.CONVOLUTION_BACKWARD)
_ARGUMENTS = ("input", "weight")
"""The first arguments of a convolution, whose order in memory its layout is about; copies are named by them."""
_ORIGIN = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "partitioner_tag")


def copy_inputs_of_convolutions(joint: fx.GraphModule, num_fwd_outputs: int) -> tuple[fx.Node, ...]:
    """Give each 2-d convolution inputs in channels-last order, if Inductor will run it so.

    Args:
        joint: Joint graph, prepared; changed in place.
        num_fwd_outputs: How many of its outputs belong to the forward.

    Returns:
        The copies of inputs, in order; none if Inductor keeps the program's layout, or leaves random numbers to torch.
    """
    # Numbers that torch draws itself lie as they are drawn: in another order they would be others than eager's.
    if any(is_random(node) and not draws_seeds(node) for node in joint.graph.nodes):
        return ()
    if not torch_compat.takes_channels_last(joint, num_fwd_outputs):
        return ()
    copies: dict[fx.Node, fx.Node] = {}
    for node in joint.graph.find_nodes(op="call_function", target=torch_compat.CONVOLUTION):
        for value, name in zip(node.args, _ARGUMENTS):
            if value not in copies and _is_copied(value):
                copies[value] = _copied(value, node, name)
    for value, copy in copies.items():
        value.replace_all_uses_with(copy, delete_user_cb=lambda user: user.target in _READERS)
    made = frozenset(copies.values())
    for node in joint.graph.find_nodes(op="call_function", target=torch_compat.CONVOLUTION_BACKWARD):
        for item in [user for user in node.users if user.target is operator.getitem]:
            # A gradient for each argument, in order; the last one is the bias's.
            if item.args[1] < len(_ARGUMENTS) and node.args[1 + item.args[1]] in made:
                _copy_back(item, _ARGUMENTS[item.args[1]])
    torch_compat.propagate_channels_last(joint.graph, made)
    return tuple(copies.values())


def _is_copied(value: fx.Node) -> bool:
    """Whether the value lies in an input of the step, in another order."""
    tensor = value.meta["val"]
    if tensor.dim() != 4 or torch_compat.is_channels_last(tensor):
        return False
    while node_class(value) is NodeClass.VIEW:
        value = value.all_input_nodes[0]
    return node_class(value) is NodeClass.INPUT and not torch_compat.is_tangent(value)


def _copied(value: fx.Node, reader: fx.Node, name: str) -> fx.Node:
    """A copy of `value` in channels-last order, just before its first reader."""
    with value.graph.inserting_before(reader):
        copy = _clone(value, torch.channels_last, f"{name}_channels_last")
    copy.meta |= _origin(reader)
    torch_compat.mark_copy(copy)
    return copy


def _copy_back(gradient: fx.Node, name: str) -> None:
    """Return a copy of the gradient in the program's order, where it is returned."""
    outputs = [user for user in gradient.users if user.op == "output"]
    # A gradient of some inputs in channels-last order is in that order in the program, too.
    if not outputs or torch_compat.is_channels_last(gradient.meta["val"]):
        return
    with gradient.graph.inserting_after(gradient):
        copy = _clone(gradient, torch.contiguous_format, f"{name}_gradient_contiguous")
    copy.meta |= _origin(gradient)
    gradient.replace_all_uses_with(copy, delete_user_cb=lambda user: user in outputs)


def _clone(value: fx.Node, order: torch.memory_format, name: str) -> fx.Node:
    copy = value.graph.create_node("call_function", _CLONE, (value,), {"memory_format": order}, name)
    copy.meta["val"] = torch_compat.in_order(value, order)
    return copy


def _origin(node: fx.Node) -> dict[str, Any]:
    """Where the node comes from in the user's program, and in which half torch traced it."""
    return {key: node.meta[key] for key in _ORIGIN if key in node.meta}
