"""A forward as an event: tensors become identities, addresses and bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, TypeVar

import torch

from remat_compiler import torch_compat
from remat_compiler.costs.op_call import tensors_in
from remat_compiler.step_model.forward import Forward, Received
from remat_compiler.step_model.graph_memory import GraphMemory

G = TypeVar("G")


def forward_of(graph: G, memory: GraphMemory | None, arguments: Sequence[Any], outputs: Any) -> Forward[G]:
    """What happened when `graph` was called.

    Args:
        graph: The graph.
        memory: Its memory at the sizes of the call.
        arguments: What it was given.
        outputs: What it returned.
    """
    made = tuple(tensors_in(outputs))
    return Forward(
        graph,
        memory,
        tuple(_received(arguments)),
        frozenset(id(x) for x in arguments if isinstance(x, torch.nn.Parameter) and x.requires_grad),
        {id(x): torch_compat.num_bytes(x) for x in arguments if is_other_leaf(x)},
        len(arguments),
        # An output that is an argument of a later call is recognised by its address, since views share that.
        frozenset(chain.from_iterable(map(_addresses, made))),
        torch_compat.sharded_now(arguments),
        _all_gone(torch_compat.watched_storages(made, torch_compat.storages_of(arguments))),
    )


def is_other_leaf(one: Any) -> bool:
    """Whether an argument gets a gradient of its own and is no parameter, such as what a rank received from another."""
    leaf = isinstance(one, torch.Tensor) and one.requires_grad and one.is_leaf
    return leaf and not isinstance(one, torch.nn.Parameter)


def _received(arguments: Iterable[Any]) -> Iterator[Received]:
    for argument, tensor in enumerate(arguments):
        if isinstance(tensor, torch.Tensor) and tensor.requires_grad and not tensor.is_leaf:
            yield Received(argument, torch_compat.num_bytes(tensor), _addresses(tensor))


def _addresses(tensor: torch.Tensor) -> frozenset[int]:
    """Addresses of the tensor's memory; none if it has no memory of its own."""
    return frozenset(torch_compat.storages_of([tensor]))


def _all_gone(outputs: Sequence[Any]) -> Callable[[], bool]:
    return lambda: all(one.expired() for one in outputs)
