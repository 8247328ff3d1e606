"""Heads that turn a network into a training step's scalar loss."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


def dropout_layer(probability: float) -> nn.Module:
    """Dropout, or nothing at all at probability 0: `nn.Dropout(0)` would still leave an operator in the graph."""
    return nn.Dropout(probability) if probability > 0 else nn.Identity()


class Classifier(nn.Module):
    """A network of images under a cross-entropy loss, one label an image or one a pixel."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy of the network's answer to `images` against `labels`."""
        return functional.cross_entropy(self.network(images), labels)


class TokenLoss(nn.Module):
    """A network of tokens with a ``.logits`` field in its answer, under the cross entropy of every token.

    The loss is computed here and not by the network: the loss of `transformers` may log, which breaks the graph.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, labels: Tensor, **tokens: Tensor) -> Tensor:
        """Mean cross entropy of the logits for `tokens` against `labels`, which are not shifted."""
        logits: Tensor = self.network(**tokens).logits
        return functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))


class MeanSquare(nn.Module):
    """A network under the mean of the squares of its answer: a step of no loss in particular."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        """A scalar."""
        answer: Tensor = self.network(x)
        return answer.square().mean()
