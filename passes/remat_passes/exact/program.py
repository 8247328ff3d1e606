"""Rematerialization as a mixed-integer program over the stages of `remat_passes.exact.space`.

Variables, for gap t, operator i and storage v made by operator p:

    r[t,i]    i runs in gap t (binary)
    s[t,v]    v is alive at the start of gap t
    a[t,v,j]  v is alive from its (j-1)-th to its j-th possible reader in gap t; readers stand in joint order
    h[t,i]    the random state of i is alive at the start of gap t
    y[t,i]    i runs in gap t or behind it, for a few t (with the cut ``behind``)

Minimise the time of all executions in gaps, less one execution of each operator that has no anchor.

Why this formulation.  Checkmate (Jain et al., arXiv 1910.02653, eq. 8-13) has a product of an execution and of the
death of each of its inputs for each edge and stage (FREE), and memory as a running sum of them.  Here the life of a
value within a gap is a chain a[1] >= a[2] >= ... >= s[t+1,v], so memory is a plain sum, and what is alive follows
from the executions by comparisons alone.  Retention intervals (Moccasin, Bartan et al., arXiv 2304.14463) need a
variable for each pair of start and end.  Rows of capacity need no condition "if i runs": if it does not, no more is
alive than at the step before.  Only r must be integer: for given executions the least s, a and h are 0 or 1.

A solution decodes to a plan whose peak, as the simulator finds it, is at most the largest row.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import pulp

from remat_passes.exact.linear_rows import Term, add_row, merged
from remat_passes.exact.moved_values import MovedValues
from remat_passes.exact.space import BOUNDARY, Reductions, Space, Stage
from remat_passes.exact.subset_sums import largest_sum

MOST_INSTANTS = 8
"""Instants with rows of the cut ``behind``, about."""


@dataclass(frozen=True, slots=True)
class Cuts:
    """Valid inequalities; each may be switched off, which changes the time to solve and nothing else.

    Attributes:
        exclusive: No storage is both retained into a gap and recomputed there.
        useful: Some result of an execution in a gap is read there or retained.
        once: An operator that runs in gaps only runs at least once.
        behind: What runs at all behind an instant has its inputs alive there, or run behind it (y above).
    """

    exclusive: bool = True
    useful: bool = True
    once: bool = True
    behind: bool = False


@dataclass(frozen=True, slots=True)
class Life:
    """Whether a storage is alive at each place of a stage.

    Attributes:
        ends: Operator at which each piece ends, inclusive and ascending; the last piece has none.
        terms: One more than `ends`.
        uses: Reasons to make a new instance: its first reader in the gap, or being retained.
    """

    ends: tuple[int, ...]
    terms: tuple[Term, ...]
    uses: tuple[Term, ...]

    def at(self, op: int) -> Term:
        """Whether the storage is alive while `op` runs in the gap; results of `op` are left out."""
        return self.terms[bisect_left(self.ends, op)]


class Program:
    """The program of one space.

    Attributes:
        model: The PuLP model.
        runs: Variable of each execution, by stage and operator.
        states: Variable of each storage at the start of a gap, by stage and storage.
        chains: Variable of each piece of a life within a gap, by stage, storage and number of the reader.
        random: Variable of each random state, by stage and operator.
        behind: Whether an operator runs at all from an instant on, by its stage and operator.
        moves: Values that may be moved off the device.
        alive: Storages with a life in each stage.
    """

    def __init__(self, space: Space, reductions: Reductions, cuts: Cuts, cutoff_ns: int | None = None) -> None:
        self.space = space
        self.reductions = reductions
        self.cuts = cuts
        self.model = pulp.LpProblem("rematerialization", pulp.LpMinimize)
        self.runs: dict[tuple[int, int], pulp.LpVariable] = {}
        self.states: dict[tuple[int, int], pulp.LpVariable] = {}
        self.chains: dict[tuple[int, int, int], pulp.LpVariable] = {}
        self.random: dict[tuple[int, int], pulp.LpVariable] = {}
        self.behind: dict[tuple[int, int], pulp.LpVariable] = {}
        self._index = space.index
        self._reads = [frozenset(reads) for reads in space.index.reads]
        self.alive = self._storages_by_stage()
        self._make_runs()
        self._make_states()
        self.moves = MovedValues.of(space, lambda t, v: (t, v) in self.states)
        self._add_objective(cutoff_ns)
        self._add_moves()
        self._add_demands()
        self._add_random_states()
        for t, stage in enumerate(space.stages):
            lives = {v: self._life(t, stage, v) for v in self.alive[t]}
            self._add_capacity(t, stage, lives)
            if cuts.useful:
                self._add_useful(t, stage, lives)
        # A moved value is there without having been alive at every instant before.
        if cuts.behind and not self.moves.returns:
            for t in self._instants():
                self._add_behind(t)

    def holds(self, values: Mapping[str, float]) -> bool:
        """Whether whole `values` satisfy every row."""
        for row in self.model.constraints.values():
            # PuLP moves the right side into the constant: a row reads `total (sense) 0`, where <= is -1 and >= is +1.
            total = row.constant + sum(c * values.get(variable.name, 0.0) for variable, c in row.items())
            if total * row.sense < 0:
                return False
        return True

    def _storages_by_stage(self) -> list[list[int]]:
        """Storages with variables in each stage."""
        found: list[list[int]] = [[] for _ in self.space.stages]
        for v, (entry, last) in enumerate(zip(self.space.entry, self.space.last)):
            # An entry of -1 marks a storage without a choice: its bytes are in `base_bytes`, or it never costs any.
            for t in range(entry, last + 1) if entry >= 0 else ():
                found[t].append(v)
        return found

    def _make_runs(self) -> None:
        for t, stage in enumerate(self.space.stages):
            for i in stage.candidates:
                self.runs[t, i] = pulp.LpVariable(f"r_{t}_{i}", cat=pulp.LpBinary)

    def _make_states(self) -> None:
        """s[t,v] wherever v may come into gap t; a held storage has one more, at the end."""
        kind = pulp.LpContinuous if self.reductions.relax_states else pulp.LpInteger
        for t, alive in enumerate(self.alive):
            for v in alive:
                # At its entry, only an anchor of an earlier stage can have made it; one born here counts as 1.
                comes = t > self.space.entry[v] or (self.space.from_anchor[v] and v not in self.space.born)
                if comes and not self._cut_off(t, v):
                    self.states[t, v] = pulp.LpVariable(f"s_{t}_{v}", 0, 1, cat=kind)
        for v in range(len(self.space.entry)):
            # The caller holds it to the end, so the last gap needs an end as well: rows compare s[t] with s[t + 1].
            if self.space.held(v):
                final = len(self.space.stages)
                self.states[final, v] = pulp.LpVariable(f"s_{final}_{v}", 0, 1, cat=kind)

    def _cut_off(self, t: int, v: int) -> bool:
        """Whether v cannot be alive at the start of gap t: the boundary comes just before, and v must not cross it."""
        return t > 0 and self.space.stages[t - 1].anchors[-1] == BOUNDARY and self.space.unsavable(v)

    def _state(self, t: int, v: int) -> Term:
        # An anchor inside a merged stage makes it at some point there: the relaxation has it from the start.
        if v in self.space.born and t == self.space.entry[v]:
            return 1
        return self.states.get((t, v), 0)

    def _after(self, t: int, v: int) -> Term:
        """Whether v is alive at the end of stage t for a stage after it."""
        if t >= self.space.last[v]:
            return 0
        return self.moves.kept[v] if self.moves.returns.get(v) == t + 1 else self._state(t + 1, v)

    def _add_moves(self) -> None:
        """s[f,v] <= k[v] + m[v], the room, and the windows; see `remat_passes.exact.moved_values`."""
        for v, f in self.moves.returns.items():
            self._at_most(self.states[f, v], self.moves.kept[v], self.moves.moved[v])
        for row, right in self.moves.rows(self.runs):
            self._add(row.items(), pulp.LpConstraintLE, right)

    def _run(self, t: int, i: int) -> Term:
        return self.runs.get((t, i), 0)

    def _add(self, terms: Iterable[tuple[Term, int]], sense: int, right: int) -> None:
        add_row(self.model, terms, sense, right)

    def _at_most(self, smaller: Term, *larger: Term) -> None:
        """``smaller <= sum of larger``."""
        # No term is negative, so 0 is at most anything.
        if not (isinstance(smaller, int) and smaller == 0):
            self._add([(smaller, 1), *((term, -1) for term in larger)], pulp.LpConstraintLE, 0)

    def _add_objective(self, cutoff_ns: int | None) -> None:
        """Added time, at most `cutoff_ns`: executions in gaps less the first of each floating operator, and copies."""
        times = self.space.problem.costs.time_ns
        terms = [(variable, times[i]) for (_, i), variable in self.runs.items() if times[i]]
        terms += [*self.moves.begun, *((variable, 1) for variable in (*self.moves.waits, *self.moves.drag))]
        constant = -sum(times[i] for i in self.space.floating)
        # A variable that is 1 carries the constant, since solvers take gaps relative to what they know of.
        once = [(pulp.LpVariable("one", 1, 1), constant)] if constant else []
        self.model.setObjective(pulp.LpAffineExpression([*terms, *once]))
        if cutoff_ns is not None and terms:
            # Inclusive: the plan that gave the cutoff stays a solution, with which the solver can start.
            self._add(terms, pulp.LpConstraintLE, cutoff_ns - constant)

    def _add_demands(self) -> None:
        """Floating operators: at least once where demanded (cut ``once``: in any case), pinned ones at most once."""
        for i in self.space.floating:
            terms = [(self.runs[t, i], 1) for t in range(len(self.space.stages)) if (t, i) in self.runs]
            # Whole solutions run every floating operator anyway, since something reads it; fractional ones need not.
            if i in self.space.demanded or self.cuts.once:
                self._add(terms, pulp.LpConstraintGE, 1)
            if self._index.pinned[i]:
                self._add(terms, pulp.LpConstraintLE, 1)

    def _add_random_states(self) -> None:
        """h[t,i] >= h[t+1,i] and h[t,i] >= r[t,i]: a state lives from the first execution to the last repetition."""
        self._drawn = [i for i in sorted(self.space.runs_until) if self.space.state_bytes(i)]
        for i in self._drawn:
            stages = [t for t in range(len(self.space.stages)) if (t, i) in self.runs]
            # No gap after the last possible repetition needs the state.
            until = max(stages, default=-1)
            # The first execution is an anchor, so the state first lives in the gap after it.
            for t in range(self.space.made_at[i] + 1, until + 1):
                self.random[t, i] = pulp.LpVariable(f"h_{t}_{i}", 0, 1)
            for t in range(self.space.made_at[i] + 1, until + 1):
                self._at_most(self._run(t, i), self.random[t, i])
                self._at_most(self.random.get((t + 1, i), 0), self.random[t, i])

    def _life(self, t: int, stage: Stage, v: int) -> Life:
        """Rows and pieces of the life of v in stage t."""
        maker = self._index.producer[v]
        if self.space.held(v):
            return self._held_life(t, stage, v, maker)
        before, run = self._state(t, v), self._run(t, maker)
        # Whoever has v at the start of the gap gains nothing from making it again there.
        if self.cuts.exclusive and not isinstance(before, int) and not isinstance(run, int):
            self._add([(before, 1), (run, 1)], pulp.LpConstraintLE, 1)
        readers = [i for i in stage.candidates if v in self._reads[i]]
        wanted = any(v in self._reads[anchor] for anchor in stage.anchors if anchor >= 0)
        after = self._after(t, v)
        if wanted:
            # An anchor reads v whatever is chosen, so v lives from the gap's start or from its maker up to that anchor.
            self._at_most(1, before, run)
            # Of merged anchors only the last has a capacity; if another one reads v, it need not live so long.
            last_too = stage.anchors[-1] >= 0 and v in self._reads[stage.anchors[-1]]
            return Life((maker,), (before, 1 if last_too else after), (1,))
        # Without a capacity in the gap it does not matter how long v lives there: no pieces, only availability.
        if not stage.gap_limited:
            for term in (*(self.runs[t, i] for i in readers), after):
                self._at_most(term, before, run)
            return Life((maker,), (before, after), (*(self.runs[t, i] for i in readers), after))
        return self._chained_life(t, v, readers, after)

    def _chained_life(self, t: int, v: int, readers: list[int], after: Term) -> Life:
        """a[1] <= s[t,v] + r[t,p];  a[j] >= a[j+1];  a[j] >= r[t, reader j];  a[last] >= s[t+1,v]."""
        maker = self._index.producer[v]
        before, run = self._state(t, v), self._run(t, maker)
        made_here = not isinstance(run, int)
        chain: list[Term] = []
        for j, reader in enumerate(readers):
            # If nothing makes v here, its first piece is its state at the start.
            if j == 0 and not made_here:
                chain.append(before)
            # If v cannot be retained, its last piece is needed by the last reader alone.
            elif j == len(readers) - 1 and isinstance(after, int):
                chain.append(self.runs[t, reader])
            else:
                self.chains[t, v, j] = pulp.LpVariable(f"a_{t}_{v}_{j}", 0, 1)
                chain.append(self.chains[t, v, j])
        for j, reader in enumerate(readers):
            following = chain[j + 1] if j + 1 < len(chain) else after
            self._at_most(following, chain[j])
            # A piece that is the reader's own variable needs no row.
            if chain[j] is not self.runs[t, reader]:
                self._at_most(self.runs[t, reader], chain[j])
        first = chain[0] if chain else after
        if first is not before:
            self._at_most(first, before, run)
        # Without a maker in the gap there is no piece before it.
        if not made_here:
            return Life(tuple(readers), (*chain, after), (first,))
        return Life((maker, *readers), (before, *chain, after), (first,))

    def _held_life(self, t: int, stage: Stage, v: int, maker: int) -> Life:
        """The caller holds the first instance: s[t,v] <= s[t+1,v] <= s[t,v] + r[t,p] and s[t+1,v] >= r[t,p]."""
        before, run, after = self._state(t, v), self._run(t, maker), self._state(t + 1, v)
        self._at_most(before, after)
        self._at_most(run, after)
        self._at_most(after, before, run)
        # Once made it stays, so whoever reads v in the gap finds it exactly if it is alive at the gap's end.
        for i in stage.candidates:
            if v in self._reads[i]:
                self._at_most(self.runs[t, i], after)
        if any(v in self._reads[anchor] for anchor in stage.anchors if anchor >= 0):
            self._at_most(1, after)
        return Life((maker,), (before, after), (1,))

    def _add_useful(self, t: int, stage: Stage, lives: dict[int, Life]) -> None:
        """r[t,i] <= sum of the uses of new instances, over all results of i."""
        for i in stage.candidates:
            uses = [use for v in self._index.writes[i] if v in lives for use in lives[v].uses]
            # A use that is certain makes the row slack.
            if uses and 1 not in [use for use in uses if isinstance(use, int)]:
                self._at_most(self.runs[t, i], *uses)

    def _instants(self) -> list[int]:
        """Stages at whose start the rows of `_add_behind` stand: behind a capacity, equally spread."""
        limited = [t for t in range(1, len(self.space.stages)) if self.space.stages[t - 1].anchor_limited]
        return limited[:: len(limited) // MOST_INSTANTS + 1]

    def _add_behind(self, t: int) -> None:
        """r[u,i] <= y[t,i] <= sum of r[u,i], u from t on;  s[t,v] + y[t,p] >= y[t,i], or 1 if an anchor reads v."""
        space = self.space
        again: dict[int, Term] = {i: 1 for i, made in space.made_at.items() if made >= t}
        for i in sorted(space.runs_until):
            runs = [self.runs[u, i] for u in range(t, len(space.stages)) if (u, i) in self.runs]
            if runs and i not in again:
                again[i] = self.behind[t, i] = pulp.LpVariable(f"y_{t}_{i}", 0, 1)
                self._at_most(again[i], *runs)
                for run in runs:
                    self._at_most(run, again[i])
        for i, ran in again.items():
            for v in self._index.reads[i]:
                if space.entry[v] >= 0:
                    self._at_most(ran, self._state(t, v), again.get(self._index.producer[v], 0))

    def _add_capacity(self, t: int, stage: Stage, lives: dict[int, Life]) -> None:
        """sum of bytes alive <= budget while each candidate runs, and while the anchor does."""
        size, costs = self._index.size_bytes, self.space.problem.costs
        if stage.gap_limited:
            for i in stage.candidates:
                # A repetition also holds the generator's own state, to return to: as many bytes as the replayed one.
                own = sum(size[v] for v in self._index.writes[i]) + costs.workspace_bytes[i] + self.space.state_bytes(i)
                terms = [(life.at(i), size[v]) for v, life in lives.items()]
                # If j does not stand before i, it may still run in this gap; else only later gaps need its state.
                states = [
                    (self.random.get((t if i <= j else t + 1, j), 0), self.space.state_bytes(j)) for j in self._drawn
                ]
                self._add_row([*terms, (self.runs[t, i], own), *states], stage.base_bytes)
        if stage.anchor_limited:
            anchor = stage.anchors[-1]
            own = sum(size[v] for v in self._index.writes[anchor]) + costs.workspace_bytes[anchor]
            # The anchor follows the whole gap: of each life the last piece counts.
            terms = [(life.terms[-1], size[v]) for v, life in lives.items()]
            states = [(self.random.get((t + 1, j), 0), self.space.state_bytes(j)) for j in self._drawn]
            self._add_row([*terms, *states], stage.base_bytes + own)

    def _add_row(self, terms: list[tuple[Term, int]], spent: int) -> None:
        """One row of capacity, unless it always holds."""
        row, constant = merged(terms)
        right = self.space.problem.budget_bytes - spent - constant
        if self.reductions.drop_slack_rows and sum(row.values()) <= right:
            return
        # In a whole solution every term is 0 or 1, so bytes that no subset of the sizes reaches cannot be used.
        if self.reductions.reachable_sums and right >= 0:
            right = largest_sum(row.values(), right)
        self._add(row.items(), pulp.LpConstraintLE, right)
