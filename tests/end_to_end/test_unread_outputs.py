"""``outputs="loss"``: results beside the loss are not computed, whoever reads one is told, and the rest is as ever."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with
from instruments.measure import measure_step
from remat_compiler.errors import InfeasibleBudget, OutputNotComputed

pytestmark = [pytest.mark.usefixtures("compiles_anew")]

CLASSES, WIDTH, ROWS = 1024, 16, 128


class Words(nn.Module):
    """A model that returns its loss as models of transformers do, among much else."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss, logits, hidden states, a part of the loss and a statistic, in an order of their own."""
        last = F.gelu(self.layer(hidden))
        logits = self.head(last)
        squares = last.square().mean().view(1)
        right = (logits.detach().argmax(-1) == labels).float().mean() if self.training else squares
        loss = F.cross_entropy(logits, labels) + squares[0]
        return {"logits": logits, "loss": loss, "last": last, "squares": squares, "right": right, "labels": labels}


class Quiet(Words):
    """The same without a statistic that reads all logits."""

    def forward(self, hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss and logits."""
        logits = self.head(F.gelu(self.layer(hidden)))
        return {"loss": F.cross_entropy(logits, labels), "logits": logits}


@cache
def inputs(rows: int = ROWS) -> tuple[Tensor, Tensor]:
    """Hidden states and labels, which are there before a step that is measured."""
    made = torch.Generator().manual_seed(rows)
    return torch.randn(rows, WIDTH, generator=made), torch.randint(0, CLASSES, (rows,), generator=made)


def trained(model: Callable[..., dict[str, Tensor]], module: nn.Module, rows: int = ROWS) -> dict[str, Tensor]:
    """A step: what the model returns, with gradients left in the module."""
    module.zero_grad()
    found = model(*inputs(rows))
    found["loss"].backward()
    return found


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_the_loss_and_its_gradients_are_eager_s_and_the_rest_has_its_sizes(inner: str) -> None:
    plain = Words()
    module = copy.deepcopy(plain)
    want = trained(plain, plain)
    found = trained(compile_with(module, memory_budget=1.0, inner=inner, outputs="loss"), module)
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)
    assert list(found) == list(want)
    for name in ("loss", "squares", "right", "labels"):
        torch.testing.assert_close(found[name], want[name])
    for name in ("logits", "last"):
        one, other = found[name], want[name]
        assert (one.shape, one.dtype, one.device, one.stride()) == (
            other.shape,
            other.dtype,
            other.device,
            other.stride(),
        )
        with pytest.raises(OutputNotComputed):
            one.sum().item()


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_what_is_not_returned_is_no_floor(inner: str) -> None:
    peaks = {}
    for outputs in ("all", "loss"):
        torch._dynamo.reset()
        remat_compiler.clear_reports()
        module = Quiet()
        model = compile_with(module, memory_budget="min", inner=inner, outputs=outputs)
        measured = measure_step(lambda model=model, module=module: trained(model, module)["loss"].detach())
        report = remat_compiler.reports()[-1]
        assert measured.peak_bytes == report.peak_bytes or outputs == "all"
        assert bool(report.chunked) == (outputs == "loss")
        peaks[outputs] = measured.peak_bytes
    assert 2 * peaks["loss"] < peaks["all"]


def test_sizes_that_change_are_those_of_each_call() -> None:
    plain = Quiet()
    module = copy.deepcopy(plain)
    model = torch.compile(
        module, backend="remat", dynamic=True, options={"memory_budget": 1.0, "inner": "eager", "outputs": "loss"}
    )
    for rows in (ROWS, 40, 56):
        want, found = trained(plain, plain, rows), trained(model, module, rows)
        torch.testing.assert_close(found["loss"], want["loss"])
        torch.testing.assert_close(module.head.weight.grad, plain.head.weight.grad)
        assert found["logits"].shape == (rows, CLASSES)


def test_what_does_not_train_returns_everything() -> None:
    module = Quiet()
    model = compile_with(module, memory_budget=1.0, inner="eager", outputs="loss")
    trained(model, module)
    with torch.no_grad():
        found, want = model(*inputs()), module(*inputs())
    torch.testing.assert_close(found, want)


class Stopped(Words):
    """A model whose graph ends behind a part of its loss."""

    def forward(self, hidden: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Loss and logits, by two graphs."""
        last = F.gelu(self.layer(hidden))
        squares = last.square().mean()
        torch._dynamo.graph_break()
        logits = self.head(last)
        return {"loss": F.cross_entropy(logits, labels) + squares, "logits": logits}


def test_a_graph_that_goes_on_in_another_one_returns_what_that_reads() -> None:
    plain = Stopped()
    module = copy.deepcopy(plain)
    want = trained(plain, plain)
    found = trained(compile_with(module, memory_budget=1.0, inner="eager", outputs="loss"), module)
    torch.testing.assert_close(found["loss"], want["loss"])
    torch.testing.assert_close(module.layer.weight.grad, plain.layer.weight.grad)
    with pytest.raises(OutputNotComputed):
        found["logits"][0, 0].item()


def test_a_graph_without_a_loss_returns_everything() -> None:
    module = nn.Linear(WIDTH, CLASSES)
    model = compile_with(module, memory_budget=1.0, inner="eager", outputs="loss")
    hidden = inputs()[0]
    torch.testing.assert_close(model(hidden), module(hidden))


def test_a_refusal_names_the_option_if_it_may_help() -> None:
    for outputs, helps in (("all", True), ("loss", False)):
        torch._dynamo.reset()
        options: dict[str, Any] = {"memory_budget": 0.05, "inner": "eager", "outputs": outputs}
        with pytest.raises(InfeasibleBudget) as told:
            trained(torch.compile(Quiet(), backend="remat", options=options), nn.Module())
        assert ('outputs="loss"' in str(told.value)) is helps
        assert ("gradients for them take 512.0 KiB" in str(told.value)) is helps
