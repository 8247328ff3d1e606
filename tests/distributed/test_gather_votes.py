"""The vote on repeated gathers: one answer for all ranks, within the time, and an error where there is none."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch.distributed as dist

from remat_compiler.distributed.gathers import GatherVotes, NoOthers, Store, logger
from remat_compiler.errors import RanksDiffer
from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan

PLAN = Plan((OpId(0), OpId(0)), 1)
LONG_S, SHORT_S = 60.0, 0.05


def ranks(size: int = 2, patience_s: float = LONG_S, store: Store | None = None) -> list[GatherVotes]:
    shared = dist.HashStore() if store is None else store
    return [GatherVotes(shared, rank, size, "1", patience_s) for rank in range(size)]


def at_once(*votes: Callable[[], bool]) -> list[bool]:
    """What votes of several ranks come to that are held at the same time."""
    with ThreadPoolExecutor(len(votes)) as pool:
        return [one.result() for one in [pool.submit(vote) for vote in votes]]


def test_equal_orders_are_repeated_by_all() -> None:
    group = ranks(4)
    assert at_once(*(partial(one.vote, "program", "order", PLAN) for one in group)) == [True] * 4
    assert [one.agreed_plan("program") for one in group] == [PLAN] * 4
    # What is agreed on holds from then on, for other programs nothing is: nobody is waited for.
    assert [one.vote("program", "order", PLAN) for one in group] == [True] * 4
    assert [one.vote("program", "another", PLAN) for one in group] == [False] * 4
    assert group[0].agreed_plan("another program") is None


def test_orders_that_differ_are_repeated_by_none(caplog: pytest.LogCaptureFixture) -> None:
    one, other, third = ranks(3)
    votes = [(one, "order"), (other, "order"), (third, "another")]
    assert at_once(*(partial(rank.vote, "program", order, PLAN) for rank, order in votes)) == [False] * 3
    assert one.agreed_plan("program") is None
    said = [record.message for record in caplog.records]
    # Whoever settled it says who differs, for all.
    assert len(said) == 3
    assert len(set(said)) == 1
    assert "communicates in another order than rank" in said[0]
    one.runs_in_order("program")


def test_a_rank_that_repeats_nothing_is_not_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    one, other = ranks()
    other.runs_in_order("program")
    assert not one.vote("program", "order", PLAN)
    assert "rank 1 communicates in another order than rank 0" in caplog.text
    assert not other.vote("program", "order", PLAN), "its first plan binds it: a graph of it may still run"


def test_a_missing_rank_is_named_and_what_is_settled_holds_for_it(caplog: pytest.LogCaptureFixture) -> None:
    one, other, late = ranks(3, SHORT_S)
    assert at_once(partial(one.vote, "program", "order", PLAN), partial(other.vote, "program", "order", PLAN)) == [
        False,
        False,
    ]
    assert "rank 2 did not compile the same graph within 0.05 s" in caplog.text
    assert not late.vote("program", "order", PLAN)


def test_what_an_earlier_run_of_the_job_settled_binds_nobody() -> None:
    store = dist.HashStore()
    for order in ("order", "another"):
        group = ranks(2, store=store)
        assert at_once(*(partial(one.vote, "program", order, PLAN) for one in group)) == [True, True]


def test_a_plan_that_repeats_nothing_is_an_error_once_all_agreed_to_repeat() -> None:
    group = ranks()
    at_once(*(partial(one.vote, "program", "order", PLAN) for one in group))
    with pytest.raises(RanksDiffer, match="rank 1 compiled it again so that it would not"):
        group[1].runs_in_order("program")


def test_further_graphs_of_a_job_that_repeats_gathers_are_confirmed_by_all() -> None:
    group = ranks(patience_s=1.0)
    at_once(*(partial(one.vote, "program", "order", PLAN) for one in group))

    def confirm(one: GatherVotes) -> bool:
        one.runs_in_order("another program")
        return True

    assert at_once(*(partial(confirm, one) for one in group)) == [True, True]
    # A part of the program on one rank alone, such as behind a graph break, could hang.
    with pytest.raises(RanksDiffer, match="rank 1 did not compile the same graph"):
        group[0].runs_in_order("a part of the program")


def test_a_graph_of_which_nothing_is_known_ends_repetitions() -> None:
    one, other = ranks()
    one.fails("a defect")
    assert not one.vote("program", "order", PLAN), "it may run in the same step"
    group = ranks()
    at_once(*(partial(rank.vote, "program", "order", PLAN) for rank in group))
    with pytest.raises(RanksDiffer, match=r"rank 0 cannot plan a graph \(a defect\)"):
        group[0].fails("a defect")
    assert other.agreed_plan("program") is None


class Failing:
    """A store that answers so many calls, then is gone."""

    def __init__(self, answers: int) -> None:
        self._store, self._left = dist.HashStore(), answers

    def _answer(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise RuntimeError("connection reset by peer\nat a place")

    def add(self, key: str, amount: int) -> int:
        self._answer()
        return int(self._store.add(key, amount))

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        self._answer()
        return bytes(self._store.compare_set(key, expected, desired))

    def set(self, key: str, value: str) -> None:
        self._answer()
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self._answer()
        return bytes(self._store.get(key))

    def check(self, keys: list[str]) -> bool:
        self._answer()
        return bool(self._store.check(keys))


@pytest.mark.parametrize("answers", [0, 1])
def test_a_store_that_fails_before_the_vote_repeats_nothing(answers: int, caplog: pytest.LogCaptureFixture) -> None:
    (one, _) = ranks(store=Failing(answers))
    assert not one.vote("program", "order", PLAN)
    assert "remat: no gather is repeated, since the job's store failed: connection reset by peer" in caplog.messages
    one.runs_in_order("program")


@pytest.mark.parametrize("answers", [2, 3, 4])
def test_a_store_that_fails_within_the_vote_is_an_error(answers: int) -> None:
    """The others may have seen this rank's order, and run it."""
    (one, _) = ranks(patience_s=SHORT_S, store=Failing(answers))
    with pytest.raises(RanksDiffer, match=r"store failed \(connection reset by peer\) while rank 0 voted"):
        one.vote("program", "order", PLAN)


def test_a_plan_without_repetitions_needs_no_store(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger.name)
    (one, _) = ranks(store=Failing(0))
    one.runs_in_order("program")
    assert not caplog.records


def test_one_process_repeats_what_it_likes() -> None:
    alone = NoOthers()
    assert alone.vote("program", "order", PLAN)
    alone.runs_in_order("program")
    alone.fails("a defect")
    assert alone.agreed_plan("program") is None
