"""Seeds for budgets just above the smallest peak: sequences for slightly larger budgets, brought within this one.

    budget     +0.3 %       +1 % of the range up to the peak that saves everything
      ├───────────┼───────────┤
      ◄───────────┘           │   gap greedy has little left to evict
      ◄───────────────────────┘

There nearly every evicted value is recomputed next to a peak, and what decides is where few bytes are missing.  The
block DP, whose peaks are estimates, has no plan so near the smallest peak, and gap greedy from the step without
recomputation goes a long way, on which early choices cost dearly.  With slightly more bytes both find cheap plans, of
which few steps are over the budget.
"""

from __future__ import annotations

from remat_passes.search.lowest_peak import SearchFor
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.candidate import SequenceCandidate

TIGHT, TIGHTEST = 0.05, 0.01
"""The `position` up to which seeds are worth their time, and that up to which those from the smallest peak are, too."""
SURELY_ROOMY = 0.25
"""Part of the range from the proved bound above which the smallest peak is not looked for."""
SHARES = (0.003, 0.01)
"""Larger budgets: their distance in parts of the range from the budget to the peak that saves everything."""
EFFORT_SHARE = 2
"""The usual effort is divided by it for each of them."""
SETTINGS = ((0.15, 1), (0.5, 1), (1.0, 1))
"""Share and width of `evict_until_fits`."""
ENTRIES = 3
"""Sequences of each larger budget that are brought within the budget."""


def position(search: SequenceSearch, least: int) -> float:
    """Where the budget stands between the smallest peak (0) and the peak that saves everything (1); 1 if far from 0.

    Args:
        search: Has run.
        least: Bytes below which no plan peaks.
    """
    # What fits without recomputation needs no seeds; then there are no bases.
    if not search.bases:
        return 1.0
    high = search.bases[0].peak
    if search.budget > least + SURELY_ROOMY * (high - least):
        return 1.0
    # A look, no part of the search: what follows must not depend on whether it was taken.
    state, left = search.draw.getstate(), search.work_left
    reached = search.fit(search.bases[0], least, *SETTINGS[0]).peak
    search.draw.setstate(state)
    search.work_left = left
    low = min(reached, *(entry.peak for entry in search.pool))
    return (search.budget - low) / max(high - low, 1)


def tight_seeds(search: SequenceSearch, search_for: SearchFor) -> list[SequenceCandidate]:
    """Sequences from larger budgets; some may still be over the budget."""
    span, found = search.bases[0].peak - search.budget, []
    for share in SHARES:
        larger = search_for(search.budget + int(share * span), EFFORT_SHARE)
        larger.run()
        for entry in larger.pool[:ENTRIES]:
            found += [search.fit(entry, search.budget, *setting) for setting in SETTINGS]
    return found
