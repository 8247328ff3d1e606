"""Steps on a GPU: the peak that the user reads is within the budget, and what is trained is what eager trains."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
WIDTH, ROWS, LAYERS = 512, 4096, 8


@pytest.fixture(autouse=True)
def _from_new() -> None:
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    torch.manual_seed(0)


class Layers(nn.Module):
    """Layers whose activations take far more than their parameters, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            *(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH)) for _ in range(LAYERS))
        )

    def forward(self, rows: Tensor) -> Tensor:
        """The loss of `rows`."""
        outputs: Tensor = self.blocks(rows)
        return outputs.float().square().mean()


def begun() -> tuple[Layers, Tensor]:
    """The model and its rows."""
    return Layers().cuda(), torch.randn(ROWS, WIDTH, device="cuda")


def compiled_for(model: nn.Module, budget: float | str, inner: str) -> Callable[[Tensor], Tensor]:
    """The model, compiled."""
    options: dict[str, Any] = {"memory_budget": budget, "inner": inner}
    compiled: Callable[[Tensor], Tensor] = torch.compile(model, backend="remat", options=options)
    return compiled


def backward(loss: Tensor, **options: bool) -> None:
    """Its backward."""
    loss.backward(**options)  # type: ignore[no-untyped-call]


def gradients(model: nn.Module) -> list[Tensor]:
    """Those that there are."""
    return [p.grad for p in model.parameters() if p.grad is not None]


def peak_of(run: Callable[[], object]) -> int:
    """What the device has in use at most, on top of before."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize(
    ("inner", "budget"),
    [*(("eager", budget) for budget in (1.0, 0.6, "min", "80MiB")), ("inductor", "min"), ("inductor", "80MiB")],
)
def test_the_peak_is_within_the_budget(inner: str, budget: float | str) -> None:
    model, rows = begun()
    backward(model(rows))
    expected = gradients(model)
    compiled = compiled_for(model, budget, inner)
    for _ in range(2):  # libraries make their workspaces
        model.zero_grad()
        backward(compiled(rows))
    model.zero_grad()
    peak = peak_of(lambda: backward(compiled(rows)))
    (report,) = remat_compiler.reports()
    assert peak <= report.peak_bytes
    if budget == "80MiB":
        assert peak <= 80 << 20
    torch.testing.assert_close(gradients(model), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
def test_scaled_gradients_and_fused_optimizers(fused: bool) -> None:
    """Mixed precision as most people train: losses fall as in eager, and what overflows is skipped alike."""
    model, rows = begun()

    def trained(model: nn.Module, called: Callable[[Tensor], Tensor]) -> list[float]:
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=fused)
        scaler, losses = torch.amp.GradScaler("cuda"), []
        for _ in range(4):
            optimizer.zero_grad()
            with torch.autocast("cuda", torch.float16):
                loss = called(rows)
            backward(scaler.scale(loss))
            scaler.step(optimizer)
            scaler.update()
            losses.append(float(loss.detach()))
        return losses

    other = copy.deepcopy(model)
    expected = trained(other, other)
    assert trained(model, compiled_for(model, 0.7, "inductor")) == pytest.approx(expected, rel=2e-2)


def test_micro_batches_and_a_retained_graph() -> None:
    model, rows = begun()
    backward(model(rows))
    once = gradients(model)
    model.zero_grad()
    compiled = compiled_for(model, 0.7, "eager")
    for _ in range(2):
        backward(compiled(rows))
    loss = compiled(rows)
    backward(loss, retain_graph=True)
    backward(loss)
    torch.testing.assert_close(gradients(model), [4 * one for one in once], rtol=1e-4, atol=1e-6)
