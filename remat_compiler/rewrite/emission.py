"""A forward and a backward graph under construction, node by node.

A value of the forward that the backward reads *crosses*: it becomes a placeholder of the backward with the same name.
So names are unique over both graphs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import fx

from remat_compiler import torch_compat


class Emission:
    """Both graphs; the forward is written first.

    Attributes:
        forward: Forward graph.
        backward: Backward graph.
        crossing: Nodes of the forward that the backward reads, and its placeholders for them.
    """

    def __init__(self) -> None:
        self.forward = fx.Graph()
        self.backward = fx.Graph()
        self.crossing: dict[fx.Node, fx.Node] = {}
        self._graph = self.forward
        self._names: set[str] = set()
        self._suffixes: dict[str, int] = {}
        self._attributes: dict[fx.Node, fx.Node] = {}

    @property
    def in_backward(self) -> bool:
        """Whether the backward is being written."""
        return self._graph is self.backward

    def enter_backward(self) -> None:
        """Continue with the backward, in which attributes of the module are available, too."""
        self._graph = self.backward
        # Both modules hold these constants, so they are read again rather than saved.
        for node in self.forward.find_nodes(op="get_attr"):
            again = self.backward.create_node(node.op, node.target, name=node.name)
            again.meta = dict(node.meta)
            self._attributes[node] = again

    def node(
        self,
        target: Any,
        args: Any,
        kwargs: Any,
        *,
        name: str,
        meta: Mapping[str, Any],
        op: str = "call_function",
        type_expr: Any = None,
    ) -> fx.Node:
        """A new node; its arguments come from `here`, and its name gets a number if it is taken."""
        new = self._graph.create_node(op, target, args, kwargs, self._unique(name), type_expr)
        new.meta = dict(meta)
        return new

    def here(self, node: fx.Node) -> fx.Node:
        """`node` as the graph that is being written reads it."""
        # A value of the same graph is read directly.
        if node.graph is self._graph:
            return node
        # Constants never cross; see `enter_backward`.
        if node.op == "get_attr":
            return self._attributes[node]
        # The first read makes the value a saved one; every later read shares the placeholder.
        known = self.crossing.get(node)
        if known is None:
            known = self.crossing[node] = self.backward.placeholder(node.name)
            known.meta = dict(node.meta)
        return known

    def _unique(self, name: str) -> str:
        candidate = name
        # The last number of each name is remembered, or a value recomputed n times would try n names each time.
        while candidate in self._names:
            self._suffixes[name] = self._suffixes.get(name, 0) + 1
            candidate = f"{name}_{self._suffixes[name]}"
        self._names.add(candidate)
        return candidate


def finished(
    emission: Emission, joint: fx.GraphModule, symbols: frozenset[fx.Node], outputs: tuple[list[Any], list[Any]]
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Modules of both graphs with the `outputs` of each."""
    forward, backward = outputs
    halves = torch_compat.Halves(
        joint, emission.forward, emission.backward, emission.crossing, symbols, tuple(forward), tuple(backward)
    )
    return torch_compat.finished_modules(halves)
