"""How all tests run: with kernels that compile quickly, and one thread for each worker."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

# Before torch is imported.  Vectorized kernels allocate the same and take twice as long to compile; what a test is to
# see with them runs with TORCHINDUCTOR_VEC_ISA_OK=1.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture
def steps_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests left open, or did not settle, is no part of this one's steps."""
    from remat_compiler.pipeline import COORDINATOR
    from remat_compiler.step_budget.step_watch import Here

    monkeypatch.setattr(COORDINATOR.watch, "here", Here())
    COORDINATOR.unsettled.clear()
    COORDINATOR._whole_steps.clear()


@pytest.fixture
def compiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_of_its_own: None) -> None:
    """Nothing that other tests compiled, planned or reported is there, and the same random numbers are to come."""
    import torch

    import remat_compiler

    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    torch.manual_seed(0)
