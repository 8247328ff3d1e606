"""How many functions of loops Inductor's code for a CPU calls in a planned step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from capture.emitted import emitted
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.torch_compat import inductor

WIDTH = 64


class Rotated(nn.Module):
    """Two products whose halves are swapped and weighed, in loops of their own: the swapped halves are stored."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        one, two = (self.rotated(part(x)) for part in (self.first, self.second))
        return x + self.last((one * two).softmax(-1))

    @staticmethod
    def rotated(x: Tensor) -> Tensor:
        half = WIDTH // 2
        return x.cos() * torch.cat([-x[:, half:], x[:, :half]], -1)


class Loss(nn.Module):
    """Several such layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Rotated() for _ in range(layers)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


def test_loops_are_called_apart_only_where_memory_must_be_freed_between_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = Loss(4), torch.randn(256, WIDTH)
    whole, _, _ = emitted(model, (x,), PartitionRequest(None))

    def functions(part: float) -> int:
        planned, peak, found = emitted(model, (x,), PartitionRequest(int(part * whole), max_slowdown=None))
        assert peak <= planned <= part * whole
        return found

    loose, tight = functions(0.9), functions(0.6)

    def always(scheduler: Any) -> bool:
        return bool(scheduler.buffer_names_to_free)

    monkeypatch.setattr(inductor, "frees_too_late", always)
    assert loose < functions(0.9)
    assert tight <= functions(0.6)
