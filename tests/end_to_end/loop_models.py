"""The models of the training loops, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, WIDTH, LAYERS, STEPS = 256, 64, 4, 3
Backend = Callable[..., Any] | str


def batch(number: int) -> Tensor:
    """The inputs of a step; made once, so that they are resident."""
    return _BATCHES[number % len(_BATCHES)]


_BATCHES = [torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(n)) for n in range(2)]
WORDS = [torch.randint(0, 100, (32, 8), generator=torch.Generator().manual_seed(n)) for n in range(2)]
IMAGES = [
    torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(n)).to(memory_format=torch.channels_last)
    for n in range(2)
]


class Block(nn.Module):
    """A feed-forward block with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.1, self.training)


class Net(nn.Module):
    """A stem, blocks, and a loss; `how` runs a block, `broken` cuts the graph after each."""

    def __init__(self, how: Callable[[nn.Module, Tensor], Tensor] | None = None, broken: bool = False) -> None:
        super().__init__()
        self.stem, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 8)
        self.blocks = nn.ModuleList([Block() for _ in range(LAYERS)])
        self.how, self.broken = how, broken

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x) if self.how is None else self.how(block, x)
            if self.broken:
                torch._dynamo.graph_break()
        return self.head(x).square().mean()


class Tied(Net):
    """The first block's weight is used again in the last, the second block is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks[-1].up.weight = self.blocks[0].up.weight
        self.blocks[1].requires_grad_(False)


class LowRank(nn.Module):
    """A frozen linear layer with a trained low-rank addition."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.b = nn.Parameter(torch.randn(base.out_features, rank) / rank)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.dropout(x, 0.1, self.training) @ self.a.t() @ self.b.t()


class Heavy(nn.Module):
    """One MiB of weights a layer, so that DDP has several buckets."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(512, 512) for _ in range(6)])

    def forward(self, x: Tensor) -> Tensor:
        x = x.repeat(1, 8)
        for layer in self.layers:
            x = F.gelu(layer(x))
        return x.square().mean()


class Unused(Heavy):
    """A layer takes no part in the step."""

    def __init__(self) -> None:
        super().__init__()
        self.never = nn.Linear(WIDTH, WIDTH)


class Words(nn.Module):
    """Sparse gradients of an embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.net = nn.Embedding(100, WIDTH, sparse=True), Net()

    def forward(self, words: Tensor) -> Tensor:
        loss: Tensor = self.net(self.embed(words))
        return loss


class Images(nn.Module):
    """Convolutions and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList([nn.Conv2d(3 if i == 0 else 16, 16, 3, padding=1) for i in range(LAYERS)])
        self.norms = nn.ModuleList([nn.BatchNorm2d(16) for _ in range(LAYERS)])

    def forward(self, x: Tensor) -> Tensor:
        for conv, norm in zip(self.convs, self.norms):
            x = F.relu(norm(conv(x)))
        return x.square().mean()


class Recurrent(nn.Module):
    """A module that Dynamo does not look into."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.net = nn.LSTM(WIDTH, WIDTH, batch_first=True), Net()

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.net(self.rnn(x.view(32, 8, WIDTH))[0])
        return loss


def low_rank() -> nn.Module:
    net = Net()
    for block in net.blocks:
        block.up, block.down = LowRank(block.up), LowRank(block.down)
    return net


def peft() -> nn.Module:
    peft = __import__("peft")
    made: nn.Module = peft.get_peft_model(Net(), peft.LoraConfig(r=4, lora_dropout=0.1, target_modules=["up", "down"]))
    return made


def _halve(parameter: Tensor) -> None:
    assert parameter.grad is not None, "the hook runs after the gradient is there"
    parameter.grad.mul_(0.5)


def hooked() -> nn.Module:
    net = Net()
    for block in net.blocks:
        block.register_full_backward_hook(lambda module, grads, outs: (grads[0] * 0.9,))
        block.register_forward_hook(lambda module, inputs, output: output * 1.1)
        block.up.weight.register_hook(lambda gradient: gradient * 2)
    net.head.weight.register_post_accumulate_grad_hook(_halve)
    return net


Step = Callable[[Any, nn.Module, int], object]
