"""Every allocation of a planned step, with the steps at which it is made and freed: what an allocator gets to see.

`timeline` adds up bytes; an allocator also minds in which pieces they come.  At every step the sizes of what is alive
add up to `MemoryTimeline.live_bytes`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace

from remat_compiler.ir.graph import OpId, StorageId, StorageKind
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import MemoryTimeline, simulate


@dataclass(frozen=True, slots=True)
class Life:
    """An allocation that is alive at the moments ``made <= i < freed``; to the end and beyond if `freed` is `None`."""

    size_bytes: int
    made: int
    freed: int | None = None


@dataclass(frozen=True, slots=True)
class OwnedLife:
    """An allocation and what it is for.

    Attributes:
        storage: The storage that it holds, the last one where several share it; `None` for what operators take inside.
        life: When it is alive.
    """

    storage: StorageId | None
    life: Life


def storage_lives(problem: RematProblem, plan: Plan) -> list[Life]:
    """What executing a valid plan allocates: results, tangents, and what operators take inside.

    A result that takes over an argument's memory (`CostTable.workspace_bytes` below 0) is one allocation with it.
    What the caller holds afterwards is never freed.
    """
    return [owned.life for owned in owned_lives(problem, plan)]


def owned_lives(problem: RematProblem, plan: Plan) -> list[OwnedLife]:
    """As `storage_lives`, with the storage that each of them holds."""
    graph = problem.graph
    timeline = simulate(graph, problem.costs, plan)
    made = _instances(problem, timeline, len(plan.steps))
    tangents = [
        OwnedLife(s.id, Life(s.size_bytes, plan.boundary)) for s in graph.storages if s.kind is StorageKind.TANGENT
    ]
    inside = [OwnedLife(None, life) for life in _inside(problem, plan)]
    return [*_joined(problem, plan, made), *inside, *tangents]


def _joined(problem: RematProblem, plan: Plan, made: list[tuple[int, Life]]) -> list[OwnedLife]:
    """The instances, those that share memory as one."""
    back = {(one.storage, one.back_before) for one in plan.transfers}
    came_back = {n for n, (storage, life) in enumerate(made) if (storage, life.made) in back}
    starting, ending = defaultdict(list), defaultdict(list)
    for n, (_, life) in enumerate(made):
        starting[life.made].append(n)
        ending[life.freed].append(n)
    gone: set[int] = set()
    for step, op in enumerate(plan.steps):
        reads, writes = problem.graph.ops[op].reads, problem.graph.ops[op].writes
        if problem.costs.workspace_bytes[op] >= 0:
            continue
        size = problem.graph.storages[writes[0]].size_bytes
        arguments = [n for n in ending[step + 1] if made[n][0] in reads and made[n][1].size_bytes == size]
        # As in the timeline: if one of them has been away, it may be the only one that would have served.
        arguments = [] if came_back.intersection(arguments) else arguments
        results = [n for n in starting[step] if made[n][0] in writes and made[n][1].size_bytes == size]
        for argument, result in zip(arguments[:1], results[:1]):
            storage, life = made[result]
            # Steps are walked in order, so that each link of a chain of such operators has all before it.
            made[result] = storage, replace(life, made=made[argument][1].made)
            gone.add(argument)
    return [OwnedLife(StorageId(storage), life) for n, (storage, life) in enumerate(made) if n not in gone]


def _inside(problem: RematProblem, plan: Plan) -> list[Life]:
    """What is alive during one step alone: workspaces, and the generator's own state while another is replayed."""
    found, seen = [], set()
    for step, op in enumerate(plan.steps):
        replay = problem.graph.ops[op].replay
        sizes = [_own_workspace_bytes(problem, op)]
        if replay is not None and op in seen:
            sizes.append(problem.graph.storages[replay].size_bytes)
        seen.add(op)
        found += [Life(size, step, step + 1) for size in sizes if size > 0]
    return found


def _own_workspace_bytes(problem: RematProblem, op: OpId) -> int:
    """What an operator takes inside, without what its result takes over."""
    workspace = problem.costs.workspace_bytes[op]
    if workspace >= 0:
        return workspace
    return workspace + problem.graph.storages[problem.graph.ops[op].writes[0]].size_bytes


def _instances(problem: RematProblem, timeline: MemoryTimeline, num_steps: int) -> list[tuple[int, Life]]:
    """Each storage with the life of each of its instances, in parts if it is off the device meanwhile."""
    storages, instances = problem.graph.storages, timeline.instances
    away = defaultdict(list)
    for one in timeline.transfers:
        away[int(one.storage)].append(one)
    found = []
    for s, start, last in zip(instances.storage.tolist(), instances.start.tolist(), instances.last.tolist()):
        made = start
        for one in sorted(away[s], key=lambda one: one.out_after):
            if made <= one.out_after <= last:
                found.append((s, Life(storages[s].size_bytes, made, one.out_after)))
                made = one.back_before
        held = storages[s].kept and last == num_steps - 1
        found.append((s, Life(storages[s].size_bytes, made, None if held else last + 1)))
    return found
