"""Memory that a backward takes for eager operators, before it comes to compiled graphs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import Any

from remat_compiler.torch_compat.backward_starts import Roots, nodes_of
from remat_compiler.torch_compat.saved_by_eager import eager_walk, held_by

_HANDING_ON = frozenset(
    f"{name}Backward{number}"
    for name in (
        *("Add", "Alias", "Cat", "Clone", "Detach", "Expand", "Permute", "ReshapeAlias", "Squeeze", "Stack", "Sum"),
        *("T", "Transpose", "Unsqueeze", "UnsafeView", "View"),
    )
    for number in range(3)
)
"""Operators whose backward hands on the gradient that it gets, or views of it."""
_TEMPORARIES = {"Abs": 1, "Cos": 2, "Div": 2, "Pow": 2, "Rsqrt": 3, "Sin": 1, "Sqrt": 1}
"""Values as large as the gradient that the backward of some operators makes on the way: it is a formula of others."""


@dataclass(frozen=True, slots=True)
class EagerBackward:
    """Memory of the eager operators between the roots of a backward and the compiled graphs that it comes to first.

    Attributes:
        saved_bytes: Bytes that they hold as the backward begins.
        peak_bytes: Most bytes that they hold and that their backward allocates, at one time.
    """

    saved_bytes: int
    peak_bytes: int


def eager_backward(roots: Roots) -> EagerBackward:
    """The memory of the eager operators of a backward that is about to begin at `roots`.

    Autograd runs the latest operator first.  Each is taken to allocate the gradients that it hands on, unless it is
    known to hand on what it gets.  Gradients that leaves get for the first time stay.
    """
    walked, of_compiled = eager_walk(nodes_of(roots))
    # Nodes that accumulate into a leaf have it as `variable`.
    nodes = [node for node in walked if not hasattr(node, "variable")]
    nodes.sort(key=lambda node: node._sequence_nr(), reverse=True)
    held = [{address: size for address, size in held_by(node).items() if address not in of_compiled} for node in nodes]
    users = Counter(address for saved in held for address in saved)
    sizes = {address: size for saved in held for address, size in saved.items()}
    saved_bytes = alive = peak = sum(sizes.values())
    gradients = _Gradients(Counter(before for node in nodes for before, _ in node.next_functions))
    for node, saved in zip(nodes, held):
        came = gradients.take(node)
        before = alive + came + gradients.size_bytes
        beside_bytes = gradients.hand_on(node, came)
        together = alive + gradients.size_bytes + (0 if _hands_on(node) else came) + beside_bytes
        peak = max(peak, before, together)
        gradients.drop_added()
        users.subtract(saved.keys())
        alive -= sum(sizes[address] for address in saved if not users[address])
    return EagerBackward(saved_bytes, peak)


class _Gradients:
    """The gradients that wait for nodes, and those that leaves got.

    Args:
        edges: How many gradients come to each node.

    Attributes:
        size_bytes: All of them.
    """

    def __init__(self, edges: Counter[Any]) -> None:
        self.size_bytes = 0
        self._to_come = edges
        self._waiting: dict[Any, int] = {}
        self._added: list[Any] = []

    def take(self, node: Any) -> int:
        """Take the gradient that waits for a node; its bytes."""
        size = self._waiting.pop(node, 0)
        self.size_bytes -= size
        return size

    def hand_on(self, node: Any, came: int) -> int:
        """Add the gradients that the backward of a node makes, which got `came` bytes; bytes of values on the way."""
        largest = sums = 0
        for position, (before, number) in enumerate(node.next_functions):
            if before is None:
                continue
            size = _gradient_bytes(before, number, came)
            if _hands_on(node):
                size = min(size, came) if position == 0 else 0
            largest = max(largest, size)
            # What several nodes hand to one is added up, in a new tensor.
            there = self._waiting.get(before, 0)
            more = max(size - there, 0)
            sums = max(sums, size + min(there, size) - more) if there else sums
            self._waiting[before] = there + more
            self.size_bytes += more
            self._to_come[before] -= 1
            leaf = getattr(before, "variable", None)
            if leaf is not None and leaf.grad is not None and not self._to_come[before]:
                self._added.append(before)
        return max(largest * _temporaries(node), sums)

    def drop_added(self) -> None:
        """What was added to gradients that leaves had is gone."""
        while self._added:
            self.take(self._added.pop())


def _hands_on(node: Any) -> bool:
    return type(node).__name__ in _HANDING_ON


def _temporaries(node: Any) -> int:
    return _TEMPORARIES.get(type(node).__name__.rstrip("0123456789").removesuffix("Backward"), 0)


def _gradient_bytes(node: Any, number: int, came: int) -> int:
    """Bytes of the gradient of a node's result, made of a gradient of `came` bytes."""
    result = node._input_metadata[number]
    # The shape of a ragged tensor has a symbol that does not tell how many elements there are.
    if result.is_nested_tensor or not all(isinstance(size, int) for size in result.shape):
        return came
    return int(math.prod(result.shape) * result.dtype.itemsize)
