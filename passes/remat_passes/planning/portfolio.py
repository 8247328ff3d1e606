"""What `auto` tries after its quick search, with an amount of work that stands for a time limit.

    blocks    plans of the block DP over few large blocks, with options that were searched for thoroughly
    greedy    the planner `greedy`, which ends elsewhere, on small graphs
    climb     from the best of each of them for a while, and then from what came best
    regions   of the best sequence by integer programs, from the second round on

These make a round.  Where there is work left, another follows with twice the work, other blocks and more patience;
the best sequence of all wins.  Nothing is tried once the lower bound is met.  Work is counted in steps visited, never
in seconds: the same problem gives the same plan on any machine, in any run, on every rank (from the second round on,
with the same solver installed).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from remat_compiler.progress import progress
from remat_passes.bounds.lower_bound import lower_bound_ns
from remat_passes.planning.climb import MAX_IDLE, Climber
from remat_passes.planning.entry import Entry
from remat_passes.planning.exact_regions import solve_region
from remat_passes.planning.greedy import Greedy
from remat_passes.planning.hierarchical import BLOCK_COUNTS, block_plans
from remat_passes.planning.search import Search

WORK_PER_SECOND = 25_000_000
"""Steps visited that stand for one second."""
FIRST_ROUND = 50_000_000
"""Work of the first round; each further one has twice that of the one before."""
BLOCK_SHARE = 0.25
"""Part of the work for the options of blocks."""
REGIONS = 8
"""Regions that are solved exactly in the second round; in the third one twice as many."""
GREEDY_WORK, GREEDY_OPERATORS = 7_000_000, 1_500
"""What `greedy` takes, about, and the largest graph on which it is tried."""
STARTS, START_SHARE, START_IDLE = 6, 0.1, 60
"""Sequences that are climbed from at first, the part of the work for each, and zooms without improvement."""
PROVEN = 1e-3
"""Relative gap to the lower bound at which nothing more is tried."""


def improve(search: Search, work: int) -> Entry:
    """The best entry after `work` more; `search` has run."""
    enough_ns = search.once + int(lower_bound_ns(search.problem).bound_ns * (1.0 + PROVEN)) if work else 0
    with progress("improving the plan") as bar:
        for turn, share in enumerate(_rounds(work)):
            if search.solved and search.pool[0].time <= enough_ns:
                break
            search.work_left = share
            _round(search, turn)
            bar.advance()
    return search.pool[0]


def _rounds(work: int) -> Iterator[int]:
    """The work of each round, `work` in all."""
    size = FIRST_ROUND
    while work > 0:
        yield min(size, work)
        work, size = work - size, 2 * size


def _round(search: Search, turn: int) -> None:
    """All stages once."""
    counts = [max(count * 2 // (2 + turn), 2) for count in BLOCK_COUNTS]
    found = [search.pool[:1], *block_plans(search, counts, BLOCK_SHARE)]
    if turn == 0:
        found.append(list(_greedy(search)))
    search.keep([entry for entries in found[1:] for entry in entries])
    if search.solved:
        _climb(search, [entries[0] for entries in found if entries], turn)
    if search.solved and turn > 0:
        _solve_regions(search, REGIONS * turn)


def _greedy(search: Search) -> Iterator[Entry]:
    """The plan of `greedy` on small graphs, where there is work left for it."""
    if search.work_left > 2 * GREEDY_WORK and len(search.g.ops) <= GREEDY_OPERATORS:
        search.work_left -= GREEDY_WORK
        plan = Greedy().plan(search.problem).plan
        if plan is not None:
            yield search.trimmed(np.array(plan.steps, np.int64), plan.boundary)


def _climb(search: Search, found: Sequence[Entry], turn: int) -> None:
    """Climb from the best of `found` for a while, then from what came best."""
    climber = Climber(search.g, search.budget, search.limit_ns, search.once, search.draw)
    starts: dict[tuple[int, int, int], Entry] = {}
    for entry in found:
        if search.fits(entry):
            starts.setdefault((entry.boundary, entry.time, entry.peak), entry)
    share, ends = int(START_SHARE * search.work_left), []
    for entry in sorted(starts.values(), key=search.rank)[:STARTS]:
        best, left = climber.run(entry, share, START_IDLE * (1 + turn))
        search.work_left -= share - left
        ends.append(best)
    best, search.work_left = climber.run(min(ends, key=search.rank), search.work_left, MAX_IDLE * (1 + turn))
    search.keep([best, *ends])


def _solve_regions(search: Search, count: int) -> None:
    """Solve up to `count` regions of the best entry exactly."""
    for _ in range(count):
        best = search.pool[0]
        search.keep([solve_region(search.g, best, search.budget, search.limit_ns, search.draw)])
