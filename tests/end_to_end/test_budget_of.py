"""A budget on what the caching allocator reserves: kept by its model, fed with what the step really allocates."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with, differences_from_eager
from instruments.measure import allocator_events
from remat_compiler.devices.caching_allocator import CachingAllocator
from remat_compiler.errors import InfeasibleBudget

OPTIONS: dict[str, Any] = {"cost_model": "nominal", "on_infeasible": "error"}


class Layers(nn.Module):
    """Layers of 4 MiB results and few parameters."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.linear = nn.ModuleList(nn.Linear(64, 64) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for linear in self.linear:
            x = x + torch.tanh(linear(x))
        return x.square().mean()


@pytest.fixture(autouse=True)
def _no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    monkeypatch.delenv("PYTORCH_CUDA_ALLOC_CONF", raising=False)
    monkeypatch.delenv("PYTORCH_ALLOC_CONF", raising=False)
    torch.manual_seed(0)


def really_reserved(step: Any, resident: Iterable[Tensor]) -> int:
    """What the model of the allocator reserves for the requests of real steps, beside what is there before them."""
    step()
    allocator, blocks = CachingAllocator(2**62), {}
    for tensor in resident:
        allocator.allocate(tensor.nbytes)
    before = allocator.allocated_bytes
    for _ in range(2):
        for event in allocator_events(step):
            if event.size_bytes > 0:
                blocks[event.address] = allocator.allocate(event.size_bytes)
            elif event.address in blocks:
                allocator.free(blocks.pop(event.address))
    return allocator.peak_reserved_bytes - before


def test_the_budget_is_kept_by_what_is_reserved() -> None:
    model, x = Layers(), torch.randn(1 << 14, 64)
    compile_with(model, **OPTIONS, memory_budget=1.0)(x).backward()
    (unbudgeted,) = remat_compiler.reports()[-1:]
    assert unbudgeted.reserved_bytes > unbudgeted.peak_bytes
    budget = int(0.7 * unbudgeted.reserved_bytes)
    call = compile_with(model, **OPTIONS, memory_budget=budget, budget_of="reserved")
    call(x).backward()
    (report,) = remat_compiler.reports()[-1:]
    assert report.peak_bytes < report.reserved_bytes <= budget

    def step() -> object:
        model.zero_grad()
        loss = call(x)
        loss.backward()
        return loss

    # Small values of the optimizer's state, and gradients, have segments of their own in the prediction.
    found = really_reserved(step, [x, *model.parameters()])
    assert abs(found - report.reserved_bytes) <= 0.03 * report.reserved_bytes
    given = {**OPTIONS, "memory_budget": budget, "budget_of": "reserved"}
    assert differences_from_eager(Layers(), [x], **given) == []


def test_a_fraction_is_one_of_what_is_reserved() -> None:
    compile_with(Layers(), **OPTIONS, memory_budget=0.6, budget_of="reserved")(torch.randn(1 << 14, 64))
    (report,) = remat_compiler.reports()[-1:]
    assert report.budget_bytes is not None
    assert report.reserved_bytes <= report.budget_bytes
    assert report.budget_bytes > 0.6 * report.peak_before_bytes


def test_a_refusal_says_that_pieces_are_the_reason() -> None:
    with pytest.raises(InfeasibleBudget, match=r'under budget_of="reserved": its live bytes peak at .*MiB') as refused:
        compile_with(Layers(), **OPTIONS, memory_budget="1MiB", budget_of="reserved")(torch.randn(1 << 14, 64))
    smallest = refused.value.smallest_peak_bytes
    # What it names is reachable.
    compile_with(Layers(), **OPTIONS, memory_budget=smallest, budget_of="reserved")(torch.randn(1 << 14, 64))
    assert remat_compiler.reports()[-1].reserved_bytes <= smallest


def test_changing_sizes_are_kept_by_what_is_allocated_and_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "remat_compiler"):
        call = compile_with(Layers(), **OPTIONS, dynamic=True, memory_budget="200MiB", budget_of="reserved")
        call(torch.randn(1 << 12, 64))
    assert 'budget_of="reserved" holds at fixed sizes' in caplog.text
