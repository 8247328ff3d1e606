"""Agreement through a store: the first answer is everybody's, and nobody waits but for budgets."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch.distributed as dist

from remat_compiler.distributed.agreement import Point
from remat_compiler.distributed.by_store import StoreAgreement, logger


def ranks(size: int = 2, patience_s: float = 60.0) -> list[StoreAgreement]:
    store = dist.HashStore()
    return [StoreAgreement(store, rank, size, "1", patience_s) for rank in range(size)]


def asking(text: str) -> Callable[[], str]:
    return lambda: text


def test_the_first_answer_to_a_question_is_everybodys(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger.name)
    one, other = ranks()
    assert one.agree(Point.COSTS, (1, 2), asking("a graph")) == (1, 2)
    assert other.agree(Point.COSTS, (3, 4), asking("a graph")) == (1, 2)
    assert "taken from rank 0: times and workspaces" in caplog.text
    # Other questions and other points have answers of their own.
    assert other.agree(Point.COSTS, (3, 4), asking("another graph")) == (3, 4)
    assert other.agree(Point.PLAN, None, asking("a graph")) is None
    assert one.agree(Point.PLAN, "a plan", asking("a graph")) is None


def test_ranks_of_other_versions_answer_nothing() -> None:
    store = dist.HashStore()
    old, new = (StoreAgreement(store, rank, 2, version) for rank, version in enumerate("12"))
    assert old.agree(Point.PLAN, "old", asking("a graph")) == "old"
    assert new.agree(Point.PLAN, "new", asking("a graph")) == "new"


def test_the_smallest_budget_is_everybodys() -> None:
    group = ranks(4)
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda rank: group[rank].smallest(100 - rank, asking("a graph")), range(4)))
    assert found == [97] * 4


def test_a_rank_that_does_not_come_is_waited_for_once(caplog: pytest.LogCaptureFixture) -> None:
    one, _, third = ranks(3, patience_s=0.05)
    third.smallest(5, asking("a graph"))
    caplog.clear()
    assert one.smallest(7, asking("a graph")) == 5, "what is known counts"
    (message,) = [record.message for record in caplog.records]
    assert message.startswith("remat: rank 1 did not plan the same graph within")
    caplog.clear()
    # In vain for this graph, so not for the next one: ranks do not compile together.
    assert one.smallest(7, asking("another graph")) == 7


class Broken:
    """A store that is gone, or answers nonsense."""

    def __init__(self, answer: bytes | None = None) -> None:
        self.answer = answer

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        if self.answer is None:
            raise RuntimeError("connection reset by peer")
        return self.answer

    def set(self, key: str, value: str) -> None:
        raise RuntimeError("connection reset by peer")

    def get(self, key: str) -> bytes:
        raise RuntimeError("connection reset by peer")

    def check(self, keys: list[str]) -> bool:
        raise RuntimeError("connection reset by peer")


@pytest.mark.parametrize("answer", [None, b"", b"nonsense"])
def test_a_store_that_fails_leaves_each_rank_to_itself(answer: bytes | None, caplog: pytest.LogCaptureFixture) -> None:
    alone = StoreAgreement(Broken(answer), 1, 2)
    assert alone.agree(Point.PLAN, "own", asking("a graph")) == "own"
    assert alone.smallest(7, asking("a graph")) == 7
    assert "rank 1 plans by itself, since the job's store failed" in caplog.text
