"""Another order of the backward: each loop runs as early as its arguments allow, so that Inductor can fuse more loops.

No loop of a planned graph spans a kernel.  In autograd's order, many loops that read the same values stand on opposite
sides of a kernel that none of them needs:

    autograd       dx = mm(dy, w)   y' = norm(x)   dw = mm(y', dy)   dx' = norm_backward(dx, x)
    early loops    dx = mm(dy, w)   dx' = norm_backward(dx, x)   y' = norm(x)   dw = mm(y', dy)

In the second order both loops read `x` once, together.  Most such loops overwrite a value whose life ends in them, so
running them early costs no memory.
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
    """Put the nodes into this order, in which arguments must precede their readers."""
    output = joint.graph.output_node()
    for node in order:
        output.prepend(node)


def early_loops(joint: fx.GraphModule, num_fwd_outputs: int) -> list[fx.Node]:
    """The nodes of a joint graph with the loops of the backward early; the forward and all kernels keep their order.

    Tangent-free operators of the backward stand just before the first node that needs them.  A node that changes memory
    in place, draws random numbers, or reads an input that is changed, stays where it is.
    """
    nodes = order_of(joint)
    fwd_outputs, _ = torch_compat.joint_outputs(joint, num_fwd_outputs)
    phases = find_phases(joint.graph, fwd_outputs)
    place = {node: i for i, node in enumerate(nodes)}
    # Nothing moves across the end of the forward.
    end = max((place[n] for n in nodes if phases[n] is Phase.FORWARD), default=-1)
    movable = _movable(joint, nodes)
    key: dict[fx.Node, int] = {}
    for node in nodes:
        late = place[node] > end and phases[node] is not Phase.FORWARD
        if late and (node in movable or phases[node] is Phase.TANGENT_FREE):
            # Right after the latest of its arguments, which may have moved themselves.
            key[node] = max([end, *(key[a] for a in node.all_input_nodes)])
        else:
            key[node] = place[node]
    # A dictionary, because it keeps its order and finds a node at once.
    order: dict[fx.Node, None] = {}
    # Operators without a tangent are left out here: `_add` places each before the first node that needs it.
    for node in sorted(nodes, key=lambda n: (key[n], place[n])):
        if phases[node] is not Phase.TANGENT_FREE or place[node] <= end:
            _add(node, order)
    # Those that no other node needs: their results are outputs, or unused.
    for node in nodes:
        _add(node, order)
    return list(order)


def _movable(joint: fx.GraphModule, nodes: list[fx.Node]) -> set[fx.Node]:
    """Loops and views that have no effect and read no input that is changed in place."""
    roots, changed = find_roots(joint.graph), changed_inputs(joint.graph)
    found = set()
    for node in nodes:
        # Traits cover random draws and in-place changes.
        pure = node_class(node) in _LOOPS and not traits_of(node)
        if pure and changed.isdisjoint(roots.get(a) for a in node.all_input_nodes):
            found.add(node)
    return found


def _add(node: fx.Node, order: dict[fx.Node, None]) -> None:
    """Append a node after its arguments; arguments that are missing in `order` are appended first."""
    stack = [node]  # no recursion: chains are longer than Python's limit
    while stack:
        top = stack[-1]
        missing = [a for a in top.all_input_nodes if a not in order]
        if missing:
            stack += reversed(missing)
        else:
            order[stack.pop()] = None
