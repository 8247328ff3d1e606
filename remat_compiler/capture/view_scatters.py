"""Scatters into a view that copy no memory around their argument, in graphs that are interpreted.

    x = whole[:48]                     an input, or any view of a part of its memory
    y = select_scatter(x, v, 0, 0)     torch copies all of `whole`; marked, this copies x
    z = as_strided(y, ..., offset)     but this reads y's memory by places in it, so that y is not marked

Each gets the value that it leaves when the graph runs, in all of that memory or in its own, so that it is counted.
"""

from __future__ import annotations

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import NodeClass, node_class
from remat_compiler.capture.storages import find_roots


def read_by_place(graph: fx.Graph) -> set[fx.Node]:
    """The nodes whose memory is read by places in it, which a copy of their elements alone would not have."""
    roots = find_roots(graph)
    found: set[fx.Node] = set()
    # Readers first: a scatter that keeps its places reads all of its argument's memory.
    for node in reversed(graph.nodes):
        facts = torch_compat.facts_of(node.target)
        if facts.by_place or (facts.scatters_into and node in found):
            found.add(roots[node.args[0]])
    return found


def mark_view_scatters(joint: fx.GraphModule) -> None:
    """Mark the scatters of a joint graph that may copy their argument alone; the graph is changed in place."""
    scatters = [node for node in joint.graph.nodes if torch_compat.facts_of(node.target).scatters_into]
    if not scatters:
        return
    keeping = read_by_place(joint.graph)
    for node in scatters:
        if node not in keeping:
            torch_compat.scatter_into_copy(node)
    roots = find_roots(joint.graph)
    # Copies of inputs that the step changes are dense.
    changing = {torch.ops.aten.clone.default, *(node.target for node in scatters)}
    # Arguments first: the layout of a result is that of the argument, be it a view of another result.
    for node in joint.graph.nodes:
        root, facts = roots.get(node), torch_compat.facts_of(node.target)
        if facts.scatters_into:
            node.meta["val"] = torch_compat.value_of_scatter(node)
        # A view that an interpreter copies, if another layout does not allow it, keeps its own.
        elif root is not None and root.target in changing and root is not node and not facts.may_copy:
            _lay_out(node)


def _lay_out(view: fx.Node) -> None:
    """Give a view the layout that it has of its argument's, which may be another than torch traced."""
    if node_class(view) is NodeClass.VIEW:
        func, args, kwargs, traced = torch_compat.fake_call(view)
        if isinstance(traced, torch.Tensor):
            with traced.fake_mode:  # type: ignore[attr-defined]
                view.meta["val"] = func(*args, **kwargs)
