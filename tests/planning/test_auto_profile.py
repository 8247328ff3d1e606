"""The search's own profile against the one simulator, and compiled loops against the same loops in Python."""

from __future__ import annotations

import os
import subprocess
import sys
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import chain, generators, problems, random_steps, with_budget
from remat_compiler.ir.graph import OpId, Phase
from remat_compiler.ir.json_form import dumps
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.moves.local_search import drop_repeats
from remat_passes.planning.auto import Auto
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.profile import arrays_of, measure


@settings(max_examples=200)
@given(problem=problems(), rng=generators())
def test_measure_equals_the_simulator(problem: RematProblem, rng: Random) -> None:
    plan = random_steps(rng, problem)
    timeline = simulate(problem.graph, problem.costs, plan)
    peak, time, _ = measure(arrays_of(problem), np.array(plan.steps, np.int64), plan.boundary)
    assert (peak, time) == (timeline.peak_bytes, timeline.time_ns)


@settings(max_examples=200)
@given(problem=problems(), rng=generators())
def test_dropping_dead_repeats_keeps_plans_valid_and_never_raises_the_peak(problem: RematProblem, rng: Random) -> None:
    plan = random_steps(rng, problem)
    before = {v.rule for v in verify(problem, plan)}
    steps, boundary = drop_repeats(arrays_of(problem), np.array(plan.steps, np.int64), plan.boundary, 0, 0, 0, 1)
    left = Plan(tuple(map(OpId, steps.tolist())), int(boundary))
    assert {v.rule for v in verify(problem, left)} <= before
    assert simulate(problem.graph, problem.costs, left).time_ns <= simulate(problem.graph, problem.costs, plan).time_ns
    first = {op.id for op in problem.graph.ops if op.phase is not Phase.TANGENT_FREE}
    assert first <= set(left.steps)


@settings(max_examples=25)
@given(problem=problems(), fraction=st.sampled_from([0.5, 0.8]))
def test_every_sequence_of_the_pool_is_a_valid_plan(problem: RematProblem, fraction: float) -> None:
    search = SequenceSearch.of(with_budget(problem, 0), 200, 1)
    search.run()
    asked = with_budget(problem, int(fraction * search.pool[-1].peak))
    for entry in search.pool:
        rules = {v.rule.name for v in verify(asked, entry.plan(), entry.peak)}
        assert rules <= ({"BUDGET", "SAVED"} if entry.barred else {"BUDGET"})


def test_the_same_plan_without_compilation() -> None:
    asked = with_budget(chain(), 90_000)
    program = (
        "from builders import chain, with_budget\n"
        "from remat_passes.planning.auto import Auto\n"
        "from remat_compiler.ir.json_form import dumps\n"
        "print(dumps(Auto(effort=200, time_limit=0.001).plan(with_budget(chain(), 90_000))), end='')\n"
    )
    there = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}\n{program}"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
    )
    assert there.stdout == dumps(Auto(effort=200, time_limit=0.001).plan(asked))
