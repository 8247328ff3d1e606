"""New nodes of a joint graph, with what is known of them: their fake values, and where they come from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.errors import Unplannable
from remat_compiler.torch_compat import Size

_aten = torch.ops.aten
_ORIGIN = ("stack_trace", "nn_module_stack", "fwd_nn_module_stack", "partitioner_tag", "recompute", "ac_graph_id")


class NotCuttable(Unplannable):
    """A region turned out not to be computed in chunks, as where a chunk cannot be seen in another shape."""


def copied(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """For each node, that of another graph which is the same, to be changed."""
    new = fx.Graph()
    nodes: dict[fx.Node, fx.Node] = {}
    for node in graph.nodes:
        nodes[node] = new.node_copy(node, nodes.__getitem__)
    return nodes


def call(graph: fx.Graph, target: Any, args: tuple[Any, ...], *, like: fx.Node, **kwargs: Any) -> fx.Node:
    """A new operator where the graph is written, that comes from the same place of the program as another node.

    Raises:
        NotCuttable: The operator does not take these arguments.
    """
    name = getattr(target, "_opname", like.name)
    node = graph.create_node("call_function", target, args, kwargs, name)
    node.meta = {key: like.meta[key] for key in _ORIGIN if key in like.meta}
    node.meta["val"] = _computed(target, args, kwargs, like)
    return node


def call_like(
    graph: fx.Graph, node: fx.Node, args: tuple[Any, ...], kwargs: Mapping[str, Any], twin: fx.Node | None = None
) -> fx.Node:
    """A copy of an operator with other arguments.

    Args:
        graph: The graph that is written.
        node: The operator.
        args: Its positional arguments.
        kwargs: The others.
        twin: A node whose result has the same shape, if there is one.

    Raises:
        NotCuttable: The operator does not take these arguments.
    """
    new = graph.create_node("call_function", node.target, args, dict(kwargs), node.name)
    new.meta = {**node.meta, "val": twin.meta["val"] if twin else _computed(node.target, args, kwargs, node)}
    return new


def viewed(graph: fx.Graph, value: fx.Node, shape: Sequence[Size], *, like: fx.Node) -> fx.Node:
    """A value in another shape, in memory of its own if its elements do not lie in order."""
    return call(graph, _aten.view.default, (in_order(graph, value, like=like), list(shape)), like=like)


def in_order(graph: fx.Graph, value: fx.Node, *, like: fx.Node) -> fx.Node:
    """A value whose elements lie in order, as any view of it asks for: itself, or a copy."""
    if torch_compat.is_in_order(value.meta["val"]):
        return value
    return call(graph, _aten.clone.default, (value,), like=like, memory_format=torch.contiguous_format)


def write_sizes(graph: fx.Graph) -> None:
    """Have operators compute the sizes that new nodes were given as expressions (in place).

    Raises:
        NotCuttable: A size cannot be computed from the inputs.
    """
    try:
        torch_compat.write_sizes(graph)
    except torch_compat.UnknownSize as error:
        raise NotCuttable(str(error)) from error


def arguments_with(node: fx.Node, args: tuple[Any, ...], changes: Mapping[int, Any]) -> tuple[Any, ...]:
    """Positional arguments of an operator, some of them others; those in between have their defaults."""
    if not changes:
        return args
    schema = node.target._schema.arguments  # type: ignore[union-attr]
    given = [args[i] if i < len(args) else schema[i].default_value for i in range(max(len(args), max(changes) + 1))]
    for position, value in changes.items():
        given[position] = value
    return tuple(given)


def _computed(target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], like: fx.Node) -> Any:
    """The fake result of an operator on nodes, by the fake mode of another result."""
    given, named = fx.map_arg((args, dict(kwargs)), lambda node: node.meta["val"])
    known = like.meta["val"]
    values = known if isinstance(known, (list, tuple)) else (known,)
    mode = next(value.fake_mode for value in values if isinstance(value, torch_compat.FakeTensor))
    try:
        with torch_compat.shapes_at_any_sizes(mode):
            return target(*torch_compat.with_symbols(given, mode), **named)
    except (RuntimeError, ValueError) as error:
        raise NotCuttable(f"{target} on chunks: {error}") from error
