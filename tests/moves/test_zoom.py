"""A zoom has the profile of the sequence that it shows, and what changes in it changes the sequence alike."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given, settings

from builders import generators, problems, random_steps, with_budget
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.moves.climb import Climber, climb
from remat_passes.moves.gap_greedy import evict_until_fits
from remat_passes.moves.local_search import drop_repeats
from remat_passes.moves.zoom import Zoom, region, whole, zoom
from remat_passes.sequences.candidate import SequenceCandidate
from remat_passes.sequences.profile import REPEATABLE, Arrays, BoolArray, IntArray, arrays_of, find_live, measure

NO_LIMIT = 1 << 62


def drawn(problem: RematProblem, rng: Random) -> tuple[Arrays, IntArray, int, BoolArray]:
    """A valid sequence of a problem, its boundary, and some repeatable operators."""
    g, plan = arrays_of(problem), random_steps(rng, problem)
    first = {op: p for p, op in reversed(list(enumerate(plan.steps)))}
    stays = [first[op] == p or bool(g.ops[op, REPEATABLE]) for p, op in enumerate(plan.steps)]
    allowed = [op for op, stay in zip(plan.steps, stays) if stay]
    steps, boundary = drop_repeats(g, np.array(allowed, np.int64), sum(stays[: plan.boundary]), 0, 0, 0, 1)
    inside = np.array([bool(row[REPEATABLE]) and rng.random() < 0.4 for row in g.ops], np.bool_)
    return g, steps, int(boundary), inside


def stands_for(view: Zoom, steps: IntArray) -> list[range]:
    """The steps of the sequence that each step of a zoom stands for."""
    found, p = [], 0
    for k in view.steps.tolist():
        place = k - len(view.ops)
        length = 1 if place < 0 else int(view.end[place] - view.begin[place])
        if place < 0:
            assert steps[p] == view.ops[k]
        found.append(range(p, p + length))
        p += length
    assert p == len(steps)
    return found


@settings(max_examples=200)
@given(problem=problems(), rng=generators())
def test_the_profile_is_that_of_the_sequence(problem: RematProblem, rng: Random) -> None:
    g, steps, boundary, inside = drawn(problem, rng)
    view = zoom(g, steps, boundary, inside)
    live, small = find_live(g, steps, boundary), find_live(view.g, view.steps, view.boundary)
    spans = stands_for(view, steps)
    assert small.tolist() == [max(live[p] for p in span) for span in spans]
    assert sum(len(span) for span in spans[: view.boundary]) == boundary
    assert len(view.steps) <= len(steps)


@settings(max_examples=200)
@given(problem=problems(), rng=generators())
def test_what_was_not_changed_comes_back(problem: RematProblem, rng: Random) -> None:
    g, steps, boundary, inside = drawn(problem, rng)
    view = zoom(g, steps, boundary, inside)
    again, bound = whole(g, steps, view, view.steps, view.boundary)
    assert (again.tolist(), bound) == (steps.tolist(), boundary)


@settings(max_examples=200)
@given(problem=problems(), rng=generators())
def test_what_fits_in_the_zoom_fits_in_the_sequence(problem: RematProblem, rng: Random) -> None:
    g, steps, boundary, inside = drawn(problem, rng)
    peak, time, _ = measure(g, steps, boundary)
    view = zoom(g, steps, boundary, inside)
    outside = time - measure(view.g, view.steps, view.boundary)[1]
    target = int(peak * rng.choice([0.7, 0.9, 1.0]))
    new, bound, small_peak, _ = evict_until_fits(view.g, view.steps, view.boundary, target, 0.5, 1, 0.0, 1, 8, NO_LIMIT)
    longer, boundary = whole(g, steps, view, new, bound)
    new_peak, new_time, _ = measure(g, longer, boundary)
    assert new_peak <= small_peak
    assert new_time <= measure(view.g, new, bound)[1] + outside


@settings(max_examples=100)
@given(problem=problems(), rng=generators())
def test_a_region_grows_to_what_is_asked_for(problem: RematProblem, rng: Random) -> None:
    g, steps, _, inside = drawn(problem, rng)
    before, most = inside.copy(), rng.randrange(1, 10)
    found = region(g, steps, rng.randrange(len(steps)) if len(steps) else 0, most, inside)
    assert found == int(inside.sum() - before.sum()) <= most
    assert all(g.ops[op, REPEATABLE] for op in np.flatnonzero(inside))
    assert bool((inside >= before).all())


@settings(max_examples=60)
@given(problem=problems(), rng=generators())
def test_turns_never_leave_the_budget_and_never_lose_time(problem: RematProblem, rng: Random) -> None:
    g, steps, boundary, _ = drawn(problem, rng)
    start = SequenceCandidate.of(g, steps, boundary, NO_LIMIT)
    if start.barred:
        return
    best, bound, now, now_bound, _ = climb(g, steps, boundary, start.peak, NO_LIMIT, 0, 6, rng.randrange(1 << 20))
    for entry in (SequenceCandidate.of(g, best, bound, NO_LIMIT), SequenceCandidate.of(g, now, now_bound, NO_LIMIT)):
        assert verify(with_budget(problem, start.peak), entry.plan(), entry.peak) == []
    assert (measure(g, best, bound)[1], measure(g, best, bound)[0]) <= (start.time, start.peak)


@settings(max_examples=40)
@given(problem=problems(), rng=generators())
def test_climbing_in_zooms_never_leaves_the_budget(problem: RematProblem, rng: Random) -> None:
    g, steps, boundary, _ = drawn(problem, rng)
    start = SequenceCandidate.of(g, steps, boundary, NO_LIMIT)
    if start.barred or boundary == len(steps):
        return
    climber = Climber(g, start.peak, NO_LIMIT, problem.costs.step_ns, Random(rng.randrange(1 << 20)))
    now = start
    for _ in range(6):
        best, now, _ = climber._zoomed(now, 4, 1)
        for entry in (best, now):
            assert verify(with_budget(problem, start.peak), entry.plan(), entry.peak) == []
