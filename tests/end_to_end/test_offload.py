"""Steps that move values off the device: eager's numbers, the predicted peak, and room that is given back."""

from __future__ import annotations

import gc
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with, differences_from_eager
from end_to_end.judged_programs import BAD, judge
from end_to_end.random_programs import draw
from instruments.measure import allocator_events, live_bytes
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget, OffloadError
from remat_compiler.ir.plan import Decision, Tier
from remat_compiler.offload.place import Place
from remat_compiler.offload.store import Store, store_of

PROGRAMS = 60
"""Random programs; one in five of them in the quick run."""


class Layers(nn.Module):
    """Layers with dropout and BatchNorm, whose activations outweigh their parameters."""

    def __init__(self, depth: int = 6, width: int = 128) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.BatchNorm1d(width)

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linear:
            x = x + F.dropout(F.gelu(linear(x)), 0.1)
        return self.norm(x).square().mean()


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The room of the folder that these tests offload to."""
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    torch.manual_seed(0)
    return store_of(Place(Tier.DISK, tmp_path), pinned=False)


def options(tmp_path: Path, **others: Any) -> dict[str, Any]:
    # Nominal costs, by which moving these values is faster than to compute them again.
    return {"cost_model": "nominal", "offload_budget": "64MiB", "offload_dir": tmp_path, **others}


@pytest.mark.parametrize("budget", [0.5, "min"])
@pytest.mark.parametrize("tier", ["host", "disk", "disk, direct"])
def test_a_step_that_moves_values_equals_eager(budget: float | str, tier: str, room: Store, tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(512, 128, requires_grad=True)
    kind, _, direct = tier.partition(", ")
    given = options(tmp_path, memory_budget=budget, offload_tier=kind, offload_direct=bool(direct))
    assert differences_from_eager(model, [x], steps=3, **given) == []
    (report,) = remat_compiler.reports()
    assert report.offloaded_bytes
    assert any(one.decision is Decision.OFFLOAD for one in report.decisions)


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_the_measured_peak_is_the_predicted_one_and_room_is_given_back(inner: str, room: Store, tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(512, 128)
    call = compile_with(model, **options(tmp_path, memory_budget=0.4, inner=inner, on_infeasible="error"))
    call(x).backward()
    (report,) = remat_compiler.reports()[-1:]
    assert report.offloaded_bytes
    assert report.budget_bytes is not None
    assert report.peak_bytes <= report.budget_bytes

    def step() -> object:
        model.zero_grad()
        loss = call(x)
        assert 0 < room.taken_bytes <= report.offloaded_bytes <= room.held_bytes
        loss.backward()
        return loss

    model.zero_grad()
    measured = [max(live_bytes(allocator_events(step))) for _ in range(3)]
    assert measured == [report.peak_bytes] * 3
    assert room.taken_bytes == 0


def test_a_model_that_is_gone_holds_no_room(room: Store, tmp_path: Path) -> None:
    call = compile_with(Layers(), **options(tmp_path, memory_budget="min"))
    call(torch.randn(512, 128)).backward()
    assert room.held_bytes
    del call
    # The last step is remembered until another one begins.
    compile_with(nn.Linear(4, 4), memory_budget=1.0)(torch.randn(4, 4)).sum().backward()
    gc.collect()
    assert room.held_bytes == 0


def test_less_memory_is_enough_than_without_moving(room: Store, tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(1024, 128)
    smallest = []
    for more in ({}, options(tmp_path)):
        compile_with(model, memory_budget="min", **more)(x).backward()
        smallest.append(remat_compiler.reports()[-1].peak_bytes)
    assert smallest[1] < smallest[0]


def test_a_budget_that_everything_fits_moves_nothing(room: Store, tmp_path: Path) -> None:
    compile_with(Layers(), memory_budget=1.0, **options(tmp_path))(torch.randn(512, 128)).backward()
    assert remat_compiler.reports()[-1].offloaded_bytes == 0
    assert room.held_bytes == 0


def test_no_more_is_moved_than_the_budget_allows(room: Store, tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(512, 128)
    for limit in (300_000, 1_000_000, 3_000_000):
        compile_with(model, memory_budget="min", **options(tmp_path, offload_budget=limit))(x).backward()
        assert 0 < remat_compiler.reports()[-1].offloaded_bytes <= limit


def test_a_forward_too_many_is_refused_and_the_next_step_runs(room: Store, tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(512, 128)
    call = compile_with(model, memory_budget=0.5, **options(tmp_path))
    call(x).backward()
    moved = remat_compiler.reports()[-1].offloaded_bytes
    call = compile_with(model, memory_budget=0.5, **options(tmp_path, offload_budget=moved))
    call(x).backward()
    gc.collect()  # the room of the model before
    loss = call(x)
    with pytest.raises(OffloadError, match=r"offload_budget=.*; raise it, or run the backward"):
        call(x)
    loss.backward()
    gc.collect()
    call(x).backward()
    assert room.taken_bytes == 0


def test_a_graph_that_is_retained_and_one_that_is_dropped(room: Store, tmp_path: Path) -> None:
    model, x = Layers(), torch.randn(512, 128)
    call = compile_with(model, memory_budget=0.4, **options(tmp_path))
    torch.manual_seed(3)
    loss = call(x)
    first = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
    second = torch.autograd.grad(loss, list(model.parameters()))
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    loss = call(x)
    assert room.taken_bytes
    del loss
    gc.collect()
    assert room.taken_bytes == 0


def test_the_folder_must_be_there_if_anything_is_moved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    x = torch.randn(4, 4, requires_grad=True)

    def compiled(**given: Any) -> Any:
        torch._dynamo.reset()
        return torch.compile(lambda value: value.sin().sum(), backend=partial(remat, options=given))(x)

    with pytest.raises(OffloadError, match=r"offload_dir .*nowhere.* does not exist; name a folder"):
        compiled(offload_budget="1GiB", offload_dir=tmp_path / "nowhere", inner="eager")
    for none in (0, None, "none", "0"):
        compiled(offload_budget=none, offload_dir=tmp_path / "nowhere", inner="eager")


def test_a_small_disk_is_told_of(room: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    given = options(tmp_path, memory_budget=0.5, offload_budget="900PiB")
    compile_with(Layers(), **given)(torch.randn(512, 128)).backward()
    assert "are free on the disk of" in caplog.text
    assert remat_compiler.reports()[-1].offloaded_bytes


def test_a_budget_that_cannot_be_kept_is_refused_with_moving_too(room: Store, tmp_path: Path) -> None:
    call = compile_with(Layers(), memory_budget=1000, on_infeasible="error", **options(tmp_path))
    with pytest.raises(InfeasibleBudget, match="smallest"):
        call(torch.randn(512, 128))


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed % 5 else []) for seed in range(PROGRAMS)]
)
def test_the_promise_holds_for_random_programs(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    budget = (0.7, 0.4, "min")[seed % 3]
    program, tier = draw(seed), "disk" if seed % 2 else "host"
    for trial in judge(program, (budget,), offload_budget="1GiB", offload_tier=tier, offload_dir=str(tmp_path)):
        assert trial.verdict not in BAD, f"{trial}\n{program.source}"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(7))
def test_the_promise_holds_for_random_programs_under_inductor(seed: int, tmp_path: Path) -> None:
    program = draw(seed)
    given = {"inner": "inductor", "offload_budget": "1GiB", "offload_dir": str(tmp_path)}
    for trial in judge(program, (0.6, "min"), **given):  # type: ignore[arg-type]
        assert trial.verdict not in BAD, f"{trial}\n{program.source}"
