"""``outputs="loss"``: what a program returns beside its loss is not computed, for training loops that do not read it.

    forward(tokens, labels)  ->  loss, logits, keys and values       as the model is written
    the planned graph        ->  loss                                 logits in chunks, nothing kept for who may read it
    the caller gets          ->  loss, and stand-ins that refuse to be read

A value that is returned has to be there whole, and a gradient may come back for it: logits would be a floor of every
plan.  No compiler can see that a loop takes the loss alone, so the user says it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, fx

from remat_compiler import torch_compat
from remat_compiler.errors import OutputNotComputed

Compiled = Callable[..., Any]


def without_unread(gm: fx.GraphModule, compile_: Callable[[], Compiled]) -> Compiled:
    """What compiling a graph gives, if its unread outputs are not computed.

    Args:
        gm: Dynamo's graph; its output is changed.
        compile_: Compiles it.
    """
    output = gm.graph.output_node()
    returned: list[Any] = list(output.args[0])
    unread = {place: node for place, node in enumerate(returned) if _is_unread(node)}
    # A graph without a loss, or one that Dynamo has ended early, goes on in others, which read what it returns.
    has_loss = any(_needs_gradient(node) for place, node in enumerate(returned) if place not in unread)
    if not unread or not has_loss or torch_compat.ends_at_graph_break(gm):
        return compile_()
    read = [node for place, node in enumerate(returned) if place not in unread]
    with gm.graph.inserting_before(output):
        sizes = {
            place: [_size(gm.graph, node, dim) for dim in range(_value(node).dim())] for place, node in unread.items()
        }
    symbols = [size for of in sizes.values() for size in of if isinstance(size, fx.Node)]
    output.args = ((*read, *symbols),)
    gm.recompile()
    return _with_stand_ins(compile_(), len(returned), unread, sizes)


def _with_stand_ins(
    compiled: Compiled, count: int, unread: dict[int, fx.Node], sizes: dict[int, list[int | fx.Node]]
) -> Compiled:
    """The compiled graph with a stand-in at the place of each output that it has not."""
    likes = {place: _value(node) for place, node in unread.items()}
    known = {place: [None if isinstance(one, fx.Node) else one for one in of] for place, of in sizes.items()}
    fixed = {
        place: torch_compat.uncomputed(of, likes[place], OutputNotComputed)
        for place, of in known.items()
        if None not in of
    }

    def run(*arguments: Any) -> list[Any]:
        results = iter(compiled(*arguments))
        found: list[Any] = [None if place in unread else next(results) for place in range(count)]
        for place, of in known.items():
            now = [next(results) if one is None else one for one in of]
            found[place] = (
                fixed[place] if place in fixed else torch_compat.uncomputed(now, likes[place], OutputNotComputed)
            )
        return found

    return run


def _value(node: fx.Node) -> Tensor:
    """The example value of an output."""
    value: Tensor = node.meta["example_value"]
    return value


def _needs_gradient(node: Any) -> bool:
    """Whether an output is a tensor through which a gradient may come back."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and value.requires_grad


def _is_unread(node: Any) -> bool:
    """Whether an output is one that only who needs more than the loss reads."""
    # A tensor of no dimension is a loss, or a part of it; whatever needs no gradient may be a statistic that is logged.
    return _needs_gradient(node) and _value(node).dim() > 0


def _size(graph: fx.Graph, node: fx.Node, dim: int) -> int | fx.Node:
    """A size of an output: a number, or an operator if it changes from call to call."""
    size = _value(node).shape[dim]
    if isinstance(size, int):
        return size
    made = graph.call_method("size", (node, dim))
    made.meta["example_value"] = size
    return made
