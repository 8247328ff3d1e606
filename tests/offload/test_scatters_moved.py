"""A value that a write into a view made is moved off the device as any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor


@pytest.mark.parametrize("budget", [0.5, "min"])
def test_a_value_made_by_a_write_into_a_view_is_moved(
    budget: float | str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    torch.manual_seed(0)
    weight, x = torch.randn(64, 64, requires_grad=True), torch.randn(256, 64)

    def step(x: Tensor) -> Tensor:
        h = torch.tanh(x @ weight)
        h = h * 2
        h[..., :1].mul_(3)
        for _ in range(3):
            h = torch.sin(h) * torch.cos(h)
            h[1:].add_(0.5)
        return (h @ weight).square().mean()

    options = {
        "memory_budget": budget,
        "inner": "eager",
        "cost_model": "nominal",
        "on_infeasible": "min",
        "offload_budget": "1GiB",
        "offload_tier": "host",
    }
    (expected,) = torch.autograd.grad(step(x), weight)
    for _ in range(2):
        (found,) = torch.autograd.grad(torch.compile(step, backend="remat", options=options)(x), weight)
        torch.testing.assert_close(found, expected)
