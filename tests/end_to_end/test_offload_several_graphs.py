"""Steps of several graphs that move values off the device: one budget for memory, and one for what is moved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with
from instruments.measure import allocator_events, live_bytes
from remat_compiler.ir.plan import Tier
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import Store, store_of
from remat_compiler.report.plan_report import PlanReport

WIDTH, BATCH = 128, 512


class Tower(nn.Module):
    """Layers whose activations outweigh their parameters."""

    def __init__(self, depth: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + F.dropout(F.gelu(layer(x)), 0.1)
        return x


class Cut(nn.Module):
    """Two towers with a graph break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Tower(), Tower()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        torch._dynamo.graph_break()
        return self.second(x).sum()


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The room of the folder that these tests offload to."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    torch.manual_seed(0)
    return store_of(Place(Tier.DISK, tmp_path), pinned=False)


def options(tmp_path: Path, **others: Any) -> dict[str, Any]:
    # Nominal costs, by which moving these values is faster than to compute them again.
    return {
        "cost_model": "nominal",
        "offload_budget": "64MiB",
        "offload_tier": "disk",
        "offload_dir": tmp_path,
        **others,
    }


def compiled(model: Cut, apart: bool, **given: Any) -> Callable[[Tensor], Tensor]:
    """The step as one function with a break, or as two modules that the user compiled one by one."""
    if not apart:
        return compile_with(model, **given)
    first, second = compile_with(model.first, **given), compile_with(Loss(model.second), **given)
    return lambda x: second(first(x))


class Loss(nn.Module):
    """A tower and its loss."""

    def __init__(self, tower: Tower) -> None:
        super().__init__()
        self.tower = tower

    def forward(self, x: Tensor) -> Tensor:
        return self.tower(x).sum()


def results(model: Cut, call: Callable[[Tensor], Tensor], x: Tensor, steps: int = 4) -> list[Tensor]:
    """Loss and gradients of some steps."""
    torch.manual_seed(1)
    found = []
    for _ in range(steps):
        model.zero_grad()
        loss = call(x)
        loss.backward()
        found += [loss.detach(), *(one.grad.clone() for one in model.parameters() if one.grad is not None)]
    return found


def latest() -> tuple[PlanReport, PlanReport]:
    """What the two graphs of the step were told last."""
    first, second = remat_compiler.reports()[-2:]
    assert first.step == second.step
    assert first.step is not None
    return first, second


def added_ns(reports: tuple[PlanReport, PlanReport]) -> int:
    return sum(one.added_ns for one in reports)


@pytest.mark.parametrize(
    ("budget", "apart"),
    [
        (0.5, False),
        ("min", True),
        *(pytest.param(*both, marks=pytest.mark.slow) for both in [(0.5, True), ("min", False)]),
    ],
)
def test_both_graphs_move_values_within_both_budgets(
    budget: float | str, apart: bool, room: Store, tmp_path: Path
) -> None:
    model, x = Cut(), torch.randn(BATCH, WIDTH)
    call = compiled(model, apart, memory_budget=budget, **options(tmp_path))
    found = results(model, call, x)
    assert all(map(torch.equal, found, results(model, model, x)))
    reports = latest()
    assert all(one.offloaded_bytes for one in reports)
    assert sum(one.offloaded_bytes for one in reports) <= room.held_bytes <= 64 << 20

    def step() -> object:
        loss = call(x)
        loss.backward()
        return loss

    model.zero_grad()
    step_figures = reports[0].step
    assert step_figures is not None
    assert step_figures.peak_bytes is not None
    assert max(live_bytes(allocator_events(step))) <= step_figures.peak_bytes
    if budget == 0.5:
        assert step_figures.limit_bytes is not None
        assert step_figures.peak_bytes <= step_figures.limit_bytes
    assert room.taken_bytes == 0


@pytest.mark.slow
def test_moving_is_faster_by_its_model_than_recomputation_alone(room: Store, tmp_path: Path) -> None:
    model, x = Cut(), torch.randn(BATCH, WIDTH)
    found = []
    for more in ({"offload_budget": 0}, {}):
        results(model, compiled(model, False, memory_budget=0.4, **options(tmp_path, **more)), x)
        found.append(added_ns(latest()))
    assert found[1] < found[0]


def test_graphs_share_what_may_be_moved(room: Store, tmp_path: Path) -> None:
    model, x = Cut(), torch.randn(BATCH, WIDTH)
    for limit in (2_000_000, 4_000_000):
        results(model, compiled(model, False, memory_budget="min", **options(tmp_path, offload_budget=limit)), x)
        assert 0 < sum(one.offloaded_bytes for one in latest()) <= limit


def test_what_was_shared_is_remembered(room: Store, tmp_path: Path) -> None:
    model, x = Cut(), torch.randn(BATCH, WIDTH)
    found = []
    for _ in range(2):
        remat_compiler.clear_reports()
        numbers = results(model, compiled(model, False, memory_budget=0.5, **options(tmp_path)), x)
        found.append(
            (numbers, [one.offloaded_bytes for one in latest()], room.held_bytes, len(remat_compiler.reports()))
        )
    (before, moved, held, _), (after, again, held_again, reports) = found
    assert all(map(torch.equal, before, after))
    assert again == moved
    assert all(moved)
    assert held_again == 2 * held, "Dynamo keeps the code of the model before, with its room"
    assert reports == 2, "nothing was decided anew"
