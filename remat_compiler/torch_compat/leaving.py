"""Whether a gradient may be handed to its leaf while the backward of a compiled graph runs, and how it is kept if not.

Eager calls a leaf's post-accumulate hooks once, with the sum of all that the backward contributes.  So a gradient may
only be handed over early if nothing else of the running backward contributes to the leaf: no other graph, no operator
in eager.  That is read from autograd's graph, behind the roots of the backward.  A hook on the gradient itself, a
backward that asks for certain gradients (`torch.autograd.grad`), or one that is differentiated again, need the gradient
in autograd's hands, too.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
import torch._dynamo

from remat_compiler.torch_compat.backward_starts import RunningBackward, nodes_of, running_backwards
from remat_compiler.torch_compat.tensors import casts_gradient

HELD = "_remat_held_gradients"
TOOK = "_remat_hooks_took"
LOOKS = "_remat_looks_at_hooks"
FOLLOWED = "_remat_follows"
_ended = threading.local()


@dataclass(slots=True, eq=False)
class _Reached:
    """The part of autograd's graph that a backward runs over.

    Attributes:
        nodes: Its nodes by identity.
        before: For each node, by its identity, the ends of its edges.
        edges: How many of its edges end in each node, by the identity of that.
    """

    nodes: dict[int, Any] = field(default_factory=dict)
    before: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    edges: Counter[int] = field(default_factory=Counter)


@dataclass(slots=True, eq=False)
class _Serving:
    """A node whose gradients leave, in one backward that runs over it.

    Attributes:
        backward: The backward.
        before: The ends of the node's edges.
        edges: How many edges of the backward end in each node, by the identity of that.
        looks: How often the hooks of each parameter of its graph were looked at, by argument.
    """

    backward: RunningBackward
    before: tuple[Any, ...]
    edges: Counter[int]
    looks: Counter[int]


class LeafToServe(NamedTuple):
    """A leaf whose gradient may be handed over in the backward that is running.

    Attributes:
        leaf: The leaf.
        serving: The node that is running.
    """

    leaf: torch.Tensor
    serving: _Serving

    def looks_at_hooks(self, argument: int, most: int) -> bool:
        """Whether hooks of this argument of the graph were looked at less often than `most`; counts one."""
        self.serving.looks[argument] += 1
        return self.serving.looks[argument] <= most

    def is_served(self) -> None:
        """Keep autograd from calling its hooks once more: it does so even if no gradient comes."""
        hooks: Any = self.leaf._post_accumulate_grad_hooks
        if hooks:
            self.serving.backward.served.append((self.leaf, hooks))
            # `None` would leave in place the hooks that autograd itself has.
            self.leaf._post_accumulate_grad_hooks = OrderedDict()


def leaf_to_serve(edge: int) -> LeafToServe | None:
    """The leaf at the end of an edge of the node that is running; `None` if its gradient is autograd's to add.

    Whoever serves it says so by `LeafToServe.is_served` then.

    Raises:
        RuntimeError: No backward is running.
    """
    node = torch._C._current_autograd_node()
    if node is None:
        raise RuntimeError(
            "remat: the compiled backward of parameters with post-accumulate hooks ran outside of autograd's engine, "
            "as within torch._dynamo.compiled_autograd: leave out that, or the hooks"
        )
    serving = _serving_of(node)
    if serving is None or not serving.backward.accumulates or torch.is_grad_enabled():
        return None
    accumulator, _ = serving.before[edge]
    leaf = getattr(accumulator, "variable", None)
    if leaf is None or leaf._backward_hooks or serving.edges[id(accumulator)] != 1:
        return None
    # Autograd makes a new tensor of a sparse gradient and a dense one.
    if casts_gradient(leaf) or (leaf.grad is not None and leaf.grad.layout is not torch.strided):
        return None
    return LeafToServe(leaf, serving)


def compiles_autograd() -> bool:
    """Whether whole backwards are compiled, so that no engine of autograd runs them."""
    return bool(torch._dynamo.config.compiled_autograd)


def runs_backward() -> bool:
    """Whether a node of autograd is running in this thread."""
    return torch._C._current_autograd_node() is not None


def hooks_took(argument: int, size_bytes: int) -> None:
    """Note what the hooks of a parameter took beside what stays, for `latest_hooks`."""
    node = torch._C._current_autograd_node()
    setattr(node, TOOK, {**getattr(node, TOOK, {}), argument: size_bytes})


def latest_hooks() -> Mapping[int, int]:
    """What hooks took in the latest backward of a compiled graph in this thread, by argument; none if unknown."""
    found: Mapping[int, int] = getattr(_ended, "took", {})
    return found


def return_to_autograd(argument: int, gradient: torch.Tensor) -> None:
    """Keep a gradient until the backward that is running returns; see `with_held`.

    Raises:
        RuntimeError: The backward is of a graph that is not followed, so that the gradient would be lost.
    """
    node: Any = torch._C._current_autograd_node()
    if FOLLOWED not in vars(type(node)._forward_cls):
        raise RuntimeError("a gradient cannot be returned: the compiled graph is called outside of remat's own call")
    held = getattr(node, HELD, None)
    if held is None:
        held = {}
        setattr(node, HELD, held)
    held[argument] = gradient


def with_held(node: Any, results: Any) -> Any:
    """The results of a backward with the gradients that were kept meanwhile."""
    _ended.took = vars(node).pop(TOOK, {})
    held = getattr(node, HELD, None)
    if not held:
        return results
    delattr(node, HELD)
    return tuple(held.get(argument, result) for argument, result in enumerate(results))


def reached(backward: RunningBackward) -> _Reached:
    """What a backward runs over; found once."""
    found: _Reached | None = backward.reached
    if found is None:
        found = _Reached()
        stack = nodes_of(backward.roots)
        while stack:
            node = stack.pop()
            if id(node) in found.nodes:
                continue
            found.nodes[id(node)] = node
            # Each time it is asked for, autograd makes a new tuple of all of them.
            found.before[id(node)] = node.next_functions
            for before, _ in found.before[id(node)]:
                if before is not None:
                    found.edges[id(before)] += 1
                    stack.append(before)
        backward.reached = found
    return found


def _serving_of(node: Any) -> _Serving | None:
    """What is known of a running node in the innermost backward that comes to it; `None` for one that begins in C++."""
    for backward in reversed(running_backwards()):
        # A node stays where it is while a backward runs over it.
        found: _Serving | None = backward.serving.get(id(node))
        if found is None and id(node) in reached(backward).nodes:
            looks = vars(type(node)._forward_cls).get(LOOKS)
            if looks is None:
                # One for all calls of the compiled graph.
                looks = Counter[int]()
                setattr(type(node)._forward_cls, LOOKS, looks)
            behind = reached(backward)
            found = backward.serving[id(node)] = _Serving(backward, behind.before[id(node)], behind.edges, looks)
        if found is not None:
            return found
    return None
