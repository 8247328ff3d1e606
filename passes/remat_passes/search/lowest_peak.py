"""The smallest peak that a plan reaches: the range of budgets is halved, from a proved bound to the lowest peak so far.

    proved bound ├──────────── not known ────────────┤ lowest peak so far
                                   ▲ target: reached, and the upper end falls at least to it; or not, and the lower
                                             end rises to it

A search for 0 bytes comes first and gives the upper end.  Then three kinds of search lower it, less and less quickly:

    descents   gap greedy from every order of the step down to the target: a hundredth of a second each
    lowering   the local search from the lowest sequences, each turn for one byte less
    searches   the whole search of `auto` for the target: first just below the lowest peak, then farther below

Gap greedy takes other ways for other targets, since a value is worth evicting only where the target is exceeded; so
even a target that is missed may leave a lower peak than one that was met.  All that is found depends on the graph and
the limits alone, never on a budget: who is refused one is told a peak that can be asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np

from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.floor import peak_floor
from remat_passes.search.sequence_search import GREEDY_SETTINGS, SequenceSearch

DESCENTS, DESCENT_WORK = 12, 28_000_000
"""Targets of descents, at most, and the work after which none is begun; a search's usual work, if that is more."""
LOWERING, MOST_LOWERING = 3, 12_000_000
"""Without other work, lowering gets so many times the usual work of a search, and at most that."""
FINE, COARSE = 1_000, 200
"""Parts of the peak: a range that is shorter than one of them is not halved by descents, or by searches."""
SEARCHES = 8
"""Targets of whole searches, at most; each search but the first has that part of the usual effort."""
DISTANCE = 16
"""The part of the range by which a target is below the lowest peak; half of it after each miss."""
SEARCH_OPERATOR_WORK = 12_000
"""Work of one of them for each operator, about: it is mostly spent on cutting the graph and on first sequences."""
SEARCH_SHARE = 0.75
"""Part of the work that whole searches may take."""
ENTRIES = 8
"""Sequences of each search that are looked at."""

SearchFor = Callable[[int, int], SequenceSearch]
"""A search that has not run: its budget in bytes, and the number by which the usual effort is divided."""


def least_bytes(problem: RematProblem) -> int:
    """Bytes below which no plan peaks, proved: the lower end of the range."""
    return peak_floor(problem.graph, problem.costs).peak_bytes


def lowest_peak(search_for: SearchFor, least: int, work: int, plans: Iterable[Plan] = ()) -> SequenceSearch:
    """A search for 0 bytes that is done; its best sequence is the one of the smallest peak within the time limit.

    Args:
        search_for: Makes searches for the problem.
        least: Bytes below which no plan peaks.
        work: Work for searches and for lowering, in steps visited; the search for 0 bytes and the descents come on top.
        plans: Plans of low peaks that other planners found.
    """
    search = search_for(0, 1)
    usual = search.work_left
    search.run()
    search.keep([search.trimmed(np.array(plan.steps, np.int64), plan.boundary) for plan in plans])
    _descend(search, least, max(usual, DESCENT_WORK))
    if not _is_least(search, least):
        share = int(SEARCH_SHARE * work)
        search.lower(max(work - share, min(LOWERING * usual, MOST_LOWERING)))
        _search_below(search_for, search, least, share)
    return search


def _descend(search: SequenceSearch, least: int, work: int) -> None:
    """Halve the range by gap greedy from each order of the step."""
    low, search.work_left = least, work
    for turn in range(DESCENTS):
        high = search.pool[0].peak
        if high - low <= high // FINE or search.work_left <= 0:
            break
        target = (low + high) // 2
        setting = GREEDY_SETTINGS[turn % len(GREEDY_SETTINGS)]
        search.keep([search.fit(base, target, *setting) for base in search.bases])
        low = _raised(search, low, target)


def _search_below(search_for: SearchFor, search: SequenceSearch, least: int, work: int) -> None:
    """Whole searches for targets below the lowest peak, as far as there is work for them."""
    low, part = least, DISTANCE
    lowest = min(search.pool, key=lambda entry: entry.peak)
    # A lower peak is known that takes too long.  Time is what the descents do not spare, so whole searches have to find
    # out how much of the way there the time limit allows: by halves, since both ends are near.
    slow = lowest.peak < search.pool[0].peak or search.pool[0].barred
    if slow:
        low, part = lowest.peak, 2
    for turn in range(SEARCHES):
        high = search.pool[0].peak
        if high - low <= (0 if turn == 0 else high // COARSE) or not (turn == 0 or slow or work > 0):
            break
        # Just below first, however little work there is: who is refused would ask for that next.
        target = high - 1 if turn == 0 else high - max((high - low) // part, 1)
        probe = search_for(target, 1 if turn == 0 else SEARCHES)
        probe.run()
        search.keep(sorted(probe.pool, key=search.rank)[:ENTRIES])
        work -= SEARCH_OPERATOR_WORK * len(search.g.ops)
        # A miss just below says nothing of the targets far below.
        if turn and slow:
            low = _raised(search, low, target)
        elif turn and search.pool[0].peak > target:
            part *= 2


def _raised(search: SequenceSearch, low: int, target: int) -> int:
    """The lower end after a try at `target`."""
    best = search.pool[0]
    return low if best.peak <= target and not best.barred else target


def _is_least(search: SequenceSearch, least: int) -> bool:
    """Whether nothing lower is possible."""
    return search.pool[0].peak <= least and not search.pool[0].barred
