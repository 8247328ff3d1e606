"""Normalisations of half-precision values with float32 parameters, as autocast has them: exact peaks, no warnings."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from dry_run.steps import peak_of


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()


class Images(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        for channels in (8, 16):
            made = nn.GroupNorm(4, channels) if norm is nn.GroupNorm else norm(channels, affine=True)
            blocks += [nn.Conv2d(3 if channels == 8 else 8, channels, 3, padding=1), made, nn.SiLU()]
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.blocks(x)
        return y.float().square().mean()


class Rows(nn.Module):
    def __init__(self, norm: type[nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 32), nn.LayerNorm(32))

    def forward(self, x: Tensor) -> Tensor:
        # Outside of autocast's reach, whose layer norm computes in float32.
        y = torch.ops.aten.native_layer_norm(self.blocks(x).bfloat16(), [32], self.blocks[4].weight, None, 1e-5)[0]
        return y.float().square().mean()


@pytest.mark.parametrize("norm", [nn.GroupNorm, nn.BatchNorm2d, nn.InstanceNorm2d, nn.LayerNorm])
def test_the_peak_is_the_predicted_one(norm: type[nn.Module], caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    rows = norm is nn.LayerNorm
    model, x = (Rows if rows else Images)(norm), torch.randn(64, 32) if rows else torch.randn(4, 3, 16, 16)
    caplog.set_level(logging.WARNING)
    call = torch.compile(
        model, backend="remat", options={"memory_budget": 1.0, "inner": "eager", "cost_model": "nominal"}
    )

    def step() -> None:
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = call(x)
        loss.backward()

    for _ in range(2):
        step()
    assert "remat: " not in caplog.text
    model.zero_grad()
    assert peak_of(step) == remat_compiler.reports()[-1].peak_bytes
