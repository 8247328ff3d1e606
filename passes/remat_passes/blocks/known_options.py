"""Options of blocks that were searched for before, by whichever search: they depend on the block and the turns alone.

A plan is found by several searches, and a graph is planned at several budgets; their blocks are mostly the same.  What
is remembered changes how long a search takes, never what it finds: work is charged as if nothing had been known.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from remat_passes.blocks.options import Options, options_of_block
from remat_passes.blocks.problem import Block

OPTION_BYTES = 600
"""What an option takes beside its operators, about."""

Key = tuple[bytes, int, int, int]
"""The block, the bytes that pass through it, those of tangents, and the turns."""


class KnownOptions:
    """Remembers the options of blocks, for any number of threads.

    Args:
        most_bytes: What they may take, about; those that were not asked for for longest make room.
    """

    def __init__(self, most_bytes: int) -> None:
        self._left = most_bytes
        self._lock = Lock()
        self._known: OrderedDict[Key, Options] = OrderedDict()

    def of(self, block: Block, turns: int) -> Options:
        """The same as `options_of_block`."""
        key = (block.key, block.through_bytes, block.g.tangent_bytes, turns)
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        # Outside of the lock: other threads search meanwhile, at worst for the same.
        found = options_of_block(block, turns)
        with self._lock:
            if key not in self._known:
                self._known[key] = found
                self._left -= _bytes(key, found)
            while self._left < 0:
                self._left += _bytes(*self._known.popitem(last=False))
        return found


def _bytes(key: Key, found: Options) -> int:
    """What one entry takes, about."""
    return len(key[0]) + sum(OPTION_BYTES + one.forward.nbytes + one.stage.nbytes for one in found.options)


KNOWN = KnownOptions(32 << 20)
"""Those of this process."""
