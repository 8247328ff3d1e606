"""Deep chains of the zoo: a recurrent net unrolled by hand, and a very deep residual perceptron."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from zoo.loss import dropout_layer

Built = tuple[nn.Module, dict[str, Tensor]]

CLASSES = 100

RESIDUAL_SCALE = 0.1
"""Keeps activations of a few hundred residual layers bounded without a norm."""


class LSTMCell(nn.Module):
    """Hochreiter & Schmidhuber's cell with a forget gate, in plain operators, so that each step is in the graph."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_hidden = nn.Linear(hidden, 4 * hidden)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        """State ``(h, c)`` after the input `x`."""
        i, f, g, o = (self.from_input(x) + self.from_hidden(h)).chunk(4, dim=1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(c), c


class UnrolledLSTM(nn.Module):
    """An LSTM over ``(time, batch, inputs)``, one cell call a step, under the cross entropy of its last state."""

    def __init__(self, *, inputs: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = LSTMCell(inputs, hidden)
        self.dropout = dropout_layer(dropout)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequence: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the last state's class against `labels`."""
        h = c = sequence.new_zeros(sequence.shape[1], self.hidden)
        for x in sequence.unbind(0):
            h, c = self.cell(x, h, c)
        return functional.cross_entropy(self.head(self.dropout(h)), labels)


class ResidualMLP(nn.Module):
    """``x + 0.1 * gelu(linear(x))`` many times over, under a cross-entropy loss."""

    def __init__(self, *, layers: int, hidden: int, classes: int, dropout: float) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(layers))
        self.dropout = dropout_layer(dropout)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the class of each row of `x` against `labels`."""
        for linear in self.linears:
            x = x + RESIDUAL_SCALE * self.dropout(functional.gelu(linear(x)))
        return functional.cross_entropy(self.head(x), labels)


def build_lstm(tiny: bool, dropout: float) -> Built:
    """An LSTM unrolled over 64 steps."""
    steps, batch, inputs, hidden = (4, 4, 8, 16) if tiny else (64, 64, 128, 128)
    module = UnrolledLSTM(inputs=inputs, hidden=hidden, classes=CLASSES, dropout=dropout)
    return module, {"sequence": torch.randn(steps, batch, inputs), "labels": torch.randint(CLASSES, (batch,))}


def build_mlp200(tiny: bool, dropout: float) -> Built:
    """A residual perceptron of 200 layers."""
    layers, batch, hidden = (8, 16, 16) if tiny else (200, 512, 128)
    module = ResidualMLP(layers=layers, hidden=hidden, classes=CLASSES, dropout=dropout)
    return module, {"x": torch.randn(batch, hidden), "labels": torch.randint(CLASSES, (batch,))}
