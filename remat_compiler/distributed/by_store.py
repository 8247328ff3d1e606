"""Agreement of the ranks of a job through their key-value store: who comes first to a question answers it for all.

    rank 0  question ──► no answer yet: its own value is the answer ─┐
    rank 1  question ───────────────► the answer of rank 0  ◄────────┤
    rank 2  (busy elsewhere)                                         └─► whenever it comes

A question names all that its answer depends on, so an answer suits whoever asks.  Nobody waits for anybody: a rank
whose sizes or graphs are its own, a stage of a pipeline, or a rank that has crashed holds up no other one.  Plans need
not be equal for training to be right; see `plan_cache.cached_planner`.  Only the least of the bytes that devices leave
free, and plans that repeat gathers (`gathers`), need all ranks, and are waited for, for a while.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import pickle
import time
from collections.abc import Callable

from remat_compiler.distributed.agreement import Point, Value
from remat_compiler.distributed.gathers import GatherAgreement, GatherVotes, Store
from remat_compiler.log import logger_of
from remat_compiler.units import format_bytes
from remat_compiler.version import __version__

logger = logger_of(__name__)

PATIENCE_S = 10.0
"""Seconds to wait for the other ranks' free bytes; once in vain, no rank is waited for any more."""
_POLL_S = 0.01


class StoreAgreement:
    """See `agreement.Agreement`.

    Args:
        store: The store.
        rank: Number of this process.
        size: Number of processes.
        versions: Versions of what plans; ranks with others are asked nothing.
        patience_s: See `PATIENCE_S`.
    """

    is_alone = False

    def __init__(self, store: Store, rank: int, size: int, versions: str = "", patience_s: float = PATIENCE_S) -> None:
        self._store, self._rank, self._size, self._patience_s = store, rank, size, patience_s
        self._fails = False
        self._prefix = hashlib.sha256(f"{__version__} {versions}".encode()).hexdigest()[:16]
        self.gathers: GatherAgreement = GatherVotes(store, rank, size, self._prefix)

    def agree(self, point: Point, value: Value, question: Callable[[], str]) -> Value:
        """The value of the rank that came first to the question."""
        key = f"{self._prefix}/{point.name}/{hashlib.sha256(question().encode()).hexdigest()}"
        own = base64.b85encode(pickle.dumps((self._rank, value))).decode()
        try:
            rank, answer = pickle.loads(base64.b85decode(self._store.compare_set(key, "", own)))
        except Exception as error:  # A store that fails must not end training: plans may then differ, no more.
            self._tell(point, error)
            return value
        if answer != value:
            logger.info("taken from rank %d: %s", rank, point.value)
        agreed: Value = answer
        return agreed

    def smallest(self, value: int, question: Callable[[], str]) -> int:
        """The smallest value of all ranks, as far as they come to the question in time."""
        key = f"{self._prefix}/smallest/{hashlib.sha256(question().encode()).hexdigest()}"
        found, end = [value], time.monotonic() + self._patience_s
        try:
            self._store.set(f"{key}/{self._rank}", str(value))
            missing = []
            for rank in range(self._size):
                while not self._store.check([f"{key}/{rank}"]) and time.monotonic() < end:
                    time.sleep(_POLL_S)
                if self._store.check([f"{key}/{rank}"]):
                    found.append(int(self._store.get(f"{key}/{rank}")))
                else:
                    missing.append(rank)
            # Once: afterwards nobody is waited for, so that others are missing often.
            if missing and self._patience_s:
                logger.warning(
                    "rank %s did not plan the same graph within %.0f s: its budget is not known to rank %d, and plans "
                    "may differ",
                    " and ".join(map(str, missing)),
                    self._patience_s,
                    self._rank,
                )
                self._patience_s = 0.0
        except Exception as error:  # As above.
            self._tell(Point.BUDGET, error)
        if min(found) < value:
            logger.info("a budget of %s, the smallest of all ranks, not %s", format_bytes(min(found)), value)
        return min(found)

    def _tell(self, point: Point, error: Exception) -> None:
        # Once: a store that is gone fails for every graph.
        level = logging.DEBUG if self._fails else logging.WARNING
        self._fails = True
        reason = str(error).partition("\n")[0]
        text = "rank %d plans by itself, since the job's store failed (%s): %s"
        logger.log(level, text, self._rank, reason, point.value)
