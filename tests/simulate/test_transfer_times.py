"""Copies beside a step: against a model that goes nanosecond by nanosecond, and where all can be told by hand."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import ProblemBuilder, generators, problems, random_steps
from remat_compiler.ir.graph import OpId, Phase, StorageId, StorageKind
from remat_compiler.ir.plan import Plan, Tier, Transfer
from remat_compiler.ir.problem import Link, RematProblem
from remat_compiler.simulate.arrays import GraphArrays
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.transfers import Copies, TransferTimes, transfer_times
from transfers_at_random import possible_transfers

LINKS = (Link(Tier.HOST, 10**9, 5 * 10**8, 1), Link(Tier.DISK, 25 * 10**7, 5 * 10**8))


def times_of(problem: RematProblem, plan: Plan, links: Sequence[Link] = LINKS) -> TransferTimes:
    """`transfer_times` with links."""
    costs = replace(problem.costs, links=tuple(links))
    found = transfer_times(
        GraphArrays.of(problem.graph, costs), np.array(plan.steps, np.int64), plan.boundary, plan.transfers
    )
    timeline = simulate(problem.graph, costs, plan)
    assert (timeline.time_ns, timeline.stall_ns) == (found.time_ns, found.stall_ns)
    executions = sum(costs.time_ns[op] for op in plan.steps) - sum(costs.time_ns[op] for op in set(plan.steps))
    assert timeline.added_ns == executions + found.stall_ns + found.drag_ns
    return found


@dataclass
class Queue:
    """Copies that go one after the other."""

    waiting: deque[tuple[int, int]]
    running: int | None = None
    end: int = 0


def slowly(problem: RematProblem, plan: Plan) -> tuple[int, list[tuple[int, int, int, int]]]:
    """Time of the step, and of its copies, by a clock that ticks."""
    graph, ops, link = problem.graph, problem.graph.ops, {one.tier: one for one in LINKS}
    queues = {(tier, back): Queue(deque()) for tier in Tier for back in (False, True)}
    begun: dict[tuple[int, bool], int] = {}
    ended: dict[tuple[int, bool], int] = {}
    asked: set[int] = set()
    now, step, ends_at, reached = 0, 0, None, -1

    def moves() -> bool:
        """Whatever can happen at this moment, one thing at a time."""
        nonlocal step, ends_at, reached
        for (_, back), queue in queues.items():
            if queue.running is not None and now == queue.end:
                ended[queue.running, back], queue.running = now, None
                return True
        if ends_at == now:
            made = [i for i, one in enumerate(plan.transfers) if last_write(one) == step]
            for i in sorted(made, key=lambda i: (plan.transfers[i].out_after, i)):
                queues[plan.transfers[i].tier, False].waiting.append((i, now))
            step, ends_at = step + 1, None
            return True
        if ends_at is None and step < len(plan.steps):
            gone = [i for i, one in enumerate(plan.transfers) if one.out_after == step]
            if all((i, False) in ended for i in gone):
                if reached < step:
                    reached = step
                    due = [i for i, one in enumerate(plan.transfers) if one.back_before == step]
                    for i in sorted(due, key=lambda i: (next_read(plan.transfers[i]), i)):
                        queues[plan.transfers[i].tier, True].waiting.append((i, now))
                        asked.add(i)
                    return True
                needed = [i for i, one in enumerate(plan.transfers) if next_read(one) == step]
                if all((i, True) in ended for i in needed):
                    ends_at = now + problem.costs.time_ns[plan.steps[step]]
                    return True
        for (tier, back), queue in queues.items():
            if queue.running is None and queue.waiting:
                i, _ = queue.waiting.popleft()
                size = graph.storages[plan.transfers[i].storage].size_bytes
                queue.running, begun[i, back] = i, now
                queue.end = now + (link[tier].back_ns if back else link[tier].out_ns)(size)
                return True
        return False

    def last_write(one: Transfer) -> int:
        made = [n for n, op in enumerate(plan.steps[: one.out_after]) if one.storage in ops[op].writes][-1]
        return made if one.out_after <= plan.boundary else max(made, plan.boundary - 1)

    def next_read(one: Transfer) -> int:
        after = range(one.back_before, len(plan.steps))
        read = next(n for n in after if one.storage in ops[plan.steps[n]].reads)
        return read if one.back_before >= plan.boundary else min(read, plan.boundary)

    while step < len(plan.steps):
        while moves():
            pass
        now += step < len(plan.steps)
    ways = range(len(plan.transfers))
    return now, [(begun[i, False], ended[i, False], begun[i, True], ended[i, True]) for i in ways]


@settings(max_examples=200, deadline=None)
@given(problem=problems(), rng=generators(), repeats=st.integers(0, 10))
def test_copies_run_as_by_a_clock(problem: RematProblem, rng: Random, repeats: int) -> None:
    small = tuple(replace(s, size_bytes=s.size_bytes % 16) for s in problem.graph.storages)
    times = tuple(rng.randrange(6) for _ in problem.graph.ops)
    problem = replace(
        problem, graph=replace(problem.graph, storages=small), costs=replace(problem.costs, time_ns=times)
    )
    plan = random_steps(rng, problem, repeats)
    apart = {int(one.storage): one for one in possible_transfers(problem.graph, plan)}
    moved = [replace(one, tier=rng.choice(list(Tier))) for one in apart.values()]
    plan = replace(plan, transfers=tuple(moved))
    found = times_of(problem, plan)
    time_ns, copies = slowly(problem, plan)
    assert found.time_ns == time_ns
    assert found.stall_ns == time_ns - sum(problem.costs.time_ns[op] for op in plan.steps)
    assert found.copies == tuple(Copies(*one) for one in copies)


@settings(max_examples=100)
@given(problem=problems(), rng=generators())
def test_slower_links_never_help(problem: RematProblem, rng: Random) -> None:
    plan = random_steps(rng, problem, 3)
    apart = {int(one.storage): one for one in possible_transfers(problem.graph, plan)}
    plan = replace(plan, transfers=tuple(apart.values()))
    times = [times_of(problem, plan, [Link(Tier.HOST, rate, rate)]).time_ns for rate in (10**12, 10**10, 10**8, 10**6)]
    assert times == sorted(times)


def step_of_four(out_after: int, back_before: int) -> tuple[RematProblem, Plan]:
    """A value of 100 bytes that the first of four operators makes and the last one reads, 10 ns each."""
    b = ProblemBuilder()
    data = b.storage(1, StorageKind.INPUT)
    held = b.forward([data], 100)
    between = b.forward([b.forward([data], 1)], 1)
    b.run(Phase.FORWARD, [held, between], [(1, StorageKind.OUTPUT)])
    problem = b.problem()
    plan = Plan.saving_all(problem.graph)
    return problem, replace(plan, transfers=(Transfer(held, out_after, back_before),))


@pytest.mark.parametrize(
    ("out_after", "back_before", "bandwidth", "stall_ns"),
    [
        (1, 3, 10 * 10**9, 20),
        (2, 3, 10 * 10**9, 10),
        (1, 2, 10 * 10**9, 10),
        # Twice as fast, half as long.
        (1, 3, 20 * 10**9, 10),
    ],
)
def test_a_copy_hides_behind_what_runs_meanwhile(
    out_after: int, back_before: int, bandwidth: int, stall_ns: int
) -> None:
    problem, plan = step_of_four(out_after, back_before)
    found = times_of(problem, plan, [Link(Tier.HOST, bandwidth, bandwidth)])
    assert (found.time_ns, found.stall_ns) == (40 + stall_ns, stall_ns)
    copied_ns = 100 * 10**9 // bandwidth
    (copies,) = found.copies
    assert copies.out_end_ns - copies.out_begin_ns == copies.back_end_ns - copies.back_begin_ns == copied_ns
    assert copies.out_begin_ns == 10


def test_without_transfers_nothing_waits() -> None:
    problem, plan = step_of_four(1, 3)
    found = times_of(problem, replace(plan, transfers=()))
    assert (found.time_ns, found.stall_ns, found.copies) == (40, 0, ())


@pytest.mark.parametrize(("percent", "drag_ns"), [(0, 0), (50, 2), (100, 5)])
def test_copies_slow_down_what_does_not_wait_for_them(percent: int, drag_ns: int) -> None:
    """Both copies take 64 ns, and for 123 of these 128 the step waits."""
    b = ProblemBuilder()
    value = b.forward([b.storage(8, StorageKind.INPUT)], 64)
    b.run(Phase.FORWARD, [value], [(4, StorageKind.OUTPUT)], time=5)
    grad = b.storage(8, StorageKind.TANGENT)
    (flow,) = b.run(Phase.BACKWARD, [grad], [(8, StorageKind.TEMPORARY)], time=5)
    b.run(Phase.BACKWARD, [flow, value], [(8, StorageKind.GRADIENT)])
    plan = Plan(tuple(map(OpId, range(4))), 2, (Transfer(StorageId(1), 2, 2 + 1, Tier.HOST),))
    problem = replace(b.problem(), offload_bytes=1 << 20)
    found = times_of(problem, plan, [Link(Tier.HOST, 10**9, 10**9, 0, percent)])
    assert (found.stall_ns, found.drag_ns) == (123, drag_ns)
    assert found.time_ns == 10 + 5 + 5 + 10 + 123 + drag_ns


@pytest.mark.parametrize("begin_ns", [0, 7])
def test_each_copy_takes_time_of_the_step_as_it_is_begun(begin_ns: int) -> None:
    problem, plan = step_of_four(1, 3)
    found = times_of(problem, plan, [replace(LINKS[0], begin_ns=begin_ns)])
    free = times_of(problem, plan, [LINKS[0]])
    assert (found.copies, found.stall_ns) == (free.copies, free.stall_ns)
    assert found.time_ns == free.time_ns + 2 * begin_ns
