"""Sizes that a joint graph reads from tensors it computes, computed from its inputs instead.

A size is a number that forward and backward both need, at no cost.  Read from a tensor, it would keep that tensor alive
for every operator that needs the number.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import sympy
import torch
from torch import fx
from torch.utils._sympy import functions

_READ = (
    torch.ops.aten.sym_size.int,
    torch.ops.aten.sym_numel.default,
    torch.ops.aten.sym_stride.int,
    torch.ops.aten.sym_storage_offset.default,
)
# Sympy's functions with the same meaning in Python.  `CleanDiv` is a division that is known to leave no remainder.
_BINARY: dict[Any, Callable[..., Any]] = {
    sympy.Add: operator.add,
    sympy.Mul: operator.mul,
    functions.FloorDiv: operator.floordiv,
    functions.CleanDiv: operator.floordiv,
    functions.Mod: operator.mod,
    functions.PythonMod: operator.mod,
    functions.Max: torch.sym_max,
    functions.Min: torch.sym_min,
}


def sizes_from_inputs(graph: fx.Graph) -> None:
    """Replace the nodes that read a size of a computed tensor, if that size follows from symbolic inputs."""
    placeholders = graph.find_nodes(op="placeholder")
    reading = [node for target in _READ for node in graph.find_nodes(op="call_function", target=target)]
    maker = SizeNodes(graph)
    for node in reading:
        size = node.meta.get("val")
        # An input is alive anyway, and reading its size ties nothing.
        if isinstance(size, torch.SymInt) and node.args[0] not in placeholders:
            made = maker.value_of(size.node.expr)
            if isinstance(made, fx.Node):
                node.replace_all_uses_with(made)
                graph.erase_node(node)


def _is_symbol(value: Any) -> bool:
    return isinstance(value, torch.SymInt) and isinstance(value.node.expr, sympy.Symbol)


class SizeNodes:
    """Nodes of a graph that compute expressions of its symbolic inputs, each made once, right behind the inputs."""

    def __init__(self, graph: fx.Graph) -> None:
        self.graph = graph
        placeholders = graph.find_nodes(op="placeholder")
        # Only plain symbols: an input that is an expression of them does not give its parts.
        self.made: dict[Any, fx.Node] = {
            node.meta["val"].node.expr: node for node in placeholders if _is_symbol(node.meta.get("val"))
        }
        # All are made before this node, in order: each after its parts, and before every reader.
        self.place = next(node for node in graph.nodes if node.op != "placeholder")

    def value_of(self, expression: Any) -> fx.Node | int | None:
        """The node of `expression`, or the number that it is; `None` if a part of it is unknown."""
        if expression in self.made:
            return self.made[expression]
        if expression.is_Integer:
            return int(expression)
        # Divisions are functions of torch's own; a negative power is no whole number.
        if isinstance(expression, sympy.Pow) and expression.exp.is_Integer and expression.exp > 0:
            target, parts = operator.mul, [self.value_of(expression.base)] * int(expression.exp)
        elif expression.func in _BINARY:
            target, parts = _BINARY[expression.func], [self.value_of(part) for part in expression.args]
        else:
            return None
        if any(part is None for part in parts):
            return None
        # Sympy's sums and products have any number of parts.
        value = reduce(lambda one, two: self._call(target, one, two), parts)
        if isinstance(value, fx.Node):
            self.made[expression] = value
        return value

    def _call(self, target: Callable[..., Any], one: Any, two: Any) -> Any:
        numbers = [part.meta["val"] if isinstance(part, fx.Node) else part for part in (one, two)]
        # Two numbers need no node.
        if not isinstance(one, fx.Node) and not isinstance(two, fx.Node):
            return target(*numbers)
        with self.graph.inserting_before(self.place):
            node = self.graph.call_function(target, (one, two))
        node.meta["val"] = target(*numbers)
        return node
