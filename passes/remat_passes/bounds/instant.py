"""An instant: one operator runs for the first time, and the bytes that every plan of a class must hold then.

At that step there are three kinds of operators: those that surely ran before (*done*), those that surely did not
(*ahead*, the operator itself included), and those for which the plan decides (*free*):

    joint           first executions follow the graph; only tangent-free operators may be free
    any_backward    first executions of the forward do; of the backward, only operators on which this one depends
                    are done, and only those that depend on it are ahead
    any             the same in the forward

A narrower class has bounds at least as high, which hold for its plans alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
import numpy.typing as npt

from remat_compiler.ir.graph import Phase
from remat_passes.bounds.arcs import AHEAD, DONE, FREE, KEPT, states
from remat_passes.bounds.step_graph import StepGraph

__all__ = ["AHEAD", "DONE", "FREE", "Instant", "OrderClass"]


class OrderClass(str, Enum):
    """Which plans a bound holds for."""

    JOINT = "joint"
    """Plans that first execute the forward, and then the backward, in the graph's order."""
    ANY_BACKWARD = "any_backward"
    """Plans that first execute the forward in the graph's order."""
    ANY = "any"
    """All valid plans."""


@dataclass(frozen=True, slots=True, eq=False)
class Instant:
    """The first execution of one operator.

    Attributes:
        op: The operator.
        state: DONE, AHEAD or FREE for each operator; AHEAD for those that are not live.
        held_bytes: Bytes alive in any case: tangents, kept storages of operators that are done, and all that `op`
            itself reads, makes and allocates.
        present: Storages that `op` reads: alive in any case, and part of `held_bytes`.
    """

    op: int
    state: npt.NDArray[np.int8]
    held_bytes: int
    present: frozenset[int]

    @staticmethod
    def of(graph: StepGraph, op: int, order: OrderClass) -> Instant:
        """The instant of `op`, a live operator of the forward or the backward."""
        joint = order is OrderClass.JOINT
        state = states(graph.tables, op, joint or order is OrderClass.ANY_BACKWARD, joint)
        present = frozenset(graph.reads[op])
        # Tangents are alive from the boundary on.
        held = graph.tangent_bytes if graph.phase[op] is Phase.BACKWARD else 0
        held += graph.workspace_bytes[op] + graph.written_bytes[op] + sum(graph.size_bytes[s] for s in present)
        # The operator itself is ahead, so its own kept results are counted once, among those it writes.
        held += int(graph.tables.ops[state == DONE, KEPT].sum())
        return Instant(op, state, held, present)


def wanted_behind(graph: StepGraph, state: Sequence[int]) -> set[int]:
    """Storages read behind an instant, by operators not surely done or by those that may run again for them."""
    wanted: set[int] = set()
    # Readers come before makers here, so it is known whether a result is wanted when its maker is met.
    for p in range(len(graph.live) - 1, -1, -1):
        again = graph.repeats[p] and not wanted.isdisjoint(graph.writes[p])
        if graph.live[p] and (state[p] != DONE or again):
            wanted.update(graph.reads[p])
    return wanted
