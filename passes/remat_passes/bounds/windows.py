"""Several instants in one integer program, linked by the executions between them.

The one-instant program does not say that a value recomputed for one use must be held, or recomputed again, for the
next.  For instants ``t_1 < ... < t_k`` in an order that all plans of the class share, window i goes from t_i to
t_(i+1), the last one to the end.  Binaries, for each window: s_i(v), v is alive at t_i; x_i(p), p runs in the window;
d_i(p), p ran before t_i.

    run        x_i(p) >= d_(i+1)(p) - d_i(p)          a first execution between two instants is in that window
    read       s_i(v) + x_i(maker of v) >= x_i(q)     a reader q of v finds it alive at t_i, or made in the window
    hold       s_(i+1)(v) <= s_i(v) + x_i(maker of v)
    room       sum of bytes * s_i, of kept storages of done operators, and of all alive in any case <= budget

and the added time is the sum of ``time * (x_i(p) - (d_(i+1)(p) - d_i(p)))``.  Its linear relaxation spreads fractions
of executions over the windows; so executions after t_i are counted together as well, y_i(p) <= x_i(p) + ... + x_k(p),
with the rows of the one-instant program, which makes it at least as strong as each of them alone:

    behind     s_i(v) + y_i(maker of v) >= y_i(q)     for q that is ahead at t_i, or runs again after it
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import pulp

from remat_passes.bounds.instant import DONE, FREE, Instant
from remat_passes.bounds.step_graph import StepGraph

Term: TypeAlias = Any
"""A variable, an expression, or a plain `int` if there is nothing to decide."""


def windows_program(
    graph: StepGraph, instants: Sequence[Instant], budget_bytes: int, whole: bool = True
) -> pulp.LpProblem:
    """The program of the module docstring, in microseconds and thousands of bytes.

    Args:
        graph: The live part of a problem.
        instants: Instants of one class, each done at the next one.
        budget_bytes: Budget.
        whole: Whether binaries are whole numbers; if not, it is the linear relaxation.

    Raises:
        ValueError: An instant is not surely done at the next one.
    """
    for instant, following in pairwise(instants):
        if following.state[instant.op] != DONE:
            raise ValueError(f"operator {instant.op} does not surely run before operator {following.op}")
    return _Program(graph, instants, budget_bytes, whole).model


def in_a_row(instants: Sequence[Instant]) -> list[Instant]:
    """The first of `instants` and, one after the other, those at which the last one taken is done."""
    found: list[Instant] = []
    for instant in instants:
        if not found or instant.state[found[-1].op] == DONE:
            found.append(instant)
    return found


class _Program:
    """The rows, window by window."""

    def __init__(self, graph: StepGraph, instants: Sequence[Instant], budget_bytes: int, whole: bool) -> None:
        self.graph = graph
        self.category = pulp.LpBinary if whole else pulp.LpContinuous
        self.instants = instants
        self.model = pulp.LpProblem("windows", pulp.LpMinimize)
        self.cost: list[tuple[Term, float]] = []
        count = len(instants)
        self.wanted = [_wanted(graph, instant) for instant in instants]
        self.done: list[list[Term]] = []
        for i in range(count + 1):
            self.done.append(self._done(i))
        self.runs = [self._runs(i) for i in range(count)]
        self.behind = [self._behind(i) for i in range(count)]
        self.alive = [self._alive(i) for i in range(count)]
        for i in range(count):
            self._link(i)
            self._fit(i, budget_bytes)
        self.model.setObjective(pulp.lpSum(factor * term for term, factor in self.cost))

    def _binary(self, name: str) -> pulp.LpVariable:
        return pulp.LpVariable(name, 0, 1, cat=self.category)

    def _done(self, i: int) -> list[Term]:
        """d_i; at the end every operator is done."""
        if i == len(self.instants):
            return [1] * len(self.graph.live)
        state = self.instants[i].state.tolist()
        found: list[Term] = [self._binary(f"d{i}_{p}") if s == FREE else int(s == DONE) for p, s in enumerate(state)]
        for p, s in enumerate(state):
            earlier = [e for e in self.graph.earlier[p] if s == FREE and state[e] == FREE]
            # Whoever ran before t_i did so after its predecessors; those not free are settled by the state.
            for e in earlier:
                self.model += found[p] <= found[e]
            # Done once is done at all later instants.
            if i and _varies(self.done[i - 1][p]) and s != DONE:
                self.model += self.done[i - 1][p] <= found[p]
        return found

    def _runs(self, i: int) -> list[Term]:
        """x_i."""
        found: list[Term] = []
        for p, live in enumerate(self.graph.live):
            before, after = self.done[i][p], self.done[i + 1][p]
            first = after - before
            relevant = any(v in self.wanted[i] for v in self.graph.writes[p])
            # It surely runs first in this window; one more run there would cost time and add nothing.
            only_first = _is(before, 0) and _is(after, 1)
            # A window in which its first execution cannot be, nor a repetition.
            if not live or _is(after, 0):
                found.append(0)
            # Without a later reader, or if it may not repeat, it runs here only for the first time, if at all.
            elif only_first or not relevant or not self.graph.repeats[p]:
                found.append(first)
            else:
                runs = self._binary(f"x{i}_{p}")
                # Its first execution may be in this window, or in a later one: then it cannot run here at all.
                if _varies(first):
                    self.model += runs >= first
                    self.model += runs <= after
                self.cost.append((runs - first, self.graph.time_ns[p] / 1000))
                found.append(runs)
        return found

    def _behind(self, i: int) -> list[Term]:
        """y_i: whether each operator runs after t_i."""
        found: list[Term] = []
        for p in range(len(self.graph.live)):
            terms = [runs[p] for runs in self.runs[i:]]
            if not any(_varies(term) for term in terms):
                found.append(min(1, sum(int(term) for term in terms)))
            # In the last window, to run after the instant is to run in it.
            elif len(terms) == 1:
                found.append(terms[0])
            else:
                behind = pulp.LpVariable(f"y{i}_{p}", 0, 1)
                self.model += behind <= pulp.lpSum(terms)
                for term in terms:
                    self.model += behind >= term
                found.append(behind)
        return found

    def _alive(self, i: int) -> dict[int, Term]:
        """s_i of the storages that anyone reads after t_i."""
        found: dict[int, Term] = {}
        instant = self.instants[i]
        for v in sorted(self.wanted[i]):
            done = self.done[i][self.graph.producer[v]]
            # The instant's own operator reads it.
            if v in instant.present:
                found[v] = 1
            # Not made yet.
            elif _is(done, 0):
                found[v] = 0
            else:
                found[v] = self._binary(f"s{i}_{v}")
                if _varies(done):
                    self.model += found[v] <= done
        return found

    def _link(self, i: int) -> None:
        """Rows `read`, `hold` and `behind` of window i."""
        runs, behind, alive = self.runs[i], self.behind[i], self.alive[i]
        later = self.alive[i + 1] if i + 1 < len(self.instants) else {}
        for q, reads in enumerate(self.graph.reads):
            for v in reads:
                # Nobody reads it after t_i: it is never missing.
                if v not in alive:
                    continue
                maker = self.graph.producer[v]
                self._at_least(alive[v] + runs[maker], runs[q])
                # In the last window both rows are the same.
                if behind[q] is not runs[q]:
                    self._at_least(alive[v] + behind[maker], behind[q])
        # Alive at the next instant: held over the window, or made in it.
        for v, held in later.items():
            self._at_least(alive.get(v, 0) + runs[self.graph.producer[v]], held)

    def _at_least(self, left: Term, right: Term) -> None:
        """The row ``left >= right``, unless it holds in any case."""
        # Terms lie between 0 and 1 (a sum of two ones is 2), so these rows exclude nothing.
        if not (_is(right, 0) or _is(left, 1) or _is(left, 2)):
            self.model += left - right >= 0

    def _fit(self, i: int, budget_bytes: int) -> None:
        """Row `room` of window i."""
        graph, instant = self.graph, self.instants[i]
        # What the instant's own operator reads is part of `held_bytes`.
        held = [graph.size_bytes[v] / 1000 * term for v, term in self.alive[i].items() if v not in instant.present]
        held += [
            graph.kept_bytes[p] / 1000 * d for p, d in enumerate(self.done[i]) if _varies(d) and graph.kept_bytes[p]
        ]
        self.model += pulp.lpSum(held) <= (budget_bytes - instant.held_bytes) / 1000


def _varies(term: Term) -> bool:
    """Whether `term` is anything but a plain number."""
    return not isinstance(term, int)


def _is(term: Term, number: int) -> bool:
    """Whether `term` is the plain `number`."""
    return isinstance(term, int) and term == number


def _wanted(graph: StepGraph, instant: Instant) -> set[int]:
    """Storages read after `instant`, by operators not surely done or by those that may run again for them."""
    wanted: set[int] = set()
    # Readers come before makers here, so it is known whether a result is wanted when its maker is met.
    for p in range(len(graph.live) - 1, -1, -1):
        again = graph.repeats[p] and any(v in wanted for v in graph.writes[p])
        if graph.live[p] and (instant.state[p] != DONE or again):
            wanted.update(graph.reads[p])
    return wanted
