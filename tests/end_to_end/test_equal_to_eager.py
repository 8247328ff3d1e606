"""Small models through ``torch.compile``: the same numbers as eager, at every budget, under both inner compilers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from end_to_end.compiling import compile_with, differences_from_eager

INDUCTOR_TOLERANCE = 1e-4
"""Inductor fuses and reorders sums; its random numbers differ from eager's, unless it calls eager's operators."""


class Net(nn.Module):
    """Products, batch normalisation and dropout."""

    def __init__(self, dropout: float = 0.2, width: int = 16) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.norm, self.dropout = nn.BatchNorm1d(width), dropout

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(F.gelu(self.norm(self.first(x))), self.dropout)
        return F.dropout(torch.tanh(self.second(x)), self.dropout).square().mean()


class OldBuffer(nn.Module):
    """The backward needs the buffer as it was before the step changed it."""

    buf: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16) / 4)
        self.register_buffer("buf", torch.full((16,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.sin((x @ self.weight) * self.buf.clone() * 3)
        self.buf.add_(1)
        return (y @ self.weight).square().mean()


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x))).square().mean()


@pytest.mark.parametrize("budget", [1.0, 0.7, 0.4, "min"])
@pytest.mark.parametrize("dropout", [0.1, 0.5])
def test_eager_inner_is_equal_bit_for_bit(budget: float | str, dropout: float) -> None:
    assert differences_from_eager(Net(dropout), (torch.randn(8, 16),), memory_budget=budget) == []


class Recurrent(nn.Module):
    """Layers over several steps."""

    def __init__(self, layer: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layer, self.head = layer(16, 16, num_layers=2, batch_first=True), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.head(self.layer(x)[0])).square().mean()


@pytest.mark.parametrize("layer", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("budget", [1.0, "min"])
def test_recurrent_layers(layer: type[nn.RNNBase], budget: float | str) -> None:
    # torch compiles no nn.LSTM that is trained with oneDNN's kernel.
    with torch._dynamo.config.patch(allow_rnn=True), torch.backends.mkldnn.flags(enabled=layer is not nn.LSTM):
        inputs = (torch.randn(4, 6, 16),)
        # Torch decomposes a GRU to other operators than those of its own loop, which some processors round otherwise.
        rounding = 1e-6 if layer is nn.GRU else 0.0
        found = differences_from_eager(Recurrent(layer), inputs, tolerance=rounding, memory_budget=budget)
    assert found == []


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("budget", [0.5, "min"])
def test_the_old_value_of_a_changed_buffer(inner: str, budget: float | str) -> None:
    tolerance = INDUCTOR_TOLERANCE if inner == "inductor" else 0.0
    x = torch.randn(8, 16)
    found = differences_from_eager(OldBuffer(), (x,), memory_budget=budget, inner=inner, tolerance=tolerance)
    assert found == []


def test_inductor_without_dropout() -> None:
    x = torch.randn(8, 16)
    found = differences_from_eager(Net(0.0), (x,), memory_budget="min", inner="inductor", tolerance=INDUCTOR_TOLERANCE)
    assert found == []


def test_inductor_draws_the_same_numbers_at_every_budget() -> None:
    """All random values come from the seeds that the forward drew, which are saved."""
    model, x = Net(0.5), torch.randn(8, 16)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    gradients = []
    for budget in (1.0, "min"):
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        compiled = compile_with(model, memory_budget=budget, inner="inductor")
        torch.manual_seed(3)
        compiled(x).backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients):
        torch.testing.assert_close(b, a, rtol=INDUCTOR_TOLERANCE, atol=INDUCTOR_TOLERANCE)


def test_autocast() -> None:
    x = torch.randn(8, 16)
    found = differences_from_eager(Net(0.1), (x,), memory_budget="min", precision=torch.bfloat16, tolerance=2e-2)
    assert found == []


def test_channels_last() -> None:
    images = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last)
    model = Convolved().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    assert differences_from_eager(model, (images,), memory_budget="min") == []


def test_dynamic_shapes() -> None:
    torch._dynamo.reset()
    model = Net(0.2)
    assert differences_from_eager(model, (torch.randn(8, 16),), memory_budget="min", dynamic=True) == []
    compiled = compile_with(model, dynamic=True, memory_budget="min")
    for batch in (4, 9, 17):
        x = torch.randn(batch, 16)
        found: list[Any] = []
        for call in (model, compiled):
            model.zero_grad(set_to_none=True)
            torch.manual_seed(1)
            call(x).backward()
            found.append([p.grad for p in model.parameters()])
        for a, b in zip(*found):
            torch.testing.assert_close(b, a, rtol=0, atol=0)


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_without_gradients(inner: str) -> None:
    model, x = OldBuffer(), torch.randn(8, 16)
    before = model.buf.clone()
    expected = model(x)
    model.buf.copy_(before)
    with torch.no_grad():
        got = compile_with(model, memory_budget=0.5, inner=inner)(x)
    torch.testing.assert_close(got, expected.detach(), rtol=1e-5, atol=1e-5)
    assert torch.equal(model.buf, before + 1)


def test_a_model_without_parameters() -> None:
    x = torch.randn(4, 4)
    model = nn.Sequential(nn.Tanh(), nn.Softmax(-1))
    assert torch.equal(compile_with(model, memory_budget=0.5)(x), model(x))
