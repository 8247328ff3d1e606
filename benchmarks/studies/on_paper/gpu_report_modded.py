"""The language model of modded-nanogpt's record of 17 December 2024, one rank of eight: 12 layers, 65,536 tokens."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask, flex_attention

Made = tuple[Any, ...]
"""Model and inputs."""
_WIDTH, _HEADS, _LAYERS, _WORDS, _PADDED, _BLOCK = 768, 6, 12, 50257, 50304, 128
_WITHOUT_ATTENTION, _RANKS = 7, 8


@dataclass(frozen=True, slots=True)
class Modded:
    """The step of one rank, whose model and loss are compiled as one."""

    tokens: int

    def __call__(self) -> Made:
        """The step."""
        model: Any = torch.compile(_Model(), backend="remat", options={"memory_budget": 1.0})
        inputs = torch.zeros(self.tokens, dtype=torch.int32)
        return model, (inputs, inputs.long(), torch.ones((), dtype=torch.int32))


def one_rank(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Adam of what is no matrix of a layer, and one moment of every eighth of those: Muon shares them among ranks."""
    matrices, others = [], []
    for parameter in parameters:
        is_matrix = parameter.dim() == 2 and max(parameter.shape) <= 4 * _WIDTH
        (matrices if is_matrix else others).append(parameter)
    return _OneRank([*others, *matrices[::_RANKS]], len(others))


class _OneRank(torch.optim.Adam):
    """Adam, whose second moment is there for the first `count` of its parameters alone."""

    def __init__(self, parameters: list[nn.Parameter], count: int) -> None:
        super().__init__(parameters[:count], fused=True)
        self.matrices = parameters[count:]

    def step(self, closure: Any = None) -> Any:
        """The step; that of matrices keeps a moment."""
        with torch.no_grad():
            for matrix in self.matrices:
                if matrix.grad is not None:
                    kept = self.state[matrix].setdefault("momentum", torch.zeros_like(matrix))
                    matrix.add_(kept.lerp_(matrix.grad, 0.05), alpha=-0.05)
        return super().step(closure)


class _Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(_WORDS, _WIDTH, dtype=torch.bfloat16)
        self.values = nn.ModuleList(nn.Embedding(_WORDS, _WIDTH, dtype=torch.bfloat16) for _ in range(3))
        self.blocks = nn.ModuleList(_Block(i != _WITHOUT_ATTENTION) for i in range(_LAYERS))
        self.head = nn.Linear(_WIDTH, _PADDED, bias=False)
        self.skips = nn.Parameter(torch.ones(_LAYERS // 2, dtype=torch.bfloat16))

    def forward(self, tokens: Tensor, targets: Tensor, window: Tensor) -> Tensor:
        mask = _block_mask(tokens, window)
        x = first = _normed(self.words(tokens[None]))
        given = [layer(tokens) for layer in self.values]
        values = [*given, *[None] * (_LAYERS - 6), *given]
        passed: list[Tensor] = []
        for i, block in enumerate(self.blocks):
            if i >= _LAYERS // 2:
                x = x + self.skips[i - _LAYERS // 2] * passed.pop()
            x = block(x, values[i], first, mask)
            if i < _LAYERS // 2:
                passed.append(x)
        logits = _linear(self.head, _normed(x))
        logits = (30 * torch.tanh(logits / 30)).float()
        return F.cross_entropy(logits.view(-1, _PADDED), targets.view(-1))


def _block_mask(tokens: Tensor, window: Tensor) -> BlockMask:
    documents = (tokens == _WORDS - 1).cumsum(0)
    low, high = documents.view(-1, _BLOCK)[:, 0].contiguous(), documents.view(-1, _BLOCK)[:, -1].contiguous()
    places = torch.arange(len(low), dtype=torch.int32, device=tokens.device)
    near = places[:, None] - places < window
    some = (places[:, None] >= places) & near & (low[:, None] <= high) & (low <= high[:, None])
    full = (places[:, None] > places) & near & (low[:, None] == high) & (low == high[:, None])

    def allowed(_: Tensor, __: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (documents[query] == documents[key])

    def ordered(dense: Tensor) -> tuple[Tensor, Tensor]:
        counts, order = dense.sum(dim=-1, dtype=torch.int32), dense.int().argsort(dim=-1, descending=True, stable=True)
        return counts[None, None].contiguous(), order.int()[None, None].contiguous()

    return BlockMask.from_kv_blocks(*ordered(some & ~full), *ordered(full), BLOCK_SIZE=_BLOCK, mask_mod=allowed)


class _Block(nn.Module):
    def __init__(self, attends: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, _WIDTH, bias=False) for _ in range(4)) if attends else None
        self.wide, self.narrow = nn.Linear(_WIDTH, 4 * _WIDTH, bias=False), nn.Linear(4 * _WIDTH, _WIDTH, bias=False)
        self.shares = nn.Parameter(torch.ones(2, dtype=torch.bfloat16))
        self.value_shares = nn.Parameter(torch.ones(2, dtype=torch.bfloat16)) if attends else None
        angles = torch.zeros(65536, _WIDTH // _HEADS // 2, dtype=torch.bfloat16)
        self.register_buffer("cosines", angles if attends else None)
        self.register_buffer("sines", angles.clone() if attends else None)

    def forward(self, x: Tensor, values: Tensor | None, first: Tensor, mask: BlockMask) -> Tensor:
        x = self.shares[0] * x + self.shares[1] * first
        if self.layers is not None:
            x = x + self._mixed(_normed(x), values, mask)
        return x + _linear(self.narrow, F.relu(_linear(self.wide, _normed(x))).square())

    def _mixed(self, x: Tensor, values: Tensor | None, mask: BlockMask) -> Tensor:
        assert self.layers is not None
        assert self.value_shares is not None
        query, key, value = (_linear(layer, x).view(1, x.shape[1], _HEADS, -1) for layer in self.layers[:3])
        value = self.value_shares[0] * value
        if values is not None:
            value = value + self.value_shares[1] * values.view(value.shape)
        parts = [self._turned(_normed(query)), self._turned(_normed(key)), value]
        mixed: Any = flex_attention(*(part.transpose(1, 2) for part in parts), block_mask=mask)
        return _linear(self.layers[3], mixed.transpose(1, 2).contiguous().view(x.shape))

    def _turned(self, x: Tensor) -> Tensor:
        cosines, sines = self.cosines[None, : x.shape[1], None], self.sines[None, : x.shape[1], None]
        first, second = x.float().chunk(2, dim=-1)
        return torch.cat((first * cosines + second * sines, second * cosines - first * sines), dim=-1).to(x.dtype)


def _normed(x: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],))


def _linear(layer: nn.Linear, x: Tensor) -> Tensor:
    """With the weight in the type of the input, as it is in float32 itself."""
    return F.linear(x, layer.weight.to(x.dtype))
