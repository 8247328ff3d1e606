"""Which instants are linked, and the bound that their program (`windows`) proves.

The instants must run in one order in all plans of a class: in the graph's own order any do, in any order those along a
chain of dependences.  The best instant of the class comes first, then the highest of equal parts of the step, as far as
they are ordered with all that are chosen.  The linear relaxation is solved; with whole numbers only where the program
is small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat_passes.bounds.instant import DONE, Instant, OrderClass
from remat_passes.bounds.matrix import FloatArray
from remat_passes.bounds.pricing import Pricing
from remat_passes.bounds.rows import MICROSECOND, Affine
from remat_passes.bounds.solved import USUAL_WORK, solve_relaxation, solve_whole
from remat_passes.bounds.step_graph import StepGraph
from remat_passes.bounds.windows import Windows

FINER = 4
"""Candidates for each linked instant."""
SAFETY = 1e-6
"""Relative part of a floating-point bound that is given up: more than the solvers' tolerances."""


@dataclass(frozen=True, slots=True)
class Held:
    """What a solution of the program keeps.

    Attributes:
        op: Operator of an instant.
        storages: Storages alive when it first runs, as far as anyone reads them then or later.
    """

    op: int
    storages: frozenset[int]


@dataclass(frozen=True, slots=True)
class LinkedBound:
    """The result of a linked program.

    Attributes:
        bound_ns: Lower bound of the added time.
        instants: Instants of the program.
        infeasible: Proven that no plan keeps the budget.
        whole: Whether it was solved with whole numbers.
        held: What the best solution found holds at each instant, rounded; empty if there is none.
        work: Work done, in the unit of `remat_passes.planning.portfolio`.
    """

    bound_ns: int
    instants: int
    infeasible: bool
    whole: bool
    held: tuple[Held, ...]
    work: int


@dataclass(frozen=True, slots=True)
class LinkedEffort:
    """How hard the program is tried.

    Attributes:
        most_work: Work after which its relaxation is given up.
        largest_whole: Variables of the largest program that branch and bound takes after its relaxation.
        nodes: Nodes of the tree.
        gap: Relative gap at which branch and bound stops.
    """

    most_work: int = USUAL_WORK
    largest_whole: int = 1_000
    nodes: int = 1
    gap: float = 1e-3


LINKED = LinkedEffort()
"""About a second at most, where the relaxation takes as long as it may."""


def linked_bound(part: Pricing, instants: Sequence[Instant], effort: LinkedEffort) -> LinkedBound:
    """The bound of `instants`, each done at the next one in all plans of `part`."""
    program = Windows(part.graph, instants, part.budget)
    found = solve_relaxation(program.rows, effort.most_work)
    bound, values, work, whole = found.bound, found.values, found.work, False
    infeasible = found.infeasible
    if not infeasible and len(program.rows.cost) <= effort.largest_whole:
        exact = solve_whole(program.rows, effort.nodes, effort.gap)
        whole, infeasible, work = exact.bound > bound or exact.infeasible, exact.infeasible, work + exact.work
        bound, values = max(bound, exact.bound), values if exact.values is None else exact.values
    held = () if values is None or infeasible else held_by(program, values)
    return LinkedBound(0 if infeasible else proven_ns(bound), len(instants), infeasible, whole, held, work)


def proven_ns(bound: float) -> int:
    """A bound of the program's objective in whole ns, on the safe side of rounding."""
    if not math.isfinite(bound):
        return 0
    # Arithmetic may have put it above the true one: give up a share, and 1 ns for values near zero.
    return max(0, math.ceil(bound * MICROSECOND * (1 - SAFETY) - 1))


def held_by(program: Windows, values: FloatArray) -> tuple[Held, ...]:
    """What is alive at each instant in a solution; of fractions, those of a half or more."""

    def value(term: Affine) -> float:
        return term.constant + sum(coefficient * float(values[variable]) for variable, coefficient in term.terms)

    return tuple(
        Held(instant.op, frozenset(v for v, term in alive.items() if value(term) >= 0.5))
        for instant, alive in zip(program.instants, program.alive)
    )


def chain_of(graph: StepGraph, order: OrderClass, candidates: Iterable[int], count: int) -> list[Instant]:
    """Up to `count` instants of `candidates`, the first ones preferred, in the order in which all plans have them."""
    chosen: dict[int, Instant] = {}
    for op in dict.fromkeys(candidates):
        if len(chosen) == count:
            break
        new = Instant.of(graph, op, order)
        if all(new.state[other] == DONE or instant.state[op] == DONE for other, instant in chosen.items()):
            chosen[op] = new
    # Each is done at all that follow it, so the number of those that are done is its place.
    return sorted(chosen.values(), key=lambda instant: sum(instant.state[op] == DONE for op in chosen))
