"""Values that are moved off the device at sizes that change: eager's numbers, exact peaks, no more than allowed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with
from instruments.measure import allocator_events, live_bytes
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.ir.plan import Tier
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import Store, store_of

FIRST, BUDGET = 64, 1_500_000
"""Rows of the first call, and a budget that few of the activations of more rows keep to."""


class Layers(nn.Module):
    """Layers whose activations outweigh their parameters, one of them with its dimensions in another order."""

    def __init__(self, depth: int = 4, width: int = 64) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linear:
            x = x + F.gelu(linear(x)).transpose(0, 1).sigmoid().transpose(0, 1)
        return x.square().mean()


class Twice(nn.Module):
    """A step of two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 64), Layers(2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(self.first(x))
        torch._dynamo.graph_break()
        return self.second(x)


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The room of the folder that these tests offload to."""
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    torch.manual_seed(0)
    return store_of(Place(Tier.DISK, tmp_path), pinned=False)


def batch(rows: int) -> Tensor:
    x = torch.randn(8, rows, 64)
    torch._dynamo.mark_dynamic(x, 1)
    return x


def options(tmp_path: Path, **others: Any) -> dict[str, Any]:
    # Nominal costs, by which moving these values is faster than to compute them again.
    given = {"cost_model": "nominal", "offload_budget": "64MiB", "offload_dir": tmp_path, "memory_budget": BUDGET}
    return {**given, "on_infeasible": "error", **others}


def gradients(model: nn.Module, call: Any, x: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    call(x).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_peaks_are_exact_and_kept_at_every_size(inner: str, room: Store, tmp_path: Path, made: list[Dispatch]) -> None:
    model = Layers()
    call = compile_with(model, None, **options(tmp_path, inner=inner))
    moved = set()
    for rows in (FIRST, 100, FIRST, 150, 20):
        x = batch(rows)
        found = gradients(model, call, x)
        assert all(torch.allclose(*pair, atol=1e-6) for pair in zip(found, gradients(model, model, x)))
        model.zero_grad(set_to_none=True)

        def step(x: Tensor = x) -> None:
            loss = call(x)
            moved.add(room.taken_bytes)
            loss.backward()

        measured = max(live_bytes(allocator_events(step)))
        memory = made[0].memory_now
        assert memory is not None
        assert measured == memory.peak_bytes <= BUDGET
        assert room.taken_bytes == 0
    # The room that larger sizes needed is kept for the next ones.
    assert len(moved) > 2
    assert max(moved) <= room.held_bytes <= 64 * 2**20
    assert len(made) == 1


def test_sizes_that_would_move_too_much_get_a_plan_that_does_not(
    room: Store, tmp_path: Path, made: list[Dispatch]
) -> None:
    limit = 3 * 2**19
    model = Layers()
    call = compile_with(model, None, **options(tmp_path, offload_budget=limit, max_slowdown=None))
    for rows in (FIRST, 90, FIRST):
        loss = call(batch(rows))
        assert room.taken_bytes <= room.held_bytes <= limit
        loss.backward()
    assert any(one.moved is not None for one in made[0].variants)
    for one in made[0].variants:
        used = [use.sizes for use in made[0].uses if use.variant is one]
        assert all(one.moved is None or one.moved.bytes_at(sizes) <= limit for sizes in used)


@pytest.mark.parametrize("budget", [0.5, "min"])
def test_one_plan_for_all_sizes_moves_nothing_and_says_so(
    budget: float | str, room: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Layers()
    call = compile_with(model, None, **options(tmp_path, memory_budget=budget))
    for rows in (FIRST, 256):
        call(batch(rows)).backward()
    assert f"no effect on a graph whose sizes change under memory_budget={budget}" in caplog.text
    assert not remat_compiler.reports()[-1].offloaded_bytes


def test_one_of_several_graphs_moves_nothing_and_says_so(
    room: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = Twice()
    call = compile_with(model, None, **options(tmp_path, on_infeasible="min"))
    for rows in (FIRST, 100):
        call(batch(rows)).backward()
    assert "no effect on one of several graphs whose sizes change" in caplog.text
    assert not room.held_bytes
