"""The run in a pool watched from within: as plain Python, in a process of its own, since compiled loops cannot be."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import pytest

from builders import LIBRARY, random_problem, with_budget
from remat_compiler.ir.problem import RematProblem
from remat_passes.eviction.pool import AFTER, BYTES, CAPACITY, FREE, FREE_BYTES, HELD, NONE, OWNER, START
from remat_passes.eviction.room import COOP, DTE, DTR, Room
from remat_passes.eviction.traces import PoolOptions, pool_traces
from remat_passes.planning.coop import operator_classes
from remat_passes.planning.save_all import SaveAll
from remat_passes.sequences.profile import KEPT, READS, SIZE, WRITES

SEEDS = range(25)
GRANULARITY = 4


def cases() -> list[tuple[RematProblem, PoolOptions]]:
    """Problems under tight budgets, each in all ways."""
    made: list[RematProblem] = [random_problem(Random(seed)) for seed in SEEDS] + [*LIBRARY.values()]
    found = []
    ways = list(product((DTR, DTE, COOP), (False, True), (False, True), (False, True)))
    for k, problem in enumerate(made):
        most = SaveAll().plan(problem).peak_bytes
        for policy, ends, in_place, kept_first in ways[k % 3 :: 3]:
            options = PoolOptions(policy, ends, in_place, GRANULARITY, 20, kept_first)
            found.append((with_budget(problem, int((0.4 + 0.1 * (k % 5)) * most)), options))
    return found


def plans() -> list[list[int]]:
    """The steps of all traces of all cases."""
    return [
        list(map(int, trace.plan.steps))
        for problem, options in cases()
        for trace in pool_traces(problem, operator_classes(problem), options)
    ]


def check(r: Room) -> None:
    """The chunks fill the pool without a gap, are merged where free, and belong to the storages that are resident."""
    chunks, row, end, free, before = r.pool.chunks, 0, 0, 0, HELD
    owners = []
    while row != NONE:
        assert chunks[row, START] == end
        assert chunks[row, BYTES] > 0 or end == 0
        assert not (chunks[row, OWNER] == FREE and before == FREE)
        end += chunks[row, BYTES]
        free += chunks[row, BYTES] if chunks[row, OWNER] == FREE else 0
        if chunks[row, OWNER] >= 0:
            owners.append(int(chunks[row, OWNER]))
            assert r.chunk[chunks[row, OWNER]] == row
        before, row = chunks[row, OWNER], chunks[row, AFTER]
    assert (end, free) == (r.pool.counters[CAPACITY], r.pool.counters[FREE_BYTES])
    assert len(owners) == len(set(owners))
    for s in range(len(r.chunk)):
        size = r.m.g.storages[s, SIZE]
        if r.m.state[s, 2] and size:
            kept = r.m.g.storages[s, KEPT]
            assert chunks[r.chunk[s], OWNER] in ((s, HELD) if kept else (s,))
            assert size <= chunks[r.chunk[s], BYTES] < size + GRANULARITY
        elif r.chunk[s] != NONE:
            # Only what the caller keeps has a place before it is made.
            assert r.m.g.storages[s, KEPT]


def watch() -> int:
    """Check the pool and the inputs before each operator, in all cases: how many there were."""
    from remat_passes.eviction import pool_run

    module: Any = pool_run
    execute, seen = module.execute, []

    def watched(r: Room, op: int, *rest: Any) -> None:
        check(r)
        for i in range(r.m.g.ops[op, READS], r.m.g.ops[op, WRITES]):
            s = r.m.g.items[i]
            assert r.m.state[s, 2], "an operator reads what was evicted"
            assert r.chunk[s] != NONE or not r.m.g.storages[s, SIZE]
        seen.append(op)
        execute(r, op, *rest)
        check(r)

    module.execute = watched
    found = plans()
    print(json.dumps([found, len(seen)]))
    return len(seen)


@pytest.mark.filterwarnings("ignore")
def test_no_chunks_overlap_and_nothing_evicted_is_read() -> None:
    root = Path(__file__).resolve().parents[2]
    path = os.pathsep.join(map(str, (root, root / "passes", root / "tests", Path(__file__).parent)))
    done = subprocess.run(
        [sys.executable, "-c", "import test_pool_invariants as t; t.watch()"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr
    plain, seen = json.loads(done.stdout.splitlines()[-1])
    assert seen > 1000
    # Compiled, the same traces come out.
    assert plans() == plain
