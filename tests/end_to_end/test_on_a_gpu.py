"""Steps on a GPU: the peak that the user reads is within the budget, and what is trained is what eager trains."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import remat_compiler

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]
WIDTH, ROWS, LAYERS = 512, 4096, 8
CUDNN_BYTES = 64 << 20
"""What a workspace of cuDNN may take here: several times the largest operand, of 8 MiB."""


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


def test_two_models_at_once() -> None:
    """Steps that are open at the same time: the gradients of each, and both within what both may take."""
    models, (_, rows) = [Layers().cuda() for _ in range(2)], begun()
    for model in models:
        backward(model(rows))
    expected = [gradients(model) for model in models]
    compiled = [compiled_for(model, 0.7, "inductor") for model in models]

    def step() -> None:
        for model in models:
            model.zero_grad()
        losses = [called(rows) for called in compiled]
        for loss in losses:
            backward(loss)

    for _ in range(3):
        step()
    for model, wanted in zip(models, expected, strict=True):
        torch.testing.assert_close(gradients(model), wanted, rtol=1e-4, atol=1e-6)
    for model in models:
        model.zero_grad()
    assert peak_of(step) <= sum(report.peak_bytes for report in remat_compiler.reports())


def test_convolutions_whose_algorithms_are_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `cudnn.benchmark`, the first step tries algorithms with workspaces; later ones keep the budget."""
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    layers = [nn.Sequential(nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU()) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 64 * 64, 1)).cuda()
    images = torch.randn(16, 32, 64, 64, device="cuda")
    other = copy.deepcopy(model)
    backward(other(images).mean())
    called = compiled_for(model, "min", "eager")

    def step() -> None:
        model.zero_grad()
        backward(called(images).mean())

    step()
    torch.testing.assert_close(gradients(model), gradients(other), rtol=1e-3, atol=1e-5)
    step()
    model.zero_grad()
    peak = peak_of(step)
    # Workspaces of cuDNN are the one thing that is not known before: none may be larger than what it is given.
    (report,) = remat_compiler.reports()
    assert peak <= report.peak_bytes + CUDNN_BYTES


@pytest.mark.parametrize("read", [1024, 8192])
def test_a_gradient_of_a_table_is_added_up_without_a_table_in_float32(read: int) -> None:
    """By the kernel for few indices, and by that for many, whose sums are counted."""
    table = nn.Embedding(1 << 16, WIDTH, padding_idx=3)
    model = nn.Sequential(table, nn.Linear(WIDTH, 8)).cuda().bfloat16()
    tokens = torch.randint(0, 4 * read, (read,), device="cuda").remainder(1 << 16)
    backward(model(tokens).float().square().mean())
    expected = gradients(model)
    called = compiled_for(model, "min", "inductor")

    def step() -> None:
        model.zero_grad()
        backward(called(tokens).float().square().mean())

    for _ in range(2):
        step()
    torch.testing.assert_close(gradients(model), expected, rtol=2e-2, atol=1e-5)
    model.zero_grad()
    (report,) = remat_compiler.reports()
    assert peak_of(step) <= report.peak_bytes < 1.5 * table.weight.nbytes


@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_one_rank_of_nccl(kind: str, tmp_path: Path) -> None:
    """What wraps a model for several GPUs works on one: gradients, and the peak beside them."""
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path / 'ranks'}", rank=0, world_size=1)
    try:
        model, rows = begun()
        backward(model(rows))
        expected = gradients(model)
        model.zero_grad()
        if kind == "ddp":
            wrapped: nn.Module = nn.parallel.DistributedDataParallel(model)
        else:
            for block in model.blocks:
                fully_shard(block)
            fully_shard(model)
            wrapped = model
        called = compiled_for(wrapped, "min", "inductor")
        for _ in range(3):
            wrapped.zero_grad()
            backward(called(rows))
        found = [one.full_tensor() if isinstance(one, DTensor) else one for one in gradients(wrapped)]
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        assert remat_compiler.reports()
    finally:
        torch.distributed.destroy_process_group()
