"""Another order of the backward: each loop as early as what it needs allows, so that Inductor may fuse it with others.

No loop of a planned graph spans a kernel.  In the order in which autograd differentiates, many loops that read the same
values stand on two sides of a kernel that none of them needs:

    autograd       dx = mm(dy, w)   y' = norm(x)   dw = mm(y', dy)   dx' = norm_backward(dx, x)
    early loops    dx = mm(dy, w)   dx' = norm_backward(dx, x)   y' = norm(x)   dw = mm(y', dy)

Here the last two loops read `x` once, together.  Most such loops write over a value that ends in them, so that it
costs no memory to run them early.
"""

from __future__ import annotations

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.changes import changed_inputs
from remat_compiler.capture.operators import NodeClass, node_class, traits_of
from remat_compiler.capture.phases import find_phases
from remat_compiler.capture.storages import find_roots
from remat_compiler.ir.graph import Phase

_LOOPS = (NodeClass.POINTWISE, NodeClass.REDUCTION, NodeClass.VIEW, NodeClass.ITEM)


def order_of(joint: fx.GraphModule) -> list[fx.Node]:
    """The nodes but the output, in order."""
    return [node for node in joint.graph.nodes if node.op != "output"]


def set_order(joint: fx.GraphModule, order: list[fx.Node]) -> None:
    """Put the nodes into this order, which must be one of computation."""
    output = next(node for node in reversed(joint.graph.nodes) if node.op == "output")
    for node in order:
        output.prepend(node)


def early_loops(joint: fx.GraphModule, num_fwd_outputs: int) -> list[fx.Node]:
    """The nodes of a joint graph with the loops of the backward early; the forward and all kernels keep their order.

    Operators without a tangent follow in the backward just before the first that needs them.  What changes memory in
    place, draws random numbers, or reads an input that is changed, stays where it is.
    """
    nodes = order_of(joint)
    fwd_outputs, _ = torch_compat.joint_outputs(joint, num_fwd_outputs)
    phases = find_phases(joint.graph, fwd_outputs)
    place = {node: i for i, node in enumerate(nodes)}
    end = max((place[n] for n in nodes if phases[n] is Phase.FORWARD), default=-1)
    movable = _movable(joint, nodes)
    key: dict[fx.Node, int] = {}
    for node in nodes:
        late = place[node] > end and phases[node] is not Phase.FORWARD
        if late and (node in movable or phases[node] is Phase.TANGENT_FREE):
            key[node] = max([end, *(key[a] for a in node.all_input_nodes)])
        else:
            key[node] = place[node]
    order: dict[fx.Node, None] = {}
    for node in sorted(nodes, key=lambda n: (key[n], place[n])):
        if phases[node] is not Phase.TANGENT_FREE or place[node] <= end:
            _add(node, order)
    for node in nodes:
        _add(node, order)
    return list(order)


def _movable(joint: fx.GraphModule, nodes: list[fx.Node]) -> set[fx.Node]:
    """Loops and views without an effect, which read nothing that changes."""
    roots, changed = find_roots(joint.graph), changed_inputs(joint.graph)
    found = set()
    for node in nodes:
        pure = node_class(node) in _LOOPS and not traits_of(node)
        if pure and changed.isdisjoint(roots.get(a) for a in node.all_input_nodes):
            found.add(node)
    return found


def _add(node: fx.Node, order: dict[fx.Node, None]) -> None:
    """Append a node, behind those of its arguments that are not there yet."""
    stack = [node]
    while stack:
        top = stack[-1]
        missing = [a for a in top.all_input_nodes if a not in order]
        if missing:
            stack += reversed(missing)
        else:
            order[stack.pop()] = None
