"""accelerate: the same losses under a budget, before or after `prepare`, and the batch size that fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

pytest.importorskip("accelerate")

from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import find_executable_batch_size

import remat_compiler
from trainers.small_net import BATCH, BUDGET, SmallNet, rows


@pytest.fixture(autouse=True)
def no_state() -> Iterator[None]:
    """accelerate keeps its settings for the whole process."""
    yield
    AcceleratorState._reset_state(True)
    GradientState._reset_state()


def losses(accelerator: Accelerator, model: Any, size: int = BATCH, *, compile_after: bool = False) -> list[float]:
    """The losses of an epoch."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    model, optimizer, batches = accelerator.prepare(model, optimizer, DataLoader(rows(), batch_size=size))
    if compile_after:
        remat_compiler.compile(model, BUDGET, quiet=True)
    found = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(**batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize("precision", ["no", "bf16"])
def test_before_and_after_prepare(precision: str) -> None:
    accelerator = Accelerator(cpu=True, mixed_precision=precision)
    stock = losses(accelerator, SmallNet())
    before = losses(accelerator, model := remat_compiler.compile(SmallNet(), BUDGET, quiet=True))
    assert accelerator.unwrap_model(model) is model
    assert list(accelerator.get_state_dict(model)) == list(SmallNet().state_dict())
    assert remat_compiler.reports()
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    after = losses(accelerator, SmallNet(), compile_after=True)
    assert before == pytest.approx(stock, rel=1e-4)
    assert after == pytest.approx(stock, rel=1e-4)
    assert remat_compiler.reports()


def test_a_batch_size_that_fits_is_found_without_running_out_of_memory() -> None:
    accelerator, tried = Accelerator(cpu=True), []
    model = remat_compiler.compile(SmallNet(), "33000", quiet=True)

    @find_executable_batch_size(starting_batch_size=36)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> list[float]:
        tried.append(batch_size)
        accelerator.free_memory()
        return losses(accelerator, model, batch_size)

    found = train()
    assert tried == [36, 32]
    # Refused batches left the weights alone, and no gradients.
    assert found == pytest.approx(losses(accelerator, SmallNet(), 32), rel=1e-5)
