"""The vote of all ranks on a plan that gathers parts of parameters again.

A gather that one rank repeats in its backward, all ranks of its group must repeat, at the same place among the
collectives of the step; else each waits for another one, and the job hangs.  So a plan that repeats gathers runs only
if every rank of the job has one of the same *order* of collectives:

    rank 0   posts its order ─► all posted within the time, all equal ─► "yes" ─┐
    rank 1   posts its order ─► one is missing, or differs ───────────► "no"   ─┴─► whichever is settled first holds

Whatever is settled holds for all, and for as long as the job lasts: a *program* (the collectives of a graph, whatever
its other sizes, under the same options) has one order.  A rank that compiles the program again, such as for a batch of
another size, takes the plan that was voted for; a rank whose first plan repeats nothing keeps to that.  Thus ranks need
not compile at the same time, but for the vote itself.

Once a job repeats gathers, each further graph with gathers is confirmed likewise, though it repeats none: it may be a
part of a program that the others still run as a whole.
"""

from __future__ import annotations

import hashlib
import time
from typing import Protocol

from remat_compiler.errors import RanksDiffer
from remat_compiler.ir.plan import Plan
from remat_compiler.log import logger_of

logger = logger_of(__name__)

VOTE_PATIENCE_S = 60.0
"""Seconds to wait for the orders of other ranks: they compile the same graph, but some plan slower, or have a cache."""
PROGRAM_ORDER = "program order"
"""The order of every plan that repeats no gather: the verifier sees to it."""
_POLL_S = 0.01
_YES, _NO = "yes", "no"


class Store(Protocol):
    """A key-value store that all ranks have; see `torch.distributed.Store`."""

    def add(self, key: str, amount: int, /) -> int:
        """Add to a number that begins at 0; the sum."""
        ...

    def compare_set(self, key: str, expected: str, desired: str, /) -> bytes:
        """Set a key that has no value, if `expected` is empty; the value that it has then."""
        ...

    def set(self, key: str, value: str, /) -> None:
        """Set a key."""
        ...

    def get(self, key: str, /) -> bytes:
        """The value of a key that has one."""
        ...

    def check(self, keys: list[str], /) -> bool:
        """Whether all keys have values."""
        ...


class GatherAgreement(Protocol):
    """What the ranks of a job agree on about gathers."""

    def agreed_plan(self, program: str) -> Plan | None:
        """The plan of the program that all ranks run, if it repeats gathers."""
        ...

    def vote(self, program: str, order: str, plan: Plan) -> bool:
        """Whether all ranks run plans of this order, which repeats gathers.

        Raises:
            RanksDiffer: It is not known what the other ranks do.
        """
        ...

    def runs_in_order(self, program: str) -> None:
        """Tell that this rank runs a plan of the program that repeats nothing.

        Raises:
            RanksDiffer: The other ranks run, or may run, one that does.
        """
        ...

    def fails(self, reason: str) -> None:
        """Tell that this rank runs a graph of which nothing is known.

        Raises:
            RanksDiffer: The other ranks may run a plan of it that repeats gathers.
        """
        ...


class NoOthers:
    """One process: it repeats what it likes.  See `GatherAgreement`."""

    def agreed_plan(self, program: str) -> Plan | None:
        """None: each plan is free."""
        return None

    def vote(self, program: str, order: str, plan: Plan) -> bool:
        """Yes."""
        return True

    def runs_in_order(self, program: str) -> None:
        """Nobody minds."""

    def fails(self, reason: str) -> None:
        """Nobody minds."""


