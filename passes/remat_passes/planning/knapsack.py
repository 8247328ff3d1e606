"""The plans of PyTorch's knob `torch._functorch.config.activation_memory_budget`, for a budget on the peak in bytes.

The knob is a ratio: this share of the bytes that the min-cut partition saves may be saved.  A 0/1 knapsack chooses the
results of *compute-intensive* operators that are worth it (all others are recomputed if that saves bytes).  A minimum
cut then finds the fewest bytes from which the backward can be computed without repeating a chosen operator:

    maximise    sum of time(v) over chosen v         time(v): of v and of the light operators that feed it,
    so that     sum of bytes(v) <= ratio * saved              back to other intensive ones

    network     source -> op            if the operator may not repeat: it is pinned, or chosen
                storage -> op           for each read
                op -> storage -> sink   through an arc of the storage's bytes; to the sink if the backward reads it

Source: He and Yang's partitioner in PyTorch 2.4 and later, `choose_saved_values_set` in
`torch/_functorch/partitioners.py` (min-cut: Zheng et al., *Transcending Runtime-Memory Tradeoffs in Checkpointing by
being Fusion Aware*, MLSys 2023, section 3) and the dynamic programme of `knapsack.py`; an independent implementation.

The knob bounds saved bytes and not the peak, so its user tries ratios; so does this planner, and takes the cheapest
plan that fits.  Where we deviate: an operator is intensive if it takes long for the bytes that it moves, since a
problem has no operator classes; a ratio of 1 is `RematProblem.reference` if there is one, and else the minimum cut in
which no intensive operator repeats; recomputation happens just in time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import ClassVar

import numpy as np

from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_passes.planning.interface import Candidate, choose
from remat_passes.sequences.max_flow import INFINITE, sink_side
from remat_passes.sequences.profile import BoolArray, IntArray
from remat_passes.sequences.sequence import Order, Placement, StepIndex, baseline_order, recompute


@dataclass(frozen=True, slots=True)
class Knapsack:
    """PyTorch's activation_memory_budget at every ratio: knapsack and minimum cut; the cheapest plan that fits.

    Attributes:
        ratios: Number of steps between the ratios 0 and 1.
        intensities: An operator is intensive when it takes this many times as long for each byte that it moves as
            the middle operator of the graph; 0 makes every operator intensive.  All are tried.
        units: Resolution of the knapsack: parts of the bytes that a ratio of 1 saves.
    """

    name: ClassVar[str] = "knapsack"
    ratios: int = 20
    intensities: tuple[float, ...] = (0.0, 2.0)
    units: int = 2_000

    def plan(self, problem: RematProblem) -> PlanResult:
        """The cheapest of the plans that fits the budget, or else the one of the smallest peak."""
        return choose(problem, self.name, self._candidates(problem))

    def _candidates(self, problem: RematProblem) -> Iterator[Candidate]:
        """One plan for each ratio and placement of tangent-free operators."""
        # The reference is what the knob's ratio of 1 stands for, so other ratios are parts of its saved bytes.
        full_bytes = None
        if problem.reference is not None:
            full_bytes = simulate(problem.graph, problem.costs, problem.reference).saved_bytes
            yield Candidate(problem.reference, (("ratio", "1.00"), ("placement", "reference")))
        index = StepIndex.of(problem.graph)
        for placement in Placement:
            cuts = Cuts.of(index, baseline_order(index, placement))
            seen: set[bytes] = set()
            for intensity in self.intensities:
                intensive = _intensive(problem, intensity)
                items = [op for op in cuts.order.forward if intensive[op] and cuts.may_choose(op)]
                for ratio, saved in self._saved_sets(problem, cuts, items, full_bytes):
                    # Neighbouring ratios often save the same; a plan costs more than a comparison.
                    if saved.tobytes() not in seen:
                        seen.add(saved.tobytes())
                        stats = (("ratio", f"{ratio:.2f}"), ("intensity", str(intensity)))
                        plan = recompute(index, cuts.order, saved.tolist())
                        yield Candidate(plan, (*stats, ("placement", placement.value)))

    def _saved_sets(
        self, problem: RematProblem, cuts: Cuts, items: Sequence[int], full_bytes: int | None
    ) -> Iterator[tuple[float, BoolArray]]:
        """Ratio and saved storages, for every ratio; a ratio of 1 saves `full_bytes`, or what `items` take."""
        whole = cuts.saved(items)
        if full_bytes is None:
            full_bytes = sum(cuts.index.size_bytes[s] for s in np.flatnonzero(whole))
        table = Table.of(cuts, items, problem.costs.time_ns, full_bytes, self.units)
        yield 1.0, whole
        for step in range(self.ratios - 1, -1, -1):
            yield step / self.ratios, cuts.saved(table.best(self.units * step // self.ratios))


def _intensive(problem: RematProblem, intensity: float) -> list[bool]:
    """For each operator, whether it takes long for the bytes that it moves, parameters and inputs included."""
    graph, time_ns = problem.graph, problem.costs.time_ns
    # At least one byte: an operator may move none.
    moved = [max(sum(graph.storages[s].size_bytes for s in (*op.reads, *op.writes)), 1) for op in graph.ops]
    rates = [time / size for time, size in zip(time_ns, moved)]
    limit = intensity * median(rates) if rates else 0.0
    return [rate > limit or intensity == 0 for rate in rates]


@dataclass(frozen=True, slots=True, eq=False)
class Cuts:
    """The network of one graph and order: its minimum cut says what to save if given operators must not repeat.

    Attributes:
        index: The graph.
        order: Each operator once.
        needed: For each operator, whether the backward needs its results, directly or through others.
        nodes: Nodes of the network: source, sink, two for each storage (before and after its arc of bytes), operators.
        arcs: Its arcs, see `max_flow`; those from the source come first, one for each operator.
    """

    index: StepIndex
    order: Order
    needed: list[bool]
    nodes: int
    arcs: IntArray

    @staticmethod
    def of(index: StepIndex, order: Order) -> Cuts:
        """The network of `order`."""
        ahead = [False] * len(index.phase)
        for op in order.forward:
            ahead[op] = True
        read = sorted({s for op in order.backward for s in index.reads[op] if ahead[index.producer[s]]})
        # Storage `s` has the nodes `2 + 2 * s` and `3 + 2 * s`, with the arc of its bytes in between.
        first_op = 2 + 2 * len(index.producer)
        # Arc `op` is the one from the source to operator `op`: `saved` sets its capacity, infinite if it must not
        # repeat.
        arcs = [(0, first_op + op, 0) for op in range(len(index.phase))]
        arcs += [(3 + 2 * s, 1, INFINITE) for s in read]
        for op in order.forward:
            arcs += [(3 + 2 * s, first_op + op, INFINITE) for s in index.reads[op]]
            for s in index.writes[op]:
                # A kept storage stays anyway, so the cut takes it for nothing; one that must not be saved cannot be
                # cut.
                price = 0 if index.kept[s] else INFINITE if index.unsavable[s] else index.size_bytes[s]
                arcs += [(first_op + op, 2 + 2 * s, INFINITE), (2 + 2 * s, 3 + 2 * s, price)]
        needed = [False] * len(index.phase)
        for s in read:
            needed[index.producer[s]] = True
        # Backwards through the forward: readers are settled before makers.
        for op in reversed(order.forward):
            for s in index.reads[op] if needed[op] else ():
                needed[index.producer[s]] = True
        return Cuts(index, order, needed, first_op + len(index.phase), np.array(arcs, np.int64).reshape(-1, 3))

    def may_choose(self, op: int) -> bool:
        """Whether it is a decision to repeat `op`: the backward needs it, and it may be saved and repeated."""
        index = self.index
        free = not index.pinned[op] and not any(index.unsavable[s] for s in index.writes[op])
        return free and self.needed[op] and not all(index.kept[s] for s in index.writes[op])

    def saved(self, chosen: Sequence[int]) -> BoolArray:
        """For each storage, whether it is in a set of fewest bytes such that no operator of `chosen` repeats."""
        arcs = self.arcs.copy()
        for op in self.order.forward:
            arcs[op, 2] = INFINITE if self.index.pinned[op] else 0
        for op in chosen:
            arcs[op, 2] = INFINITE
        # Operators on the side of the sink run again: of all cuts of fewest bytes, the one with the fewest of them.
        behind = sink_side(self.nodes, arcs)[2 : 2 + 2 * len(self.index.producer)]
        # Saved are the storages whose arc of bytes crosses the cut.
        return np.asarray(behind[1::2] & ~behind[::2])

    def times(self, items: Sequence[int], time_ns: Sequence[int]) -> list[int]:
        """For each of `items`, its time and that of the operators that feed it and are no items, in ns."""
        index = self.index
        stops = set(items)
        found = []
        for item in items:
            seen, stack, total = {item}, [item], 0
            while stack:
                op = stack.pop()
                total += time_ns[op]
                for s in index.reads[op]:
                    before = index.producer[s]
                    # Whatever is available anyway, or another item, ends the way back.
                    if not (index.kept[s] or index.pinned[before] or before in seen or before in stops):
                        seen.add(before)
                        stack.append(before)
            found.append(total)
        return found


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """The dynamic programme of the knapsack: ``take[i, c]`` says whether the first i + 1 items take the last at c."""

    items: tuple[int, ...]
    weights: tuple[int, ...]
    take: BoolArray

    @staticmethod
    def of(cuts: Cuts, items: Sequence[int], time_ns: Sequence[int], full_bytes: int, units: int) -> Table:
        """Fill the table for capacities of 0 to `units` parts of `full_bytes`."""
        index = cuts.index
        sizes = [sum(index.size_bytes[s] for s in index.writes[op] if not index.kept[s]) for op in items]
        # Rounded to units, as a table by bytes would be too long: a choice may be over its capacity by the rounding.
        weights = tuple(round(size * units / max(full_bytes, 1)) for size in sizes)
        value: IntArray = np.zeros(units + 1, np.int64)
        take = np.zeros((len(items), units + 1), np.bool_)
        for i, (weight, time) in enumerate(zip(weights, cuts.times(items, time_ns))):
            if weight <= units:
                # A new array, taken before `value` changes: each item is taken once at most.
                better = value[: units + 1 - weight] + time
                take[i, weight:] = better > value[weight:]
                value[weight:] = np.maximum(value[weight:], better)
        return Table(tuple(items), weights, take)

    def best(self, capacity: int) -> list[int]:
        """The items of most time that weigh at most `capacity`."""
        chosen = []
        # Backwards, since row `i` decides about item `i` given the best of those before it.
        for i in range(len(self.items) - 1, -1, -1):
            if self.take[i, capacity]:
                chosen.append(self.items[i])
                capacity -= self.weights[i]
        return chosen[::-1]
