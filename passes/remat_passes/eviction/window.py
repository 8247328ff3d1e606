"""Coop's sliding window: the contiguous chunks of a pool that make room for a request and cost least.

    chunk     a        free     b        c        free         a request of 300 bytes
    bytes     100      50       200      100      200
    cost      5        0        3        9        0
                       [----------------]                      350 bytes for 12
                                         [--------------]      300 bytes for 9: the cheapest window

Source: Zhang et al., *Coop*, NeurIPS 2023, section 3.3.  Tensors stand in a list by address, free chunks among them at
no cost; two pointers find in one sweep, O(N), the subsequence whose bytes reach the request and whose cost is least.
Chunks that cannot be evicted end every window (the paper leaves this out).  Of windows of equal cost we take the one of
the fewest bytes, then the leftmost, where the paper leaves it open.
"""

from __future__ import annotations

from remat_passes.eviction.pool import AFTER, BYTES, NONE, Pool
from remat_passes.sequences.jit import inner
from remat_passes.sequences.profile import FloatArray


@inner
def cheapest_window(pool: Pool, costs: FloatArray, size: int) -> tuple[int, int]:
    """First and last row of the window, both inclusive; `NONE` twice if no window is large enough.

    Args:
        pool: The chunks.
        costs: Of evicting each chunk, by row: at least 0, and 0 for a free chunk; negative if it cannot be evicted.
        size: Bytes wanted.
    """
    best_first, best_last, lowest, fewest = NONE, NONE, 0.0, 0
    first, total, cost = 0, 0, 0.0
    row = 0
    while row != NONE:
        after = pool.chunks[row, AFTER]
        if costs[row] < 0:
            first, total, cost = after, 0, 0.0
            row = after
            continue
        total += pool.chunks[row, BYTES]
        cost += costs[row]
        # No cost is negative, so of the windows that end here the shortest that suffices is the cheapest.
        while total - pool.chunks[first, BYTES] >= size:
            total -= pool.chunks[first, BYTES]
            cost -= costs[first]
            first = pool.chunks[first, AFTER]
        if total >= size and (best_first == NONE or cost < lowest or (cost == lowest and total < fewest)):
            best_first, best_last, lowest, fewest = first, row, cost, total
        row = after
    return best_first, best_last