class GatherVotes:
    """The same through the job's store.

    Args:
        store: The store.
        rank: Number of this process.
        size: Number of processes.
        prefix: Begins each key; ranks of another prefix never agree.
        patience_s: See `VOTE_PATIENCE_S`.
    """

    def __init__(self, store: Store, rank: int, size: int, prefix: str, patience_s: float = VOTE_PATIENCE_S) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._prefix, self._patience_s = prefix, patience_s
        self._orders: dict[str, str] = {}
        self._plans: dict[str, Plan] = {}
        self._key_prefix = ""
        self._gave_up = False

    def agreed_plan(self, program: str) -> Plan | None:
        """See `GatherAgreement`."""
        return self._plans.get(program)

    def vote(self, program: str, order: str, plan: Plan) -> bool:
        """See `GatherAgreement`."""
        known = self._orders.get(program)
        if known is not None or self._gave_up:
            return known == order
        try:
            key = self._key(program)
            self._store.check([f"{key}/{self._rank}"])
        except Exception as error:  # Nothing is posted, so the others find this rank missing: they repeat nothing.
            logger.warning("no gather is repeated, since the job's store failed: %s", _first_line(error))
            self._orders[program] = PROGRAM_ORDER
            return False
        differing = self._settled(key, order)
        self._orders[program] = order if differing is None else PROGRAM_ORDER
        if differing is None:
            self._plans[program] = plan
            return True
        logger.warning("gathered parameters are kept for the backward, not gathered again: %s", differing)
        return False

    def runs_in_order(self, program: str) -> None:
        """See `GatherAgreement`."""
        known = self._orders.get(program)
        if known == PROGRAM_ORDER:
            return
        if known is not None:
            raise RanksDiffer(
                f"all ranks agreed to gather parameters again in the backward of this graph, and rank {self._rank} "
                "compiled it again so that it would not: the job would hang. Train with the same compiled graph on all "
                "ranks, such as with one size of the batch (drop_last=True), or within a budget that needs no repeated "
                "gathers"
            )
        if self._plans:
            differing = self._settled(self._key(program), PROGRAM_ORDER)
            if differing is not None:
                raise RanksDiffer(
                    "this job gathers parameters again in the backward, so all ranks must compile the same graphs at "
                    f"the same time; {differing}"
                )
        else:
            self._post_in_order(program)
        self._orders[program] = PROGRAM_ORDER

    def fails(self, reason: str) -> None:
        """See `GatherAgreement`."""
        if self._plans:
            raise RanksDiffer(
                f"rank {self._rank} cannot plan a graph ({reason}), while the other ranks may run one that gathers "
                "parameters again in the backward: the job would hang"
            )
        self._gave_up = True

    def _post_in_order(self, program: str) -> None:
        """Tell ranks that vote for another order that they need not wait for this one."""
        try:
            self._store.set(f"{self._key(program)}/{self._rank}", PROGRAM_ORDER)
        except Exception as error:  # They find this rank missing instead.
            logger.debug("the job's store failed: %s", _first_line(error))

    def _settled(self, key: str, order: str) -> str | None:
        """Post the order, wait for the others, and settle the vote; why it is "no", or `None` for "yes".

        Raises:
            RanksDiffer: The store failed, so that nobody knows how the vote ends.
        """
        try:
            self._store.set(f"{key}/{self._rank}", order)
            differing = self._differing(key, order)
            proposal = _YES if differing is None else f"{_NO} {differing}"
            settled = self._store.compare_set(f"{key}/settled", "", proposal).decode()
        except Exception as error:
            raise RanksDiffer(
                f"the job's store failed ({_first_line(error)}) while rank {self._rank} voted on gathering parameters "
                "again, so it is not known what the other ranks run: the job would hang. Start it again"
            ) from error
        return None if settled == _YES else settled.removeprefix(f"{_NO} ")

    def _differing(self, key: str, order: str) -> str | None:
        """The ranks that are missing at the end of the time, or whose order is another one, as text."""
        end = time.monotonic() + self._patience_s
        missing = [rank for rank in range(self._size) if rank != self._rank]
        while True:
            here = [rank for rank in missing if self._store.check([f"{key}/{rank}"])]
            others = [rank for rank in here if self._store.get(f"{key}/{rank}").decode() != order]
            missing = [rank for rank in missing if rank not in here]
            if others:
                return f"rank {_listed(others)} communicates in another order than rank {self._rank}"
            if not missing:
                return None
            if time.monotonic() >= end:
                return f"rank {_listed(missing)} did not compile the same graph within {self._patience_s:g} s"
            time.sleep(_POLL_S)

    def _key(self, program: str) -> str:
        """Begins the keys of one program, in this run of the job."""
        if not self._key_prefix:
            # What a run of the job settled before it was restarted on the same store binds nobody.
            run = self._store.add(f"{self._prefix}/gathers/{self._rank}", 1)
            self._key_prefix = f"{self._prefix}/gathers/run {run}"
        return f"{self._key_prefix}/{hashlib.sha256(program.encode()).hexdigest()}"


def _listed(ranks: list[int]) -> str:
    return " and ".join(map(str, ranks))


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
