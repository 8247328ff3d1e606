"""What several files of these tests look at."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import remat_compiler
from remat_compiler import pipeline
from remat_compiler.dynamic_shapes.dispatch import Dispatch


@pytest.fixture(autouse=True)
def _steps_of_its_own(steps_of_its_own: None) -> None:
    """For every test of this folder."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Dispatch]:
    """What runs the graphs of changing sizes, in the order of their compilations; nothing is taken from caches."""
    found: list[Dispatch] = []
    original = pipeline.dispatched

    def dispatched(*arguments: Any) -> Dispatch:
        found.append(original(*arguments))
        return found[-1]

    monkeypatch.setattr(pipeline, "dispatched", dispatched)
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    torch.manual_seed(0)
    return found
