"""Search the space by dynamic programming over demanded sets, stage by stage from the end: exact for narrow graphs.

A state is a set that the rest of the step demands (`remat_passes.exact.demands`), with the least time spent so far.
Two ways to the same state are one, and a state whose demands contain another's at no lower price is dropped: every
beginning that serves the larger set serves the smaller one, in no more memory.  So the number of states grows with
how much may be demanded at once, not with the length of the graph; alike blocks, in which branch and bound loses
itself, cost nothing extra.  A bound cuts further: tangent-free operators on which demands depend have to run.

If a stage has too many states, the search ends, or goes on with the most promising ones: it then proves little,
but its plan fits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_passes.exact.demand_layer import FULL, Slots, pass_anchor, run_in_gap, worth_keeping
from remat_passes.exact.demands import UNLIMITED, IntArray, Words, demand_steps
from remat_passes.exact.lift import plan_of
from remat_passes.exact.space import Space

NO_CUTOFF = 1 << 61
PLACES = 4
"""Places in a layer for each state that may go on: a gap makes many states before they are thinned."""


@dataclass(frozen=True, slots=True)
class Searched:
    """Result of the search.

    Attributes:
        plan: A cheapest plan below the cutoff among those it saw, if any.
        added_ns: Its added time.
        complete: Whether it saw everything: `plan` is optimal, or nothing below the cutoff fits.
        bound_ns: Proven lower bound of the added time of plans below the cutoff; the cutoff if there are none.
        states: States of all stages together: the work.
    """

    plan: Plan | None
    added_ns: int | None
    complete: bool
    bound_ns: int
    states: int


@dataclass(frozen=True, slots=True, eq=False)
class _Layer:
    """How the states that went on were reached.

    Attributes:
        stage: Stage before which they stand.
        origin: For each state seen, the one that it came from: a state of this layer if an operator ran, or else one
            of the layer after it in time, by its place among those that went on.
        made_by: The operator that ran, or -1.
        kept: Which ones went on.
    """

    stage: int
    origin: Slots
    made_by: Slots
    kept: IntArray


@dataclass(frozen=True, slots=True)
class DemandLimits:
    """How much to search.

    Attributes:
        states: States that may go on from one stage to the next.
        total: States of all stages, after which to give up.
        thins: Whether to go on with the most promising states if there are more, instead of giving up.
        byte_ns: Price of a demanded byte in the choice of the most promising ones.
        free: Whether operators may run in a gap in any order and any number of times, which is more than the space
            allows; else once, in joint order.
    """

    states: int
    total: int
    thins: bool = False
    byte_ns: float = 0.0
    free: bool = False


def search_demands(space: Space, cutoff_ns: int | None, limits: DemandLimits) -> Searched:
    """The cheapest plan of `space`, not merged into windows, with less added time than `cutoff_ns`, if given."""
    return _Search(space, cutoff_ns, limits).run()


class _Search:
    """The layers, from the last to the first."""

    def __init__(self, space: Space, cutoff_ns: int | None, limits: DemandLimits) -> None:
        self.space, self.steps, self.limits = space, demand_steps(space), limits
        # Prices count every execution of floating operators, the first ones included; added time does not.
        self.once = int(self.steps.float_ns.sum())
        self.cutoff = NO_CUTOFF if cutoff_ns is None else cutoff_ns
        # Only plans strictly cheaper than the cutoff are of interest.
        self.most = self.cutoff + self.once - 1
        self.complete, self.total, self.bound = True, 0, 0
        self.layers: list[_Layer] = []
        self.keys, self.price = self.steps.start.reshape(1, -1), np.zeros(1, np.int64)
        places = PLACES * limits.states
        self.into = (
            np.empty((places, self.steps.start.shape[0]), np.uint64),
            np.empty(places, np.int64),
            np.empty(places, np.int32),
            np.empty(places, np.int32),
        )
        # A power of two above twice the places: at most half full, so probing is short and always ends.
        self.table = np.empty(1 << (2 * places).bit_length(), np.int32)

    def run(self) -> Searched:
        """All stages; see `search_demands`."""
        for stage in range(len(self.space.stages) - 1, -1, -1):
            groups = self._groups(stage)
            for position, rows in enumerate(groups):
                self._pass(stage, rows, position == len(groups) - 1)
                if not len(self.price):
                    # No plan below the cutoff fits; unless states were dropped, that is proven.
                    bound = self.cutoff if self.complete else self.bound
                    return Searched(None, None, self.complete, bound, self.total)
                if self.total > self.limits.total or not (self.complete or self.limits.thins):
                    return Searched(None, None, False, self.bound, self.total)
        # Before stage 0 nothing is demanded or owed, so every state left is a whole plan.
        best = int(np.argmin(self.price))
        added = int(self.price[best]) - self.once
        plan = plan_of(self.space, self._executions(best))
        return Searched(plan, added, self.complete, added if self.complete else self.bound, self.total)

    def _groups(self, stage: int) -> list[list[int]]:
        """Rows of the steps of a stage in groups: an anchor, if any, then the operators that may run before it."""
        groups: list[list[int]] = [[]]
        for row in np.flatnonzero(self.steps.stage == stage).tolist():
            # Merged anchors follow each other without a gap: each begins a group, the last has the candidates.
            if self.steps.op[row] < 0 and groups[-1]:
                groups.append([])
            groups[-1].append(row)
        return groups

    def _pass(self, stage: int, rows: list[int], last: bool) -> None:
        """The states before a group of steps, from those after it."""
        steps = self.steps
        self.table.fill(-1)
        anchor = rows[:1] if rows and steps.op[rows[0]] < 0 else []
        count = self._pass_anchor(anchor)
        while True:
            before = (count, int(self.into[1][:count].sum()))
            for row in rows[len(anchor) :]:
                found = run_in_gap(
                    self.into, self.table, count, int(steps.op[row]), steps.writes[row], steps.reads[row],
                    steps.needs[row], steps.keeps[row], int(steps.room[row]), int(steps.time_ns[row]), self.most,
                    steps.weight,
                )  # fmt: skip
                # A full layer has lost states: what remains may still lead to a plan, but proves nothing.
                self.complete = self.complete and found != FULL
                count = len(self.into[1]) if found == FULL else found
            # States are only added and prices only fall, so count and sum tell whether anything changed.
            if not self.limits.free or (count, int(self.into[1][:count].sum())) == before:
                break
        self._go_on(stage, count, last)

    def _pass_anchor(self, anchor: list[int]) -> int:
        """The states before an anchor; the same ones if there is none."""
        steps, none = self.steps, np.zeros_like(self.steps.start)
        clears, reads, needs, room = none, none, none, UNLIMITED
        # Marks have no row: empty masks and no capacity leave every state as it is.
        for row in anchor:
            clears, reads, needs, room = steps.clears[row], steps.reads[row], steps.needs[row], int(steps.room[row])
        count = pass_anchor(self.keys, self.price, self.into, self.table, clears, reads, needs, room, steps.weight)
        assert count != FULL, "no more states than before"
        return count

    def _go_on(self, stage: int, count: int, last: bool) -> None:
        """Choose the states with which to go on."""
        steps = self.steps
        keys, price, origin, made_by = self.into
        bound = np.empty(count, np.int64)
        # Forbidden bits are about the start of the stage, which only its last group reaches.
        forbidden = steps.forbidden[stage] if last else np.zeros_like(steps.start)
        stays = worth_keeping(
            keys, price, self.table, count, forbidden, self.most, steps.loose, steps.weight, steps.behind,
            steps.ahead[stage], steps.float_ns, bound,
        )  # fmt: skip
        kept = np.flatnonzero(stays)
        # The least bound of all states bounds every plan, as long as none was lost.
        if self.complete:
            self.bound = min(self.cutoff, int(bound[kept].min(initial=self.most + 1)) - self.once)
        self.total += len(kept)
        if len(kept) > self.limits.states:
            self.complete = False
            # A demanded byte counts against a state: it makes later executions likelier.
            promise = bound[kept] + self.limits.byte_ns * _weights(keys[kept], steps.weight)
            kept = np.sort(kept[np.argsort(promise, kind="stable")[: self.limits.states]])
        # Copies, since the next layer fills the same arrays.
        self.layers.append(_Layer(stage, origin[:count].copy(), made_by[:count].copy(), kept))
        self.keys, self.price = keys[kept].copy(), price[kept].copy()

    def _executions(self, state: int) -> list[tuple[int, int]]:
        """Stages and operators that lead from a state of the last layer to the end, in the order of time."""
        found: list[tuple[int, int]] = []
        for layer in reversed(self.layers):
            # The search walked backwards, so the operator that it ran last in a layer is the first in time.
            at = int(layer.kept[state])
            while layer.made_by[at] >= 0:
                found.append((layer.stage, int(layer.made_by[at])))
                at = int(layer.origin[at])
            state = int(layer.origin[at])
        return found


def _weights(keys: Words, weight: IntArray) -> IntArray:
    """Bytes of each set."""
    # Words are little-endian: byte k of a row has bits 8k to 8k + 7, the lowest first.
    bits = np.unpackbits(keys.view(np.uint8), axis=1, bitorder="little")[:, : len(weight)]
    return bits.astype(np.int64) @ weight
