"""Models whose activations are measured at many input sizes, and how: what autograd saves in each layer.

BERT-like, RoBERTa-like and XLNet-like ones from transformers with random weights, six layers like the published ones in
kind, not in size; and two Swin-like ones, whose windows pad the image: one is written here, so that every padding is in
sight, and the other is that of transformers, which nobody wrote for this purpose.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    RobertaConfig,
    RobertaForMultipleChoice,
    SwinConfig,
    SwinForImageClassification,
    XLNetConfig,
    XLNetForQuestionAnsweringSimple,
)

from remat_compiler.dynamic_shapes.mimose.polynomial import LayerSample

LAYERS, WIDTH, HEADS, VOCABULARY, LONGEST = 6, 96, 4, 500, 512


@dataclass(frozen=True, slots=True, eq=False)
class VaryingModel:
    """A model, its layers, and its inputs for each size.

    Attributes:
        module: The model, in training mode.
        layers: Modules whose activations are told apart, in the order of the forward; what runs outside of them is one
            more block, the last.
        inputs: Keyword arguments of the forward for sizes.
    """

    module: nn.Module
    layers: Sequence[nn.Module]
    inputs: Callable[..., dict[str, Tensor]]

    def measure(self, *sizes: int, round_to: int = 1) -> LayerSample:
        """Bytes that one forward saves in each block, each storage once, and the time of each layer.

        Parameters, buffers and inputs are not counted: they are there before.

        Args:
            sizes: What varies.
            round_to: Each storage counts as a multiple of so many bytes, as with an allocator that gives no less.
        """
        inputs = self.inputs(*sizes)
        before = (*self.module.parameters(), *self.module.buffers(), *inputs.values())
        known = {tensor.untyped_storage().data_ptr() for tensor in before}
        saved, spent = [0] * (len(self.layers) + 1), [0] * (len(self.layers) + 1)
        running = [len(self.layers)]
        alive: list[Tensor] = []

        def pack(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in known:
                known.add(storage.data_ptr())
                saved[running[-1]] += -(-storage.nbytes() // round_to) * round_to
                alive.append(tensor.detach())  # so that no other storage comes to stand at its address
            # The result of an operator that held itself would never be freed.
            return tensor.detach()

        def enter(layer: int) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                running.append(layer)
                spent[layer] -= time.perf_counter_ns()

            return hook

        def leave(layer: int) -> Callable[..., None]:
            def hook(*_: Any) -> None:
                spent[layer] += time.perf_counter_ns()
                running.pop()

            return hook

        hooks = [layer.register_forward_pre_hook(enter(k)) for k, layer in enumerate(self.layers)]
        hooks += [layer.register_forward_hook(leave(k)) for k, layer in enumerate(self.layers)]
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            self.module(**inputs)
        for hook in hooks:
            hook.remove()
        return LayerSample(sizes, tuple(saved), tuple(spent))


class WindowAttention(nn.Module):
    """Attention within windows of a map, shifted or not; the map is padded to whole windows and cropped again."""

    def __init__(self, channels: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.qkv, self.out = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.bias = nn.Parameter(torch.zeros((2 * window - 1) ** 2, heads))
        at = torch.stack(torch.meshgrid(torch.arange(window), torch.arange(window), indexing="ij")).flatten(1)
        between = at[:, :, None] - at[:, None, :] + window - 1
        self.register_buffer("where", between[0] * (2 * window - 1) + between[1])

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, height, width, channels]``, the same shape again."""
        batch, height, width, channels = x.shape
        w = self.window
        x = F.pad(x, (0, 0, 0, -width % w, 0, -height % w))
        rows, columns = x.shape[1] // w, x.shape[2] // w
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        x = x.view(batch, rows, w, columns, w, channels).transpose(2, 3).reshape(-1, w * w, channels)
        q, k, v = self.qkv(x).view(-1, w * w, 3, self.heads, channels // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-1, -2) / (channels // self.heads) ** 0.5
        scores = scores + self.bias[self.where].permute(2, 0, 1)
        if self.shift:
            apart = self._apart(rows, columns).repeat(batch, 1, 1)[:, None]
            scores = scores.masked_fill(apart, -100.0)
        x = self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(-1, w * w, channels))
        x = x.view(batch, rows, columns, w, w, channels).transpose(2, 3).reshape(batch, rows * w, columns * w, channels)
        if self.shift:
            x = x.roll((self.shift, self.shift), (1, 2))
        return x[:, :height, :width].contiguous()

    def _apart(self, rows: int, columns: int) -> Tensor:
        """``[window, token, token]``: which tokens of a window come from different sides of the map."""
        w = self.window
        side = [torch.arange(count * w) for count in (rows, columns)]
        part = [(at >= len(at) - w).int() + (at >= len(at) - self.shift).int() for at in side]
        region = 3 * part[0][:, None] + part[1]
        region = region.view(rows, w, columns, w).transpose(1, 2).reshape(-1, w * w)
        return region[:, :, None] != region[:, None, :]


