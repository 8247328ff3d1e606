"""The cheapest plan of a tiny problem by Dijkstra's algorithm over what is alive: nothing is shared with the program.

Searched are all sequences in which forward and backward operators run first in joint order, tangent-free operators
run where their inputs are there, forward and tangent-free operators run again as often as they like, and the peak by
the simulator's rules is within the budget.  A state is the number of anchors passed, what is alive, and which
tangent-free operators ran.  It is never worse to keep more, so before each step only the largest sets that still fit
beside it are tried.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from remat_compiler.ir.graph import Op, Phase, SavePolicy, StorageKind, Trait
from remat_compiler.ir.problem import RematProblem

MARK = -1


@dataclass(frozen=True, slots=True)
class Step:
    """State before a step: anchors passed, storages alive, tangent-free operators run, last operator of the gap."""

    passed: int
    alive: frozenset[int]
    ran: frozenset[int]
    latest: int


class Exhaustive:
    """The search for one problem.

    Args:
        problem: The problem.
        once_per_gap: Search only sequences that run each operator once between two anchors, in joint order.
    """

    def __init__(self, problem: RematProblem, once_per_gap: bool) -> None:
        self.problem, self.once_per_gap = problem, once_per_gap
        self.ops, self.storages = problem.graph.ops, problem.graph.storages
        self.size = [s.size_bytes for s in self.storages]
        self.producer = problem.graph.producers()
        self.counted = {s.id for s in self.storages if not s.resident and s.kind is not StorageKind.TANGENT}
        self.kept = {s.id for s in self.storages if s.kept}
        self.tangents = sum(s.size_bytes for s in self.storages if s.kind is StorageKind.TANGENT)
        parts = {phase: [op.id for op in self.ops if op.phase is phase] for phase in Phase}
        self.anchors = [*parts[Phase.FORWARD], MARK, *parts[Phase.BACKWARD]]
        self.boundary = len(parts[Phase.FORWARD])
        self.position = {op: t for t, op in enumerate(self.anchors) if op != MARK}
        self.floating = [op for op in self.ops if op.phase is Phase.TANGENT_FREE]
        self.demanded = frozenset(op.id for op in self.floating if self._demanded(op))

    def _demanded(self, op: Op) -> bool:
        pinned = bool(op.no_recompute) or op.save_policy is SavePolicy.MUST_SAVE
        return pinned or not op.writes or any(s in self.kept for s in op.writes)

    def _repeats(self, op: Op) -> bool:
        pinned = bool(op.no_recompute) or op.save_policy is SavePolicy.MUST_SAVE
        draws = op.traits == {Trait.RANDOM} and op.replay is not None
        gathers = op.traits == {Trait.COLLECTIVE, Trait.GATHER}
        return op.phase is not Phase.BACKWARD and not pinned and (not op.traits or draws or gathers)

    def added_ns(self) -> int | None:
        """Least added time, or `None` where no sequence fits."""
        start = Step(0, frozenset(), frozenset(), -1)
        best = {start: 0}
        heap: list[tuple[int, int, Step]] = [(0, 0, start)]
        count = 0
        while heap:
            cost, _, state = heapq.heappop(heap)
            if cost > best[state]:
                continue
            if state.passed == len(self.anchors) and self.demanded <= state.ran:
                return cost
            for price, following in self._moves(state):
                if cost + price < best.get(following, 1 << 62):
                    best[following] = cost + price
                    count += 1
                    heapq.heappush(heap, (cost + price, count, following))
        return None

    def _moves(self, state: Step) -> Iterator[tuple[int, Step]]:
        """What may come next, with its price."""
        if state.passed < len(self.anchors):
            anchor = self.anchors[state.passed]
            if anchor == MARK:
                yield 0, self._state(state.passed + 1, self._savable(state.alive), state.ran, -1)
            else:
                yield from self._execute(state, self.ops[anchor], first=True)
        for op in self.ops:
            if self.once_per_gap and op.id <= state.latest:
                continue
            if op.phase is Phase.TANGENT_FREE and op.id not in state.ran:
                yield from self._execute(state, op, first=True)
            elif self._repeats(op) and (op.id in state.ran or self.position.get(op.id, 1 << 30) < state.passed):
                yield from self._execute(state, op, first=False)

    def _savable(self, alive: frozenset[int]) -> frozenset[int]:
        tagged = [op for op in self.ops if op.save_policy is SavePolicy.MUST_NOT_SAVE]
        return alive - {s for op in tagged for s in op.writes}

    def _execute(self, state: Step, op: Op, first: bool) -> Iterator[tuple[int, Step]]:
        """One execution, with every largest set of what else stays alive."""
        needed = {s for s in op.reads if s in self.counted and s not in self.kept}
        if not first and op.replay is not None:
            needed.add(op.replay)
        if not needed <= state.alive or not self._held_there(state, op):
            return
        spent = (
            self._held_bytes(state) + sum(self.size[s] for s in op.writes) + self.problem.costs.workspace_bytes[op.id]
        )
        spent += self.size[op.replay] if not first and op.replay is not None else 0
        spent += sum(self.size[s] for s in needed)
        others = state.alive - needed - set(op.writes)
        if first and op.replay is not None:
            others |= {op.replay}
        passed = state.passed + (op.id in self.position and first)
        floats = op.phase is Phase.TANGENT_FREE
        ran = state.ran | {op.id} if floats else state.ran
        latest = -1 if passed > state.passed else op.id
        made = frozenset(s for s in op.writes if s in self.counted and s not in self.kept)
        price = 0 if first else self.problem.costs.time_ns[op.id]
        for stays in self._largest(sorted(others), self.problem.budget_bytes - spent):
            yield price, self._state(passed, frozenset(needed) | stays | made, ran, latest)

    def _held_there(self, state: Step, op: Op) -> bool:
        """Whether the kept storages that `op` reads were made."""
        makers = [self.producer[s] for s in op.reads if s in self.kept]
        return all(m in state.ran or self.position.get(m, 1 << 30) < state.passed for m in makers if m is not None)

    def _held_bytes(self, state: Step) -> int:
        """Bytes of kept storages made so far, and of tangents."""
        done = [op for op in self.anchors[: state.passed] if op != MARK]
        held = sum(self.size[s] for i in [*done, *state.ran] for s in self.ops[i].writes if s in self.kept)
        return held + (self.tangents if state.passed > self.boundary else 0)

    def _largest(self, storages: list[int], room: int) -> Iterator[frozenset[int]]:
        """Sets of `storages` within `room` bytes to which no other can be added."""
        if room < 0:
            return
        found: list[frozenset[int]] = []
        stack: list[tuple[int, int, tuple[int, ...]]] = [(0, room, ())]
        while stack:
            i, left, chosen = stack.pop()
            if i == len(storages):
                if all(self.size[s] > left for s in storages if s not in chosen):
                    found.append(frozenset(chosen))
                continue
            stack.append((i + 1, left, chosen))
            if self.size[storages[i]] <= left:
                stack.append((i + 1, left - self.size[storages[i]], (*chosen, storages[i])))
        yield from found

    def _state(self, passed: int, alive: frozenset[int], ran: frozenset[int], latest: int) -> Step:
        """A state without what nothing can need any more."""
        useful = self._useful(passed, ran)
        return Step(passed, frozenset(s for s in alive if s in useful), ran, latest if self.once_per_gap else -1)

    def _useful(self, passed: int, ran: frozenset[int]) -> frozenset[int]:
        """Storages that some operator may still read to some end."""
        return _useful(self, passed, ran)


@cache
def _useful(search: Exhaustive, passed: int, ran: frozenset[int]) -> frozenset[int]:
    useful: set[int] = set()
    for op in reversed(search.ops):
        anchored = search.position.get(op.id, -1) >= passed
        owed = op.id in search.demanded and op.id not in ran
        repeats = search._repeats(op) or (op.phase is Phase.TANGENT_FREE and op.id not in ran)
        if anchored or owed or (repeats and any(s in useful for s in op.writes)):
            useful |= {s for s in op.reads if s in search.counted and s not in search.kept}
            if op.replay is not None:
                useful.add(op.replay)
        elif op.replay is not None and repeats:
            useful.discard(op.replay)
    return frozenset(useful)


@cache
def optimum_ns(problem: RematProblem, *, once_per_gap: bool) -> int | None:
    """`Exhaustive.added_ns` of `problem`, found once for all tests of a process."""
    return Exhaustive(problem, once_per_gap=once_per_gap).added_ns()
