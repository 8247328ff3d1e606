"""Operators that write their result into the memory of an argument that dies there, in finished graphs.

    before                     after
    a = mm(x, w)               a = mm(x, w)
    b = relu(a)                b = relu_(a)                a is read nowhere else: nothing more is allocated
    c = sigmoid_backward(g, b) c = sigmoid_backward(g, b, grad_input=g)

Which values die is the plan's decision; a value that is needed again later is computed again, and that is another node.
So this pass decides nothing, and comes last: Coop's "recomputable in-place" (Zhang et al., NeurIPS 2023), in which an
operator in place no longer keeps its input from being overwritten, since its input can be recomputed.

It is meant for the interpreter, which runs the graphs as they stand.  Inductor reuses memory by itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import fx

from remat_compiler.capture.overwriting import Overwriting, overwritings, touches_plainly
from remat_compiler.capture.storages import find_roots, storage_bytes


@dataclass(frozen=True, slots=True)
class Overwritten:
    """How much a rewriting saved.

    Attributes:
        num_ops: Operators that write into the memory of an argument.
        size_bytes: Bytes of their results, which are not allocated.
    """

    num_ops: int = 0
    size_bytes: int = 0


NOTHING = Overwritten()


def overwrite_arguments(module: fx.GraphModule, num_user_outputs: int = 0) -> list[fx.Node]:
    """Have operators of `module` overwrite arguments that die there; the module is changed in place.

    Args:
        module: A forward or a backward graph.
        num_user_outputs: How many of its first outputs the user gets as results of a differentiable function.  Those
            are never written into views: autograd lets nobody change a view in place that such a function returned.

    Returns:
        The operators, in order.
    """
    changed = _Pass(module.graph, num_user_outputs).run()
    if changed:
        module.graph.lint()
        module.recompile()
    return changed


def overwritten(nodes: Sequence[fx.Node]) -> Overwritten:
    """What the operators that `overwrite_arguments` returned do not allocate."""
    return Overwritten(len(nodes), sum(map(storage_bytes, nodes)))


class _Pass:
    """Mutable state of one rewriting."""

    def __init__(self, graph: fx.Graph, num_user_outputs: int) -> None:
        self.graph = graph
        self.roots = find_roots(graph)
        self.order = {node: i for i, node in enumerate(graph.nodes)}
        outputs = graph.output_node().args[0]
        assert isinstance(outputs, (list, tuple))
        self.for_user = {o for o in outputs[:num_user_outputs] if isinstance(o, fx.Node)}
        self.touching = _touching(graph, self.roots)
        # Results that are the view that they were written into.
        self.views: set[fx.Node] = set()

    def run(self) -> list[fx.Node]:
        changed = []
        # All are found first: once rewritten, an operator no longer shows that its result may be overwritten in turn.
        possible = [(node, overwritings(node, self.roots)) for node in self.graph.nodes]
        for node, found in possible:
            chosen = next((one for one in found if self._may(node, one)), None)
            if chosen is not None:
                self._rewrite(node, chosen)
                changed.append(node)
        return changed

    def _may(self, node: fx.Node, one: Overwriting) -> bool:
        """Whether the memory dies at `node`, and nobody sees what becomes of it."""
        last = self.order[node]
        touching = self.touching[one.root]
        if any(self.order[user] > last or not touches_plainly(user) for user in touching):
            return False
        is_view = one.argument is not one.root or one.root in self.views
        return not (is_view and node in self.for_user)

    def _rewrite(self, node: fx.Node, one: Overwriting) -> None:
        node.target = one.form.target
        if one.form.result:
            node.kwargs = {**node.kwargs, one.form.result: one.argument}
        # The result keeps its own root: what died with the argument is all that had the memory before.
        if one.argument is not one.root or one.root in self.views:
            self.views.add(node)


def _touching(graph: fx.Graph, roots: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, list[fx.Node]]:
    """For each root, the nodes that its memory is given to, directly or through views; the output among them."""
    touching: dict[fx.Node, list[fx.Node]] = defaultdict(list)
    for node in graph.nodes:
        for root in dict.fromkeys(roots[a] for a in node.all_input_nodes if a in roots):
            touching[root].append(node)
    return touching
