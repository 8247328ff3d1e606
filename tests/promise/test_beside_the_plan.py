"""What takes memory beside the plan is told once, with its bytes, where the budget is exceeded by it."""

from __future__ import annotations

import pytest
import torch

from remat_compiler.beside_the_plan import LOOKS, BesideThePlan


def with_gradient(rows: int) -> torch.Tensor:
    """A leaf whose gradient has so many rows of 256 bytes."""
    leaf = torch.zeros(rows, 64, requires_grad=True)
    leaf.grad = torch.zeros(rows, 64)
    return leaf


def test_gradients_of_all_graphs_count_together_and_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    beside = BesideThePlan(peak_bytes=1_000, limit_bytes=2_000, graphs=2)
    assert beside.look("first", [with_gradient(2), torch.zeros(1), 3])
    assert not caplog.records  # 1,512 bytes
    assert not beside.look("second", [with_gradient(2)])
    assert len(caplog.records) == 1
    assert "gradients of 1.0 KiB" in caplog.messages[0]
    assert not beside.look("first", [with_gradient(9)])
    assert len(caplog.records) == 1


def test_looking_ends() -> None:
    beside = BesideThePlan(peak_bytes=1_000, limit_bytes=2_000)
    assert [beside.look("graph", [torch.zeros(1)]) for _ in range(LOOKS)] == [True] * (LOOKS - 1) + [False]
    assert not BesideThePlan(peak_bytes=1_000, limit_bytes=None).look("graph", [with_gradient(99)])


@pytest.mark.parametrize(
    ("eager_bytes", "limit_bytes", "of_part", "told"),
    [
        (0, 10, False, False),
        (999, 2_000, False, False),
        (1_001, 2_000, False, True),
        (100, None, True, False),
        (1_000, None, True, True),
        (1_000, None, False, False),
    ],
)
def test_eager_work_is_told_of_where_it_exceeds_the_budget_or_is_much(
    eager_bytes: int, limit_bytes: int | None, of_part: bool, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    beside = BesideThePlan(1_000, limit_bytes, graphs=3)
    for _ in range(2):
        beside.say_eager(eager_bytes, of_part=of_part)
    assert len(caplog.records) == told
    for _ in range(2):
        beside.say_views(eager_bytes, of_part=of_part)
        beside.say_end(1_000 + eager_bytes, of_part=of_part)
    assert len(caplog.records) == 3 * told
    if told:
        assert "50 %" in caplog.messages[0]
        assert "beside the 1000 B of 3 planned graphs" in caplog.messages[0]
        assert "outputs are views of inputs" in caplog.messages[1]
        assert "at its end" in caplog.messages[2]
