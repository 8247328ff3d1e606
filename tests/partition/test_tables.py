"""Gradients of tables by torch's own kernel: what eager gives, and no sums in float32 as large as the table."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with
from instruments.measure import gradients, measure_step, train_step
from remat_compiler.partition import stages
from remat_compiler.partition.tables import DEVICES, sum_by_kernel

ROWS, COLUMNS, READ = 512, 128, 96
TABLE_BYTES = ROWS * COLUMNS * 2


@pytest.fixture(autouse=True)
def _anew(compiles_anew: None) -> None:
    """Plans of other tests are not these."""


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many gradients torch's kernel adds up in each graph, on CPUs, too."""
    found: list[int] = []
    monkeypatch.setattr(stages, "sum_by_kernel", lambda joint: found.append(sum_by_kernel(joint, DEVICES | {"cpu"})))
    return found


class Words(nn.Module):
    """A table and a layer; its loss."""

    def __init__(self, rows: int = ROWS, padding: int | None = None, *, scaled: bool = False) -> None:
        super().__init__()
        self.table = nn.Embedding(rows, COLUMNS, padding, scale_grad_by_freq=scaled)
        self.layer = nn.Linear(COLUMNS, 8)

    def forward(self, tokens: Tensor) -> Tensor:
        loss: Tensor = self.layer(torch.tanh(self.table(tokens))).float().square().sum()
        return loss


class ByIndex(Words):
    """The same without an embedding."""

    def forward(self, tokens: Tensor) -> Tensor:
        loss: Tensor = self.layer(torch.tanh(self.table.weight[tokens])).float().square().sum()
        return loss


def both(model: nn.Module, tokens: Tensor) -> tuple[int, list[Tensor], list[Tensor]]:
    """Measured peak of a compiled step, its gradients, and those of eager; the report says the same peak."""
    step = train_step(model, {"tokens": tokens})
    step()
    expected = [one.clone() for one in gradients(model)]
    model.zero_grad()
    step = train_step(compile_with(model, memory_budget="min", inner="inductor"), {"tokens": tokens})
    peak_bytes = measure_step(step).peak_bytes
    model.zero_grad()
    step()
    (report,) = remat_compiler.reports()
    assert report.peak_bytes == peak_bytes
    return peak_bytes, gradients(model), expected


@pytest.mark.parametrize(
    ("dtype", "padding", "shape"),
    [(torch.bfloat16, None, (READ,)), (torch.float16, 3, (2, READ // 2)), (torch.bfloat16, None, (0,))],
    ids=str,
)
def test_the_gradient_is_that_of_eager(
    counted: list[int], dtype: torch.dtype, padding: int | None, shape: tuple[int, ...]
) -> None:
    # Rows that are read several times, and the one that gets no gradient.
    tokens = torch.arange(READ)[: torch.Size(shape).numel()].remainder(40).view(shape)
    peak_bytes, made, expected = both(Words(padding=padding).to(dtype), tokens)
    assert set(counted) == {1}
    torch.testing.assert_close(made, expected, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(made[0], expected[0], rtol=0, atol=0)
    assert peak_bytes < 2 * TABLE_BYTES


@pytest.mark.parametrize(
    "make",
    [
        lambda: Words(),
        lambda: Words(rows=2 * READ - 1).to(torch.bfloat16),
        lambda: Words(scaled=True).to(torch.bfloat16),
        lambda: ByIndex().to(torch.bfloat16),
    ],
    ids=["float32", "few_rows", "scaled", "by_index"],
)
def test_other_sums_stay_loops(counted: list[int], make: Callable[[], nn.Module]) -> None:
    _, made, expected = both(make(), torch.arange(READ).remainder(40))
    assert set(counted) == {0}
    torch.testing.assert_close(made, expected, rtol=2e-2, atol=2e-2)


def test_a_cpu_adds_up_in_float32() -> None:
    """Its kernel would add up in the table's own type."""
    peak_bytes, _, _ = both(Words().to(torch.bfloat16), torch.arange(READ))
    assert peak_bytes > 3 * TABLE_BYTES


def test_on_paper_a_gpu_needs_the_gradient_and_little_more() -> None:
    pytest.importorskip("triton")
    report = remat_compiler.fit(
        lambda: Words(rows=1 << 15).to(torch.bfloat16),
        lambda batch: {"tokens": torch.zeros(batch, READ, dtype=torch.long)},
        device="h100",
        budget="min",
        batches=[1],
    )
    (point,) = report.points
    assert point.problem == ""
    assert point.backward_bytes < 1.1 * (1 << 15) * COLUMNS * 2
