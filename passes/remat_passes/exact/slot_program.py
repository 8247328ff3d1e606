"""A mixed-integer program over slots (`remat_passes.exact.slots`): which of them run, and what is alive between them.

Variables, for slot j, and for storage v between two of its events, which are slots that make or read it:

    r[j]      slot j runs (binary; 1 for slots that must)
    x[v,k]    v is alive between its events k and k + 1

    x[v,k] >= r[j]                 if event k + 1 is a read at slot j
    x[v,k] >= x[v,k+1]             if event k + 1 is a read
    x[v,k] >= x[v,k+1] - r[j]      if event k + 1 makes v at slot j
    x[v,k] <= 1 - r[j]             likewise: an instance that is replaced is not held (a cut)
    r[j]   <= sum of x[v,k]        over what j makes: nothing runs for nobody (a cut)
    bytes alive at each slot <= budget

    y[o,i]    o runs at slot i or behind it, for a few slots i, the *instants*

    r[j] <= y[o,i]                 for each slot j of o from i on
    y[o,i] <= sum of r[j]          over these
    x[v,i] + y[p,i] >= y[o,i]      o reads v, made by p, and x[v,i] is whether v is alive just before i; 1 on the right
                                   for reads that must be

The last three are cuts: fractions of r spread over the slots of o would each do with a fraction of what o reads.

Minimise the time of the optional slots that run.  These are the retention intervals of Moccasin (Bartan et al., arXiv
2304.14463, section 2), cut at each event: a value that nobody reads or makes in between is there throughout or not at
all, so one variable stands for all those steps, where the program of `remat_passes.exact.program` has one each.  Only r
must be whole.  A solution's plan peaks no higher than the largest row; the program keeps the order of its slots.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

import pulp

from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.problem import RematProblem
from remat_passes.exact.linear_rows import Term, add_row, merged
from remat_passes.exact.slots import Slots
from remat_passes.sequences.sequence import StepIndex


@dataclass(slots=True)
class _Life:
    """A storage: its events in order, and whether it is alive behind each of them."""

    slots: list[int] = field(default_factory=list)
    makes: list[bool] = field(default_factory=list)
    alive: list[Term] = field(default_factory=list)


class SlotProgram:
    """The program of one sequence of slots.

    Args:
        problem: The problem.
        index: Its graph.
        slots: The slots; their plan fits.
        instants: Slots with rows for all that runs behind them.

    Attributes:
        model: The PuLP model.
        runs: Whether each slot runs.
        start: Values of all variables that stand for the plan of the slots.
    """

    def __init__(self, problem: RematProblem, index: StepIndex, slots: Slots, instants: Collection[int] = ()) -> None:
        self.problem, self.index, self.slots = problem, index, slots
        self.model = pulp.LpProblem("slots", pulp.LpMinimize)
        self.start: dict[str, float] = {}
        self.runs: list[Term] = [
            self._variable(f"r_{j}", pulp.LpBinary, planned) if optional else 1
            for j, (optional, planned) in enumerate(zip(slots.optional, slots.planned))
        ]
        times = problem.costs.time_ns
        self.model.setObjective(
            pulp.LpAffineExpression([(r, times[op]) for r, op in zip(self.runs, slots.ops) if not isinstance(r, int)])
        )
        self._lives = self._events()
        for v in sorted(self._lives):
            self._add_life(v, self._lives[v])
        self._add_useful()
        self._add_capacities(frozenset(instants))

    def chosen(self, values: Mapping[str, float]) -> list[bool]:
        """Which slots run in a solution."""
        return [r == 1 if isinstance(r, int) else values[r.name] > 0.5 for r in self.runs]

    def _variable(self, name: str, kind: str, start: float) -> pulp.LpVariable:
        self.start[name] = float(start)
        return pulp.LpVariable(name, 0, 1, cat=kind)

    def _value(self, term: Term) -> float:
        return float(term) if isinstance(term, int) else self.start[term.name]

    def _events(self) -> dict[int, _Life]:
        """The events of storages about which there is something to decide, or which have bytes."""
        index, graph = self.index, self.problem.graph
        lives: dict[int, _Life] = {}
        first: set[int] = set()
        for j, op in enumerate(self.slots.ops):
            for v in index.reads[op]:
                if v in lives:
                    lives[v].slots.append(j)
                    lives[v].makes.append(False)
            for v in index.writes[op]:
                # Kept ones are there whatever is chosen.
                if not index.kept[v]:
                    life = lives.setdefault(v, _Life())
                    life.slots.append(j)
                    life.makes.append(True)
            # A random state is made by the first execution and read by all others.
            state = graph.ops[op].replay
            if state is not None:
                life = lives.setdefault(state, _Life())
                life.slots.append(j)
                life.makes.append(op not in first)
            first.add(op)
        return lives

    def _add_life(self, v: int, life: _Life) -> None:
        """Variables and rows of one storage, from its last event to its first."""
        runs, boundary = self.runs, self.slots.boundary
        count = len(life.slots)
        alive: list[Term] = [0] * count
        # Behind the last event nobody reads it.
        for k in range(count - 2, -1, -1):
            run, after = runs[life.slots[k + 1]], alive[k + 1]
            if life.makes[k + 1]:
                alive[k] = self._before_make(f"x_{v}_{k}", run, after)
            else:
                alive[k] = self._before_read(f"x_{v}_{k}", run, after)
            crosses = life.slots[k] < boundary <= life.slots[k + 1]
            if crosses and self.index.unsavable[v]:
                self._row([(alive[k], 1)], pulp.LpConstraintLE, 0)
        life.alive = alive

    def _before_read(self, name: str, run: Term, after: Term) -> Term:
        """Whether a storage is alive up to a read."""
        if isinstance(run, int) or (isinstance(after, int) and after == 1):
            return 1
        if isinstance(after, int):
            return run
        x = self._variable(name, pulp.LpContinuous, max(self._value(run), self._value(after)))
        self._row([(x, 1), (run, -1)], pulp.LpConstraintGE, 0)
        self._row([(x, 1), (after, -1)], pulp.LpConstraintGE, 0)
        return x

    def _before_make(self, name: str, run: Term, after: Term) -> Term:
        """Whether a storage is alive up to where it may be made again."""
        # Replaced in any case, or wanted by nobody.
        if isinstance(run, int) or (isinstance(after, int) and after == 0):
            return 0
        x = self._variable(name, pulp.LpContinuous, max(self._value(after) - self._value(run), 0.0))
        self._row([(x, 1), (run, 1), (after, -1)], pulp.LpConstraintGE, 0)
        self._row([(x, 1), (run, 1)], pulp.LpConstraintLE, 1)
        return x

    def _add_useful(self) -> None:
        """Nothing runs for nobody."""
        uses: dict[int, list[Term]] = {}
        for life in self._lives.values():
            for j, makes, alive in zip(life.slots, life.makes, life.alive):
                if makes:
                    uses.setdefault(j, []).append(alive)
        for j, run in enumerate(self.runs):
            terms = uses.get(j, [])
            if not isinstance(run, int) and 1 not in [term for term in terms if isinstance(term, int)]:
                self._row([(run, -1), *((term, 1) for term in terms)], pulp.LpConstraintGE, 0)

    def _add_capacities(self, instants: Collection[int]) -> None:
        """The bytes that are alive at each slot, swept from the first to the last."""
        index, costs = self.index, self.problem.costs
        size = [s.size_bytes for s in self.problem.graph.storages]
        tangents = sum(s.size_bytes for s in self.problem.graph.storages if s.kind is StorageKind.TANGENT)
        now: dict[int, Term] = {}
        base = 0
        held: set[int] = set()
        place = dict.fromkeys(self._lives, 0)
        for j, op in enumerate(self.slots.ops):
            base += tangents if j == self.slots.boundary else 0
            if j in instants:
                self._add_behind(j, now)
            state = self.problem.graph.ops[op].replay
            own = costs.workspace_bytes[op] + sum(size[v] for v in index.writes[op] if v not in held)
            made = {*index.writes[op]} | ({state} if state is not None else set())
            terms = [(alive, size[v]) for v, alive in now.items() if v not in made]
            if state is not None:
                # A repetition holds the generator's own state as well, to return to.
                repeated = state in now
                own += size[state] if repeated else 0
                terms.append((now[state] if repeated else self._lives[state].alive[0], size[state]))
            terms += self._overwritten(j, op, place)
            self._capacity([*terms, (self.runs[j], own)], base)
            for v in index.writes[op]:
                if index.kept[v] and v not in held:
                    held.add(v)
                    base += size[v]
            for v in {*index.reads[op], *made}:
                if v in place:
                    now[v] = self._lives[v].alive[place[v]]
                    place[v] += 1

    def _overwritten(self, j: int, op: int, place: Mapping[int, int]) -> list[tuple[Term, int]]:
        """What slot `j` takes more if no argument dies in it whose memory its result takes over."""
        saved = -self.problem.costs.workspace_bytes[op]
        if saved <= 0:
            return []
        storages = self.problem.graph.storages
        size = storages[self.index.writes[op][0]].size_bytes if self.index.writes[op] else -1
        after = [
            self._lives[v].alive[place[v]]
            for v in self.index.reads[op]
            if v in place and storages[v].size_bytes == size
        ]
        if all(isinstance(term, int) and term == 1 for term in after):
            return [(self.runs[j], saved)]
        if any(isinstance(term, int) and term == 0 for term in after):
            return []
        lasting = sum(self._value(term) for term in after) >= len(after)
        taken = self._variable(f"o_{j}", pulp.LpContinuous, lasting and self._value(self.runs[j]))
        row = [(taken, 1), (self.runs[j], -1), *((term, -1) for term in after)]
        self._row(row, pulp.LpConstraintGE, -len(after))
        return [(taken, saved)]

    def _add_behind(self, instant: int, alive: Mapping[int, Term]) -> None:
        """The rows of one instant, at which `alive` says which storages are alive."""
        behind: dict[int, list[Term]] = {}
        for op, run in zip(self.slots.ops[instant:], self.runs[instant:]):
            behind.setdefault(op, []).append(run)
        runs: dict[int, Term] = {}
        for op, terms in behind.items():
            runs[op] = self._runs_behind(f"y_{op}_{instant}", terms)
        for op, run in runs.items():
            for v in self.index.reads[op]:
                # What is kept is there; a first execution behind the instant makes what it does for all.
                if v in self._lives:
                    maker = runs.get(self.index.producer[v], 0)
                    self._row([(alive.get(v, 0), 1), (maker, 1), (run, -1)], pulp.LpConstraintGE, 0)

    def _runs_behind(self, name: str, terms: list[Term]) -> Term:
        """Whether any of the slots `terms` of one operator runs."""
        if 1 in [term for term in terms if isinstance(term, int)]:
            return 1
        if len(terms) == 1:
            return terms[0]
        y = self._variable(name, pulp.LpContinuous, max(self._value(term) for term in terms))
        for term in terms:
            self._row([(y, 1), (term, -1)], pulp.LpConstraintGE, 0)
        self._row([(y, -1), *((term, 1) for term in terms)], pulp.LpConstraintGE, 0)
        return y

    def _capacity(self, terms: Iterable[tuple[Term, int]], spent: int) -> None:
        """One row of capacity, unless it always holds."""
        row, constant = merged(terms)
        right = self.problem.budget_bytes - spent - constant
        if sum(row.values()) > right:
            self._row(row.items(), pulp.LpConstraintLE, right)

    def _row(self, terms: Iterable[tuple[Term, int]], sense: int, right: int) -> None:
        add_row(self.model, terms, sense, right)