class SwinBlock(nn.Module):
    """Windows and a perceptron, each with a norm before and a skip around."""

    def __init__(self, channels: int, heads: int, window: int, shift: int) -> None:
        super().__init__()
        self.before, self.attention = nn.LayerNorm(channels), WindowAttention(channels, heads, window, shift)
        self.after = nn.LayerNorm(channels)
        self.wide, self.narrow = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, height, width, channels]``, the same shape again."""
        x = x + self.attention(self.before(x))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class Merge(nn.Module):
    """Half the map, twice the channels; an odd map is padded to an even one."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm, self.reduce = nn.LayerNorm(4 * channels), nn.Linear(4 * channels, 2 * channels, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """``[batch, height, width, channels]`` to half the height and width and twice the channels."""
        x = F.pad(x, (0, 0, 0, x.shape[2] % 2, 0, x.shape[1] % 2))
        parts = [x[:, row::2, column::2] for column in range(2) for row in range(2)]
        return self.reduce(self.norm(torch.cat(parts, -1)))


class Patches(nn.Module):
    """An image, padded to whole patches, to a map of their projections."""

    def __init__(self, channels: int, patch: int) -> None:
        super().__init__()
        self.patch, self.project = patch, nn.Conv2d(3, channels, patch, patch)

    def forward(self, image: Tensor) -> Tensor:
        """``[batch, 3, height, width]`` to ``[batch, height, width, channels]``."""
        image = F.pad(image, (0, -image.shape[3] % self.patch, 0, -image.shape[2] % self.patch))
        return self.project(image).permute(0, 2, 3, 1)


class SwinLike(nn.Module):
    """Liu et al., *Swin Transformer* (2021), small: patches, stages of window blocks, merges between, a mean."""

    def __init__(self, channels: int = 16, depths: Sequence[int] = (2, 2, 2, 2), window: int = 7) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Patches(channels, 4)])
        for stage, depth in enumerate(depths):
            width = channels << stage
            if stage:
                self.blocks.append(Merge(width // 2))
            self.blocks += [SwinBlock(width, 2 << stage, window, (k % 2) * (window // 2)) for k in range(depth)]
        self.head = nn.Linear(channels << (len(depths) - 1), 10)

    def forward(self, image: Tensor) -> Tensor:
        """``[batch, 3, height, width]`` to ten numbers."""
        for block in self.blocks:
            image = block(image)
        return self.head(image.mean((1, 2)))


def _tokens(batch: tuple[int, ...]) -> Callable[..., dict[str, Tensor]]:
    return lambda length: {"input_ids": torch.randint(5, VOCABULARY, (*batch, length))}


def _image(height: int, width: int = 0) -> Tensor:
    return torch.randn(2, 3, height, width or height)


_ENCODER: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 4 * WIDTH,
    "attn_implementation": "eager",
}
"""What BERT and RoBERTa have in common."""


def bert() -> VaryingModel:
    """TC-Bert and QA-Bert: a BERT with a classifier."""
    config = BertConfig(max_position_embeddings=LONGEST, **_ENCODER)
    module = BertForSequenceClassification(config).train()
    return VaryingModel(module, list(module.bert.encoder.layer), _tokens((4,)))


def roberta() -> VaryingModel:
    """MC-Roberta: four choices a question."""
    config = RobertaConfig(max_position_embeddings=LONGEST + 2, **_ENCODER)
    module = RobertaForMultipleChoice(config).train()
    return VaryingModel(module, list(module.roberta.encoder.layer), _tokens((1, 4)))


def xlnet() -> VaryingModel:
    """QA-XLNet: relative positions, twice the length of the text."""
    config = XLNetConfig(vocab_size=VOCABULARY, d_model=WIDTH, n_layer=LAYERS, n_head=HEADS, d_inner=4 * WIDTH)
    module = XLNetForQuestionAnsweringSimple(config).train()
    return VaryingModel(module, list(module.transformer.layer), _tokens((2,)))


def swin() -> VaryingModel:
    """Images, square or of two sizes."""
    module = SwinLike().train()
    return VaryingModel(module, list(module.blocks), lambda *sides: {"image": _image(*sides)})


def swin_of_transformers() -> VaryingModel:
    """The same with 193 pixels a side or more: its windows do not shrink with the map."""
    config = SwinConfig(
        embed_dim=16, depths=[2, 2, 2, 2], num_heads=[2, 4, 8, 16], window_size=7, attn_implementation="eager"
    )
    module = SwinForImageClassification(config).train()
    layers: list[nn.Module] = [module.swin.embeddings]
    for stage in module.swin.encoder.layers:
        layers += [*stage.blocks, *([] if stage.downsample is None else [stage.downsample])]
    return VaryingModel(module, layers, lambda *sides: {"pixel_values": _image(*sides)})
