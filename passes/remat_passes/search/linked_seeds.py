"""Sequences from linked instants: what their program holds, made to fit, and climbed from for a while."""

from __future__ import annotations

import numpy as np

from remat_passes.bounds.linked import LinkedEffort
from remat_passes.bounds.lower_bound import BoundEffort
from remat_passes.bounds.seeds import linked_seed
from remat_passes.bounds.solved import USUAL_WORK
from remat_passes.moves.climb import Climber
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.candidate import SequenceCandidate

COUNTS, INSTANT_WORK = (8, 16), 1_500
"""Instants of the programs, which hold different values; and the work for one and each operator, without which none is
begun."""
CLIMB_WORK, CLIMB_IDLE = 2_000_000, 60
"""Work of the climb from each sequence, and zooms without improvement after which it ends."""


def keep_linked_seeds(search: SequenceSearch, work: int) -> int:
    """Keep the sequences in the pool; the work done.

    Args:
        search: The search, which has run.
        work: Work that may be done: a program that takes more, about, is not begun, and ends when it is spent.
    """
    left, spent, before = search.work_left, 0, None
    # A better sequence may have another order, in which other values are held.
    while search.pool[0] is not before:
        before = search.pool[0]
        for count in COUNTS:
            if work - spent >= count * INSTANT_WORK * len(search.g.ops):
                spent += _keep_linked_seed(search, count, before, work - spent)
    search.work_left = left
    return spent


def _keep_linked_seed(search: SequenceSearch, count: int, like: SequenceCandidate, most_work: int) -> int:
    """The sequence of `count` instants in the order of `like`; the work done, `most_work` of it for their program."""
    # Only what is held counts here, not the bound of the order: few single instants, and no whole numbers.
    program = LinkedEffort(most_work=min(most_work, USUAL_WORK), largest_whole=0)
    effort = BoundEffort(instants=8, near=0, splits=0, linked=count, program=program)
    seed = linked_seed(search.problem, search.index, like.plan(), effort)
    if seed.plan is None:
        return seed.work
    search.work_left = CLIMB_WORK
    entry = search.fitted(np.array(seed.plan.steps, np.int64), seed.plan.boundary)
    search.keep([entry])
    if search.fits(entry):
        climber = Climber(search.g, search.budget, search.limit_ns, search.once, search.draw)
        climbed, search.work_left = climber.run(entry, max(search.work_left, 0), CLIMB_IDLE)
        search.keep([climbed])
    return seed.work + CLIMB_WORK - search.work_left
