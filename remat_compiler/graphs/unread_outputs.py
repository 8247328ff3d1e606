"""``outputs="loss"``: what a program returns beside its loss is not computed, for training loops that do not read it.

    forward(tokens, labels)  ->  loss, logits, keys and values       as the model is written
    the planned graph        ->  loss                                 logits in chunks, nothing kept for who may read it
    the caller gets          ->  loss, and stand-ins that refuse to be read

A value that is returned has to be there whole, and a gradient may come back for it: logits would be a floor of every
plan.  No compiler can see that a loop takes the loss alone, so the user says it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, fx

from remat_compiler import torch_compat
from remat_compiler.errors import OutputNotComputed

Compiled = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class _Unread:
    """An output that is not computed.

    Attributes:
        like: Its example value.
        sizes: Its sizes; `None` for each that changes from call to call, and that the graph gives instead.
        fixed: What stands for it in each call, if none does.
    """

    like: Tensor
    sizes: tuple[int | None, ...]
    fixed: Tensor | None

    @staticmethod
    def of(like: Tensor) -> _Unread:
        """The output with this example value."""
        shape: Sequence[Any] = like.shape
        sizes = [size if isinstance(size, int) else None for size in shape]
        known = [size for size in sizes if size is not None]
        fixed = _stand_in(like, known) if len(known) == len(sizes) else None
        return _Unread(like, tuple(sizes), fixed)

    def stand_in(self, given: Iterator[Any]) -> Tensor:
        """What stands for it in a call that gives these sizes."""
        if self.fixed is not None:
            return self.fixed
        return _stand_in(self.like, [next(given) if size is None else size for size in self.sizes])


def without_unread(gm: fx.GraphModule, compile_: Callable[[], Compiled]) -> Compiled:
    """What compiling a graph gives, if its unread outputs are not computed.

    Args:
        gm: Dynamo's graph; its output is changed.
        compile_: Compiles it.
    """
    output = gm.graph.output_node()
    returned: Any = output.args[0]
    # A single number is a loss, or a part of it; whatever needs no gradient may be a statistic that is logged.
    trains = {place: node for place, node in enumerate(returned) if _needs_gradient(node)}
    unread = {place: node for place, node in trains.items() if not torch_compat.is_scalar(_value(node))}
    # A graph without a loss, or one that Dynamo has ended early, goes on in others, which read what it returns.
    if not unread or len(unread) == len(trains) or torch_compat.ends_at_graph_break(gm):
        return compile_()
    told = {place: _Unread.of(_value(node)) for place, node in unread.items()}
    with gm.graph.inserting_before(output):
        changing = [
            _size(gm.graph, unread[place], dim)
            for place, one in told.items()
            for dim, size in enumerate(one.sizes)
            if size is None
        ]
    output.args = ((*(node for place, node in enumerate(returned) if place not in unread), *changing),)
    gm.recompile()
    compiled, count = compile_(), len(returned)

    def run(*arguments: Any) -> list[Any]:
        results = iter(compiled(*arguments))
        found = [None if place in told else next(results) for place in range(count)]
        for place, one in told.items():
            found[place] = one.stand_in(results)
        return found

    return run


def _stand_in(like: Tensor, sizes: Sequence[int]) -> Tensor:
    return torch_compat.uncomputed(sizes, like, OutputNotComputed)


def _value(node: fx.Node) -> Tensor:
    """The example value of an output."""
    value: Tensor = node.meta["example_value"]
    return value


def _needs_gradient(node: Any) -> bool:
    """Whether an output is a tensor through which a gradient may come back."""
    value = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return isinstance(value, Tensor) and value.requires_grad


def _size(graph: fx.Graph, node: fx.Node, dim: int) -> fx.Node:
    """The operator that gives a size of an output."""
    made = graph.call_method("size", (node, dim))
    made.meta["example_value"] = _value(node).shape[dim]
    return made
