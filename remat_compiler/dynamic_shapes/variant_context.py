"""What the variants of one graph are compiled from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.search import BudgetSearch
from remat_compiler.dynamic_shapes.room_by_size import SharedRoom
from remat_compiler.dynamic_shapes.variant_store import VariantStore
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.session import Session


@dataclass(frozen=True, slots=True, eq=False)
class VariantContext:
    """What is needed to compile further variants of a graph.

    Attributes:
        search: Compiles the graph within a budget, or by one request.
        request: The request for the sizes of the first call.
        symbols: The symbolic sizes.
        dynamo_context: What Dynamo knew of the graph.
        assumptions: Assumptions on the sizes that compilers make after Dynamo, which Dynamo's guards do not check.
        session: Measured workspaces, and the agreement between ranks.
        keep: Reports a variant.
        store: Sizes that earlier processes planned for.
        input_bytes: Bytes of the arguments at given positions, at given sizes.
        room: Room for what calls move off the device; `None` if they move nothing.
    """

    search: BudgetSearch
    request: PartitionRequest
    symbols: tuple[torch_compat.InputSymbol, ...]
    dynamo_context: Callable[[], AbstractContextManager[None]]
    assumptions: torch_compat.LaterAssumptions
    session: Session
    keep: Callable[[Attempt, str], None]
    store: VariantStore
    input_bytes: Callable[[Sequence[int], Sequence[int]], int]
    room: SharedRoom | None = None
