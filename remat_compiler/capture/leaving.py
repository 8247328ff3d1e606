"""Gradients that leave within the backward, in a joint graph: an operator hands each over behind the last use of its
parameter.

    dw = mm(x, dy)                     dw = mm(x, dy)
    dx = mm(dy, w)                     dx = mm(dy, w)
    return dx, dw                      left = leave(dw, w)
                                       return dx, left           `finish` makes it None once the graph is cut

A plan may run operators that read the parameter again; all of that comes before (`Op.ends`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.changes import changed_inputs
from remat_compiler.capture.storages import find_roots, readers
from remat_compiler.gradients.leave import LEAVE


def hand_over(
    joint: fx.GraphModule, num_fwd_outputs: int, leaving: Collection[int], hooks_bytes: Mapping[int, int]
) -> None:
    """Have gradients leave in the backward.

    A gradient stays a result if another operator reads its memory, or if it is that of another result: what a hook does
    to it would show there.

    Args:
        joint: The joint graph; changed in place.
        num_fwd_outputs: How many of its outputs belong to the forward.
        leaving: Positions of the inputs of Dynamo's graph whose gradients may leave.
        hooks_bytes: What the hooks of some of them take while they run.
    """
    primals = [n for n in joint.graph.find_nodes(op="placeholder") if not torch_compat.is_tangent(n)]
    forward, backward = torch_compat.joint_outputs(joint, num_fwd_outputs)
    # Gradients stand in the order of the inputs, one for each, unless inputs are taken apart.
    if not leaving or any(torch_compat.input_position(n) is None for n in primals[: len(backward)]):
        return
    roots, changed = find_roots(joint.graph), changed_inputs(joint.graph)
    order = {node: i for i, node in enumerate(joint.graph.nodes)}
    given = [roots[one] for one in (*forward, *backward) if one in roots]
    output = joint.graph.output_node()
    for argument, (parameter, gradient) in enumerate(zip(primals, backward)):
        # The place of the gradient in what the backward returns is that of the input.
        if argument not in leaving or torch_compat.input_position(parameter) != argument or parameter in changed:
            continue
        if not isinstance(gradient, fx.Node) or not _is_alone(gradient, roots, given):
            continue
        # Behind all readers in the order of the program, and behind the gradient itself.
        last = max([gradient, *readers(parameter, roots)], key=order.__getitem__)
        takes = hooks_bytes.get(argument, 0)
        edge = sum(isinstance(n.meta["val"], torch.Tensor) for n in primals[:argument])
        left = _insert(joint.graph, last, (gradient, parameter, argument, edge, takes))
        output.replace_input_with(gradient, left)


def finish(forward: fx.GraphModule, backward: fx.GraphModule, num_fwd_outputs: int) -> None:
    """Have a finished backward return `None` for each gradient that has left, and save no parameter for that alone.

    What is saved may not be changed until the backward, which eager allows of a bias, say.

    Args:
        forward: The forward; behind `num_fwd_outputs` results it has what it saves, named as in the backward.
        backward: Its backward.
        num_fwd_outputs: How many results the caller gets.
    """
    output = backward.graph.output_node()
    results: Any = output.args[0]
    left = [one for one in results if _is_leave(one)]
    if not left:
        return
    output.args = (tuple(None if _is_leave(one) else one for one in results),)
    unread: set[str] = set()
    for node in left:
        gradient, parameter = node.args[:2]
        if isinstance(parameter, fx.Node) and parameter.op == "placeholder" and set(parameter.users) == {node}:
            # Any tensor will do: it only orders the operator behind readers, and there are none.
            node.update_arg(1, gradient)
            unread.add(parameter.name)
            backward.graph.erase_node(parameter)
    saving = forward.graph.output_node()
    made: Any = saving.args[0]
    saved = (one for one in made[num_fwd_outputs:] if not (isinstance(one, fx.Node) and one.name in unread))
    saving.args = ((*made[:num_fwd_outputs], *saved),)
    forward.recompile()
    backward.recompile()


def right_behind_readers(backward: fx.GraphModule) -> None:
    """Move each operator that hands a gradient over in a backward graph: behind what makes the gradient, and behind the
    last reader of the parameter, but not later."""
    leaves = backward.graph.find_nodes(op="call_function", target=LEAVE)
    if not leaves:
        return
    roots, order = find_roots(backward.graph), {node: i for i, node in enumerate(backward.graph.nodes)}
    for node in leaves:
        others = [one for one in readers(node.args[1], roots) if one is not node]
        max([*node.all_input_nodes[:1], *others], key=order.__getitem__).append(node)
    backward.recompile()


def _is_leave(one: Any) -> bool:
    return isinstance(one, fx.Node) and one.target is LEAVE


def _is_alone(gradient: fx.Node, roots: dict[fx.Node, fx.Node], given: list[fx.Node]) -> bool:
    """Whether the memory of a gradient is made by an operator for nothing but this gradient."""
    root = roots.get(gradient)
    if root is None or root.op != "call_function" or given.count(root) != 1 or readers(root, roots):
        return False
    value = gradient.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is torch.strided


def _insert(graph: fx.Graph, last: fx.Node, arguments: tuple[Any, ...]) -> fx.Node:
    gradient, parameter, *_ = arguments
    with graph.inserting_after(last):
        node = graph.call_function(LEAVE, arguments, name=f"leave_{parameter.name}")
    names = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack")
    node.meta = {name: gradient.meta[name] for name in names if name in gradient.meta}
    with gradient.meta["val"].fake_mode:
        node.meta["val"] = gradient.meta["val"].new_empty(0)
    node.meta["partitioner_tag"] = "is_backward"
    return node
