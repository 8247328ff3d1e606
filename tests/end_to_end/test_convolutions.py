"""Convolutions in Inductor's layout, whose copies are planned: trained as in eager, within the budget."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dry_run.steps import peak_of
from end_to_end.compiling import compile_with, differences_from_eager
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.observer import Observer, observed_by

TOLERANCE = 1e-5
WIDTH, SIDE = 16, 24


class Blocks(nn.Module):
    """Convolutions with batch normalisation between them, and with a checkpoint region around one or all of them."""

    def __init__(self, checkpointed: tuple[int, ...] = ()) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(nn.Conv2d(n, WIDTH, 3, padding=1, bias=False) for n in (3, WIDTH, WIDTH))
        # Eager computes such a region again, and so updates its statistics twice.
        tracked = [i not in checkpointed for i in range(3)]
        self.norms = nn.ModuleList(nn.BatchNorm2d(WIDTH, track_running_stats=one) for one in tracked)
        self.checkpointed = checkpointed

    def forward(self, x: Tensor) -> Tensor:
        for i in range(3):
            x = checkpoint(self._block, i, x, use_reentrant=False) if i in self.checkpointed else self._block(i, x)
        return x.square().mean()

    def _block(self, i: int, x: Tensor) -> Tensor:
        return F.gelu(self.norms[i](self.convolutions[i](x)))


class Copies(Observer):
    """Whether inputs were copied, for each try."""

    def __init__(self) -> None:
        self.made: list[bool] = []

    def attempt_ends(self, attempt: Any) -> None:
        self.made += [one.copies_inputs for one in attempt.partitions]


def images(number: int) -> Tensor:
    """A batch whose size changes."""
    x = torch.randn(number, 3, SIDE, SIDE)
    torch._dynamo.mark_dynamic(x, 0)
    return x


def trained(model: nn.Module, call: Any, x: Tensor) -> dict[str, Tensor]:
    """Loss and gradients of one step, and the statistics after it."""
    model.zero_grad(set_to_none=True)
    loss = call(x)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **gradients, **{name: b.clone() for name, b in model.named_buffers()}}


@pytest.mark.slow
def test_one_budget_for_batches_of_all_sizes(made: list[Dispatch]) -> None:
    model = Blocks()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    x = images(12)
    budget = peak_of(lambda: trained(model, model, x))
    compiled = compile_with(model, None, memory_budget=budget, inner="inductor", on_infeasible="error")
    for number in (6, 8, 18, 3, 22):
        x = images(number)
        model.load_state_dict(state)
        expected = trained(model, model, x)
        model.load_state_dict(state)
        torch.testing.assert_close(trained(model, compiled, x), expected, rtol=TOLERANCE, atol=TOLERANCE)
        # What the size needs is compiled by now, so that only the step itself is measured.
        assert peak_of(lambda x=x: trained(model, compiled, x)) <= budget  # type: ignore[misc]
    assert any(use.variant.added > 0 for one in made for use in one.uses), "nothing was computed again"


@pytest.mark.slow
@pytest.mark.usefixtures("compiles_anew")
@pytest.mark.parametrize("checkpointed", [(0,), (1,), (0, 1, 2)])
def test_checkpoint_regions_around_convolutions(checkpointed: tuple[int, ...]) -> None:
    model, x, copies = Blocks(checkpointed), torch.randn(4, 3, SIDE, SIDE), Copies()
    with observed_by(copies):
        assert not differences_from_eager(model, (x,), tolerance=TOLERANCE, memory_budget=0.8, inner="inductor")
    assert any(copies.made)


def _of_images(kind: str) -> nn.Module:
    """Small convolutions, of which torch's own order and layout may take least."""
    if kind == "plain":
        return nn.Sequential(*[m for n in (3, 4, 4) for m in (nn.Conv2d(n, 4, 3, padding=1), nn.Tanh())][:-1])
    if kind == "strided":
        return nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.GELU(), nn.ConvTranspose2d(8, 4, 3, 2), nn.Tanh())
    if kind == "by channel":
        return nn.Sequential(nn.Conv2d(3, 6, 1), nn.SiLU(), nn.Conv2d(6, 6, 3, padding=1, groups=6), nn.Sigmoid())
    return nn.Sequential(nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Tanh())


@pytest.mark.usefixtures("compiles_anew")
@pytest.mark.parametrize("kind", ["plain", "strided", "by channel", "normalised"])
def test_the_smallest_peak_is_no_higher_than_that_without_a_budget(kind: str) -> None:
    model, x = _of_images(kind), torch.randn(8, 3, 20, 20, requires_grad=True)
    peaks = []
    for budget in (1.0, "min"):
        compiled = compile_with(
            lambda x: model(x).square().mean(),  # type: ignore[arg-type]
            memory_budget=budget,
            inner="inductor",
            cost_model="nominal",
        )

        def step(call: Any = compiled) -> None:
            model.zero_grad()
            x.grad = None
            call(x).backward()

        for _ in range(2):
            step()
        model.zero_grad()
        x.grad = None
        peaks.append(peak_of(step))
    assert peaks[1] <= peaks[0]
