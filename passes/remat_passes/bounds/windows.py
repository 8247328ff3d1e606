"""Several instants in one program, linked by the executions between them.

The one-instant program does not say that a value recomputed for one use must be held, or recomputed again, for the
next.  For instants ``t_1 < ... < t_k`` in an order that all plans of the class share, window i goes from t_i to
t_(i+1), the last one to the end.  Variables, for each window, all of them 0 or 1: s_i(v), v is alive at t_i; x_i(p),
p runs in the window; d_i(p), p ran before t_i; y_i(p), p runs at least once behind t_i, in window i or a later one.

    order      d_i(p) <= d_i(q)                       for q that first runs before p
    run        x_i(p) >= d_(i+1)(p) - d_i(p)          a first execution between two instants is in that window
    read       s_i(v) + x_i(maker of v) >= x_i(q)     a reader q of v finds it alive at t_i, or made in the window
    hold       s_(i+1)(v) <= s_i(v) + x_i(maker of v)
    again      x_i(p), y_(i+1)(p), 1 - d_i(p) <= y_i(p) <= x_i(p) + ... + x_k(p)
    behind     s_i(v) + y_i(maker of v) >= y_i(q)
    room       sum of bytes * s_i, of kept storages of done operators, of random states that wait for a repetition
               behind t_i, and of all alive in any case <= budget

and the added time is the sum of ``time * (x_i(p) - (d_(i+1)(p) - d_i(p)))``.

**Every plan is a solution.**  Read each variable off the plan, by what it says in words.  A reader in window i finds
an instance that was there at t_i or that some execution in the window made, which are `read` and `hold`; the same
sentence about everything behind t_i is `behind`.  Executions of p that are not its first take at least as long as is
counted, one a window at most.  Executions before t_1 are free.  So the optimum is a lower bound of the added time of
all plans of the class, and where no solution is, no plan is.

**It is at least as strong as each of its instants alone.**  Take row `behind` of one i: with z(p) = y_i(p) it is the
program of the instant t_i (`remat_passes.bounds.network`: y_i(p) is its x_p, and 1 - d_i(p) its n_p), and by the rows
`again` and `run` the objective is at least ``sum of time * (y_i(p) - (1 - d_i(p)))``, the objective of that program.
This holds for the linear relaxation, too.  Without y the relaxation decays: a reader of v may find an eighth of it made
in each of eight windows, and each of these eighths reads an eighth of the same held input.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from remat_passes.bounds.instant import DONE, FREE, Instant, wanted_behind
from remat_passes.bounds.room import InstantTerms, add_room
from remat_passes.bounds.rows import MEGABYTE, MICROSECOND, ONE, ZERO, Affine, Rows
from remat_passes.bounds.step_graph import StepGraph


class Windows:
    """The program of the module docstring, in microseconds and millions of bytes.

    Args:
        graph: The live part of a problem.
        instants: Instants of one class, each done at the next one.
        budget_bytes: Budget; `None` to minimise the largest of the rows `room` instead of the added time.
        most_added_ns: Plans that add more than this need not be solutions; `None` for all plans.

    Attributes:
        rows: The program.
        instants: The instants.
        alive: s_i(v) by instant and storage, for those that anyone reads behind the instant.

    Raises:
        ValueError: An instant is not surely done at the next one.
    """

    def __init__(
        self,
        graph: StepGraph,
        instants: Sequence[Instant],
        budget_bytes: int | None,
        most_added_ns: int | None = None,
    ) -> None:
        for instant, following in pairwise(instants):
            if following.state[instant.op] != DONE:
                raise ValueError(f"operator {instant.op} does not surely run before operator {following.op}")
        self.graph, self.instants, self.rows = graph, instants, Rows()
        limit = self._largest_room() if budget_bytes is None else budget_bytes
        self._states = [instant.state.tolist() for instant in instants]
        self._wanted = [wanted_behind(graph, state) for state in self._states]
        self._added: list[tuple[Affine, float]] = []
        count = range(len(instants))
        self._done: list[list[Affine]] = []
        for i in range(len(instants) + 1):
            self._done.append(self._done_before(i))
        self._runs = [self._runs_in(i) for i in count]
        self._behind: list[list[Affine]] = []
        for i in reversed(count):
            self._behind.insert(0, self._runs_behind(i, self._behind[0] if self._behind else None))
        self.alive = [self._alive_at(i) for i in count]
        for i in count:
            self._link(i)
            at = InstantTerms(instants[i], self.alive[i], self._done[i], self._behind[i])
            add_room(self.rows, graph, at, limit)
        self._price(most_added_ns, minimises_time=budget_bytes is not None)

    def _largest_room(self) -> Affine:
        """The variable that `room` is compared to where the peak is minimised, in units of the program."""
        graph = self.graph
        most = sum(graph.size_bytes) + sum(graph.kept_bytes) + sum(graph.replay_bytes)
        highest = max(instant.held_bytes for instant in self.instants)
        return self.rows.variable(cost=1.0, upper=(most + highest) / MEGABYTE, whole=False)

    def _done_before(self, i: int) -> list[Affine]:
        """d_i with the rows `order`; at the end every operator is done."""
        if i == len(self.instants):
            return [ONE] * len(self.graph.live)
        state, rows = self._states[i], self.rows
        found = [rows.variable() if s == FREE else ONE if s == DONE else ZERO for s in state]
        for p, s in enumerate(state):
            if s == FREE:
                # Whoever ran before t_i did so after its predecessors; those not free are settled by the state.
                for q in self.graph.earlier[p]:
                    if state[q] == FREE:
                        rows.at_least([found[q]], found[p])
            # Done once is done at all later instants.
            if i and s != DONE and self._done[i - 1][p].varies:
                rows.at_least([found[p]], self._done[i - 1][p])
        return found

    def _runs_in(self, i: int) -> list[Affine]:
        """x_i with the rows `run`."""
        graph, found = self.graph, list[Affine]()
        for p, live in enumerate(graph.live):
            before, after = self._done[i][p], self._done[i + 1][p]
            first = after.minus(before)
            # Its first execution cannot be before the end of this window, so no repetition can.
            if not live or after == ZERO:
                found.append(ZERO)
            # It surely runs first here, where one more run would add nothing; or nobody may read what a run makes.
            elif first == ONE or not graph.repeats[p] or self._wanted[i].isdisjoint(graph.writes[p]):
                found.append(first)
            else:
                runs = self.rows.variable()
                # Its first execution may be in a later window: then it cannot run here at all.
                self.rows.at_least([runs], first)
                self.rows.at_least([after], runs)
                self._added.append((runs, graph.time_ns[p] / MICROSECOND))
                self._added.append((first, -graph.time_ns[p] / MICROSECOND))
                found.append(runs)
        return found

    def _runs_behind(self, i: int, later: list[Affine] | None) -> list[Affine]:
        """y_i with the rows `again`, where `later` is y_(i+1)."""
        if later is None:
            return self._runs[i]
        found = list[Affine]()
        for p, runs in enumerate(self._runs[i]):
            terms = [window[p] for window in self._runs[i:]]
            first = ONE.minus(self._done[i][p]) if self.graph.live[p] else ZERO
            if ONE in terms or first == ONE:
                found.append(ONE)
            # It can run in one of the windows alone, if in any.
            elif sum(term != ZERO for term in terms) <= 1:
                found.append(runs if later[p] == ZERO else later[p])
            else:
                behind = self.rows.variable()
                self.rows.at_least(terms, behind)
                for least in (runs, later[p], first):
                    self.rows.at_least([behind], least)
                found.append(behind)
        return found

    def _alive_at(self, i: int) -> dict[int, Affine]:
        """s_i of the storages that anyone reads behind t_i."""
        found: dict[int, Affine] = {}
        for v in sorted(self._wanted[i]):
            done = self._done[i][self.graph.producer[v]]
            # The instant's own operator reads it.
            if v in self.instants[i].present:
                found[v] = ONE
            # Not made yet.
            elif done == ZERO:
                found[v] = ZERO
            else:
                found[v] = self.rows.variable()
                self.rows.at_least([done], found[v])
        return found

    def _link(self, i: int) -> None:
        """Rows `read`, `behind` and `hold` of window i."""
        runs, behind, alive, rows = self._runs[i], self._behind[i], self.alive[i], self.rows
        for q, reads in enumerate(self.graph.reads):
            for v in reads:
                # Nobody reads it behind t_i: it is never missing.
                if v not in alive:
                    continue
                maker = self.graph.producer[v]
                rows.at_least([alive[v], runs[maker]], runs[q])
                # In the last window both rows are the same.
                if behind[q] is not runs[q] or behind[maker] is not runs[maker]:
                    rows.at_least([alive[v], behind[maker]], behind[q])
        later = self.alive[i + 1] if i + 1 < len(self.instants) else {}
        for v, held in later.items():
            rows.at_least([alive.get(v, ZERO), runs[self.graph.producer[v]]], held)

    def _price(self, most_added_ns: int | None, minimises_time: bool) -> None:
        """The objective, or with a peak to minimise, the limit of the added time."""
        if most_added_ns is not None:
            self.rows.weighed([(term, -cost) for term, cost in self._added], -most_added_ns / MICROSECOND)
        if minimises_time:
            for term, cost in self._added:
                self.rows.charge(term, cost)
