"""Regions solved exactly: a zoom in the form of a problem has the same peak, what comes out is valid and cheaper."""

from __future__ import annotations

from math import inf
from random import Random

import numpy as np
import pytest

from builders import LIBRARY, TRAINING, random_problem, residual, with_budget
from remat_compiler.ir.invariants import check_graph
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.moves.zoom import region, zoom
from remat_passes.planning.save_all import SaveAll
from remat_passes.search.exact_regions import closed, solve_region, zoomed_problem
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.candidate import SequenceCandidate
from remat_passes.sequences.profile import measure


def found_by_search(problem: RematProblem, fraction: float, effort: int) -> tuple[SequenceSearch, SequenceCandidate]:
    """A search for a fraction of the peak, and the sequence that it ended with."""
    search = SequenceSearch.of(with_budget(problem, int(fraction * SaveAll().plan(problem).peak_bytes)), effort, 1)
    return search, search.run()


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("family", [*TRAINING, "random"])
def test_a_zoom_is_a_problem_of_the_same_peak_and_time(family: str, seed: int) -> None:
    problem = random_problem(Random(seed), forwards=30, backwards=30) if family == "random" else LIBRARY[family]
    search, entry = found_by_search(problem, 0.6, 100)
    inside = np.zeros(len(search.g.ops), np.bool_)
    region(search.g, entry.steps, Random(seed).randrange(entry.boundary, len(entry.steps)), 12, inside)
    inside = closed(search.g, entry.steps, entry.boundary, inside)
    if inside is None:
        pytest.skip("no problem of its own")
    view = zoom(search.g, entry.steps, entry.boundary, inside)
    zoomed = zoomed_problem(view, search.budget)
    check_graph(zoomed.problem.graph)
    peak, time, _ = measure(view.g, view.steps, view.boundary)
    timeline = simulate(zoomed.problem.graph, zoomed.problem.costs, zoomed.plan)
    assert (timeline.peak_bytes, timeline.time_ns) == (peak, time)
    assert not verify(with_budget(zoomed.problem, int(peak)), zoomed.plan, int(peak))


@pytest.mark.parametrize("family", TRAINING)
def test_what_comes_out_is_valid_and_no_slower(family: str) -> None:
    search, entry = found_by_search(LIBRARY[family], 0.6, 5)
    if not search.solved:
        pytest.skip("nothing fits")
    draw = Random(1)
    for _ in range(3):
        better = solve_region(search.g, entry, search.budget, search.limit_ns, draw, inf).entry
        assert better.time <= entry.time
        assert not verify(search.problem, better.plan(), better.peak)
        entry = better


def test_a_needless_repetition_is_found() -> None:
    """A sequence that fits with two operators run again for nothing is brought back to what it was."""
    search, entry = found_by_search(residual(blocks=6), 0.5, 2_000)
    steps = entry.steps.tolist()
    op = next(op for op in steps[entry.boundary :] if steps[: entry.boundary].count(op))
    place = entry.boundary + steps[entry.boundary :].index(op)
    worse = SequenceCandidate.of(
        search.g, np.array([*steps[:place], op, *steps[place:]]), entry.boundary, search.limit_ns
    )
    assert worse.time > entry.time
    assert worse.peak <= search.budget
    found = [solve_region(search.g, worse, search.budget, search.limit_ns, Random(seed), inf) for seed in range(6)]
    assert min(one.entry.time for one in found) <= entry.time
    assert all(one.work > 0 for one in found)
    # Without work for a program none is solved, and looking for the region is still counted.
    idle = solve_region(search.g, worse, search.budget, search.limit_ns, Random(0), 0)
    assert idle.entry is worse
    assert 0 < idle.work < found[0].work
