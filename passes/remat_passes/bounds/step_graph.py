"""A problem as the bounds see it: only operators that must run, and which results are alive by choice.

Every plan runs every *live* operator at least once: those of the forward, those with effects, those that make something
kept, and those on whose results these depend.  The rest never needs to run, so bounds leave it out: dropping its
executions makes no valid plan invalid, slower, or higher.

    reads      needs an instance alive; only storages whose life a plan decides
    follows    runs after the first execution of another operator, because of any storage or of an effect
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

import numpy as np

from remat_compiler.ir.graph import Phase, StorageKind, TrainingGraph
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.needed import needed_ops
from remat_passes.bounds.arcs import BACKWARD, FORWARD, TANGENT_FREE, Tables, rows
from remat_passes.sequences.sequence import is_pinned

_PHASES = {Phase.FORWARD: FORWARD, Phase.TANGENT_FREE: TANGENT_FREE, Phase.BACKWARD: BACKWARD}


@dataclass(frozen=True, slots=True, eq=False)
class StepGraph:
    """Live operators with their reads, writes and bytes, by id of operator or storage.

    Attributes:
        live: Whether each operator must run.
        phase: Part of the step of each operator.
        reads: Storages of which an instance must be alive when each operator runs.
        writes: Storages of the same kind that each operator makes.
        kept_bytes: Bytes of the kept storages that each operator makes; its first execution holds them to the end.
        written_bytes: Bytes that each operator allocates for results, kept or not.
        earlier: Operators that first run before each operator first does.
        sequence: All operators, each after its `earlier` ones.
        producer: Operator that makes each storage; -1 if none does.
        size_bytes: Bytes of each storage.
        repeats: Whether each operator may run again.
        replay_bytes: Bytes of the random state that each operator's repetition replays.
        time_ns: Time of each operator.
        workspace_bytes: Workspace of each operator.
        tangent_bytes: Bytes of all tangents, alive in the backward.
        tables: The same for compiled loops.
    """

    live: list[bool]
    phase: list[Phase]
    reads: list[list[int]]
    writes: list[list[int]]
    kept_bytes: list[int]
    written_bytes: list[int]
    earlier: list[list[int]]
    sequence: list[int]
    producer: list[int]
    size_bytes: list[int]
    repeats: list[bool]
    replay_bytes: list[int]
    time_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    tangent_bytes: int
    tables: Tables = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """Make `tables`."""
        phase = [_PHASES[p] for p in self.phase]
        columns = (self.live, phase, self.repeats, self.time_ns, self.replay_bytes, self.kept_bytes)
        tables = Tables(
            np.array(columns, np.int64).T.reshape(-1, len(columns)).copy(),
            np.array(self.producer, np.int64),
            np.array(self.size_bytes, np.int64),
            *rows(self.reads),
            *rows(self.writes),
            *rows(self.earlier),
            np.array(self.sequence, np.int64),
        )
        # The only field that is derived; the class is frozen for everybody else.
        object.__setattr__(self, "tables", tables)

    @staticmethod
    def of(problem: RematProblem) -> StepGraph:
        """The live part of `problem`."""
        graph, storages = problem.graph, problem.graph.storages
        producer = [-1 if op is None else int(op) for op in graph.producers()]
        # A plan does not decide about inputs and kept storages: `Instant.held_bytes` has the bytes of the latter.
        chosen = [producer[s.id] >= 0 and not s.kept for s in storages]
        live = needed_ops(graph)
        return StepGraph(
            live=live,
            phase=[op.phase for op in graph.ops],
            reads=[[int(s) for s in op.reads if chosen[s]] if live[op.id] else [] for op in graph.ops],
            writes=[[int(s) for s in op.writes if chosen[s]] if live[op.id] else [] for op in graph.ops],
            kept_bytes=[sum(storages[s].size_bytes for s in op.writes if storages[s].kept) for op in graph.ops],
            written_bytes=[sum(storages[s].size_bytes for s in op.writes) for op in graph.ops],
            earlier=_earlier(graph, producer, live),
            sequence=list(range(len(graph.ops))),
            producer=producer,
            size_bytes=[s.size_bytes for s in storages],
            repeats=[not is_pinned(op) for op in graph.ops],
            replay_bytes=[0 if op.replay is None else storages[op.replay].size_bytes for op in graph.ops],
            time_ns=problem.costs.time_ns,
            workspace_bytes=problem.costs.workspace_bytes,
            tangent_bytes=sum(s.size_bytes for s in storages if s.kind is StorageKind.TANGENT),
        )

    def ordered(self, first: int, then: int) -> StepGraph:
        """The same step for the plans that first execute `first` before they first execute `then`.

        Args:
            first: A live operator.
            then: A live operator that does not run before `first` in every plan.
        """
        earlier = [[*before, first] if op == then else before for op, before in enumerate(self.earlier)]
        return replace(self, earlier=earlier, sequence=_sequence(earlier))


def _sequence(earlier: list[list[int]]) -> list[int]:
    """All operators, each after its `earlier` ones, and otherwise by id."""
    missing = [len(before) for before in earlier]
    later: list[list[int]] = [[] for _ in earlier]
    for op, before in enumerate(earlier):
        for other in before:
            later[other].append(op)
    # Kahn's algorithm with a heap: of the operators that may come next always the smallest, so the result is unique.
    ready = [op for op, count in enumerate(missing) if not count]
    found: list[int] = []
    while ready:
        op = heappop(ready)
        found.append(op)
        for other in later[op]:
            missing[other] -= 1
            if not missing[other]:
                heappush(ready, other)
    return found


def _earlier(graph: TrainingGraph, producer: list[int], live: list[bool]) -> list[list[int]]:
    """Direct predecessors in the order of first executions."""
    earlier: list[list[int]] = []
    last_effect: dict[Phase, int] = {}
    for op in graph.ops:
        found = {producer[s] for s in op.reads if producer[s] >= 0} if live[op.id] else set()
        # Effects keep the program's order within their phase; tangent-free ones may stand in either part of a plan.
        if op.traits and op.phase is not Phase.TANGENT_FREE:
            if op.phase in last_effect:
                found.add(last_effect[op.phase])
            last_effect[op.phase] = op.id
        earlier.append(sorted(found))
    return earlier
