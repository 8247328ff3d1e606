"""What is told of a forward: what the graph was given, and what it made, by the identities of tensors and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from remat_compiler.step_model.events import Call, Leaf, Passed
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.sharding import Seen

G = TypeVar("G")


@dataclass(frozen=True, slots=True)
class Received:
    """An argument that other differentiable operators made, so that the backward hands back its gradient.

    Attributes:
        argument: Its position among the arguments of the call.
        size_bytes: Its bytes.
        addresses: Addresses of its memory, which views share; none if they are not known.
    """

    argument: int
    size_bytes: int
    addresses: frozenset[int]


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Forward(Generic[G]):
    """A graph has run its forward, and autograd follows it.

    Attributes:
        graph: The graph.
        memory: Its memory at the sizes of the call; `None` if that is not known.
        received: The arguments that other operators made.
        parameters: Identities of the parameters that get gradients.
        leaves: Bytes of the other leaves that get gradients, by their identity.
        arguments: How many arguments the call had.
        made: Addresses of the outputs.
        seen: What sharded modules held; `None` without such modules.
        gone: Says whether the outputs are gone by now.
    """

    graph: G
    memory: GraphMemory | None = None
    received: Sequence[Received] = ()
    parameters: frozenset[int] = frozenset()
    leaves: Mapping[int, int] = field(default_factory=dict)
    arguments: int = 0
    made: frozenset[int] = frozenset()
    seen: Seen | None = None
    gone: Callable[[], bool] = _never


class Numbering:
    """Numbers of the values and leaves of a step, by the identities that its calls were told with.

    Args:
        calls: Those of a step that is known already.
    """

    def __init__(self, calls: Sequence[Call] = ()) -> None:
        # Their leaves may be gone, and others in their place: no object has such an identity.
        self._leaves = {-1 - leaf.number: leaf.number for call in calls for leaf in call.leaves}
        # Values that no graph made, by their addresses.
        self._values: dict[frozenset[int], int] = {}

    def passed(self, received: Iterable[Received], makers: Mapping[int, frozenset[int]]) -> tuple[Passed, ...]:
        """The gradients that the backward of a call hands to other operators.

        Args:
            received: What it was given of other operators.
            makers: For each open call the addresses of its outputs.
        """
        found: dict[frozenset[int], Passed] = {}
        for one in received:
            # No address, as of some subclasses: a negative number is none either, and keeps the value apart.
            addresses = one.addresses or frozenset({-1 - len(self._values)})
            maker = next((call for call, made in tuple(makers.items()) if made & addresses), None)
            # Autograd adds up the gradients of a value that is passed twice.
            if addresses not in found:
                value = self._values.setdefault(addresses, len(self._values)) if maker is None else -1
                found[addresses] = Passed(one.size_bytes, maker, one.argument, value)
        return tuple(found.values())

    def leaves(self, sizes: Mapping[int, int]) -> tuple[Leaf, ...]:
        """Leaves that are no parameters; new ones are numbered."""
        numbers = self._leaves
        return tuple(
            Leaf(numbers.setdefault(identity, 1 + max(numbers.values(), default=-1)), size_bytes)
            for identity, size_bytes in sizes.items()
        )
