"""Emitted graphs that compute on two cards, on fake tensors: an arena would lie on one of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from remat_compiler import torch_compat
from remat_compiler.compilation.arenas import planned_arenas
from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph, make_twin
from remat_compiler.dry_run.placeable import placeable
from remat_compiler.dry_run.storage_tracker import StorageTracker
from remat_compiler.simulate.reserved import AllocationTrace

BYTES = 2048


class Cards:
    """The present device, as emitted code switches it."""

    def __init__(self) -> None:
        self.present = 0

    def use(self, index: int) -> None:
        self.present = index


cards = Cards()


def empty_strided_cuda(*_: Any) -> Tensor:
    raise AssertionError("a real allocation")


def forward(arguments: list[Any]) -> tuple[Tensor]:
    """As Inductor emits a graph that computes on two cards."""
    arguments.clear()
    cards.use(0)
    first = empty_strided_cuda((BYTES,), (1,), torch.uint8)
    cards.use(1)
    second = empty_strided_cuda((BYTES,), (1,), torch.uint8)
    del first
    return (second,)


def backward(arguments: list[Any]) -> tuple[Tensor]:
    arguments.clear()
    first = empty_strided_cuda((BYTES,), (1,), torch.uint8)
    second = empty_strided_cuda((BYTES,), (1,), torch.uint8)
    del first
    return (second,)


def test_no_arena_serves_two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: cards.present)
    graphs = [EmittedGraph(None, call, (), call is backward, "") for call in (forward, backward)]
    mode = torch_compat.FakeTensorMode()
    with mode, StorageTracker(mode, "cuda", ()) as tracker:
        results = [make_twin(graph, tracker)([]) for graph in graphs]
        assert [one.device.index for (one,) in results] == [1, 1]
    timeline = [
        SimpleNamespace(phase=("forward", "backward")[i // 2], live_bytes=moment.live_bytes, workspace_bytes=0)
        for i, moment in enumerate(tracker.moments)
    ]
    lives = [(life, life.freed) for life in tracker.lives]
    positions = {id(life): i for i, (life, _) in enumerate(lives)}
    step = placeable(tracker.wrapper_calls, (), lives, timeline, positions)
    assert step is not None
    check = DryRun(allocations=step, trace=AllocationTrace((), (), ()))
    answer = planned_arenas(check, (), graphs, lambda placements: check, False)
    assert answer == "its values lie on several devices, and an arena lies on one"
