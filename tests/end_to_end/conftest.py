"""What several files of these tests look at."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import remat_compiler
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.gradients import leave
from remat_compiler.observer import Observer, observed_by


@pytest.fixture(autouse=True)
def _steps_of_its_own(steps_of_its_own: None) -> None:
    """For every test of this folder."""


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Dispatch]]:
    """What runs the graphs of changing sizes, in the order of their compilations; nothing is taken from caches."""
    found: list[Dispatch] = []

    class Watcher(Observer):
        def dispatch_made(self, dispatch: Dispatch) -> None:
            found.append(dispatch)

    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    torch.manual_seed(0)
    with observed_by(Watcher()):
        yield found


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The leaves whose gradients were handed over within a backward, in order."""
    found: list[Tensor] = []
    accumulate = leave.accumulate

    def counted(leaf: Tensor, gradient: Tensor) -> None:
        found.append(leaf)
        accumulate(leaf, gradient)

    monkeypatch.setattr(leave, "accumulate", counted)
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    return found
