"""The networks of Coop's evaluation, at the sizes of their papers, each under a loss.

ResNet-50 and Inception v3 are those of `cnns`, U-Net and the cell of the BiLSTM those of the zoo, BERT-Large, GPT-2 and
Swin-T those of `transformers`, with the attention written out.  SPOS is one path, drawn at random, through the supernet
of Guo et al., *Single Path One-Shot Neural Architecture Search with Uniform Sampling*, 2020, section 3.3: blocks of
ShuffleNet v2 with kernels of 3, 5 or 7, or of the form of Xception.  The paper gives batch sizes in a figure only, so
those here are our own.  GPT-2 stands for its 2.7 billion parameters of the GPT-3 form on four GPUs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import BertConfig, BertForQuestionAnswering, SwinConfig, SwinForImageClassification

from instruments.cnns import IMAGENET_CLASSES, convolution, inception_v3, resnet50
from instruments.published_models import Gpt2
from zoo.loss import Classifier
from zoo.sequential import LSTMCell
from zoo.vision import UNet

Built = tuple[nn.Module, dict[str, Tensor]]
SPOS_STAGES = ((4, 64), (4, 160), (8, 320), (4, 640))
"""Blocks and channels of each stage of the supernet."""
KERNELS = (3, 5, 7, 0)
"""The choices of a block; 0 is the form of Xception."""


@dataclass(frozen=True, slots=True)
class CoopModel:
    """A network with its batch.

    Attributes:
        name: Name in the paper.
        build: Makes the network under its loss, and its inputs.
        size: Its batch, in words.
        states: Values that the optimizer keeps for each parameter: 1 for SGD with momentum, 2 for Adam.
    """

    name: str
    build: Callable[[], Built]
    size: str
    states: int = 1


class BiLSTM(nn.Module):
    """Layers of LSTMs over a sequence in both directions, unrolled, under the cross entropy of its last states."""

    def __init__(self, layers: int, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        widths = [inputs, *[2 * hidden] * (layers - 1)]
        self.hidden = hidden
        self.cells = nn.ModuleList(nn.ModuleList(LSTMCell(w, hidden) for _ in range(2)) for w in widths)
        self.head = nn.Linear(2 * hidden, classes)

    def forward(self, sequence: Tensor, labels: Tensor) -> Tensor:
        """Mean cross entropy against `labels`; the sequence is ``(time, batch, inputs)``."""
        values = list(sequence.unbind(0))
        last = values[0]
        for onward, backward in self.cells:
            left = self._run(onward, values)
            right = self._run(backward, values[::-1])[::-1]
            values = [torch.cat(both, dim=1) for both in zip(left, right)]
            # Each direction has seen the whole sequence at its own end.
            last = torch.cat([left[-1], right[0]], dim=1)
        return functional.cross_entropy(self.head(last), labels)

    def _run(self, cell: nn.Module, values: list[Tensor]) -> list[Tensor]:
        h = c = values[0].new_zeros(values[0].shape[0], self.hidden)
        states = []
        for x in values:
            h, c = cell(x, h, c)
            states.append(h)
        return states


def _depthwise(channels: int, kernel: int, stride: int) -> nn.Sequential:
    weights = nn.Conv2d(channels, channels, kernel, stride=stride, padding=kernel // 2, groups=channels, bias=False)
    return nn.Sequential(weights, nn.BatchNorm2d(channels))


class ChoiceBlock(nn.Module):
    """A block of ShuffleNet v2 with one of `KERNELS`; at stride 2 both halves see the whole input."""

    def __init__(self, channels: int, width: int, stride: int, kernel: int) -> None:
        super().__init__()
        seen, half = (channels if stride == 2 else channels // 2), width // 2
        self.stride = stride
        if kernel:
            inside = [convolution(seen, half, 1), _depthwise(half, kernel, stride), convolution(half, half, 1)]
        else:
            inside = [_depthwise(seen, 3, stride), convolution(seen, half, 1)]
            for _ in range(2):
                inside += [_depthwise(half, 3, 1), convolution(half, half, 1)]
        self.inside = nn.Sequential(*inside)
        self.beside: nn.Module = nn.Identity()
        if stride == 2:
            self.beside = nn.Sequential(_depthwise(channels, 3, 2), convolution(channels, half, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Both halves, their channels shuffled."""
        beside, seen = (x, x) if self.stride == 2 else x.chunk(2, dim=1)
        both = torch.stack([self.beside(beside), self.inside(seen)], dim=2)
        return both.flatten(1, 2)


def spos(seed: int) -> nn.Sequential:
    """A path through the supernet, drawn from `seed`."""
    rng = Random(seed)
    layers: list[nn.Module] = [convolution(3, 16, 3, 2)]
    channels = 16
    for blocks, width in SPOS_STAGES:
        for block in range(blocks):
            layers.append(ChoiceBlock(channels, width, 1 if block else 2, rng.choice(KERNELS)))
            channels = width
    head = [convolution(channels, 1024, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, IMAGENET_CLASSES)]
    return nn.Sequential(*layers, *head)


class Answers(nn.Module):
    """A BERT under the loss of SQuAD, where an answer begins and ends."""

    def __init__(self, config: BertConfig) -> None:
        super().__init__()
        self.network = BertForQuestionAnswering(config)

    def forward(self, input_ids: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
        """Mean cross entropy of both."""
        out = self.network(input_ids)
        loss: Tensor = functional.cross_entropy(out.start_logits, begins) + functional.cross_entropy(
            out.end_logits, ends
        )
        return loss


class Logits(nn.Module):
    """The logits of an image network of `transformers`."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        """``(batch, classes)``."""
        logits: Tensor = self.network(pixel_values=images).logits
        return logits


def _repeatable(network: nn.Module) -> nn.Module:
    """`network` with norms of the batch alone, which keep no running statistics.

    An operator that changes statistics is never executed twice here, while the paper's frameworks recompute it; bytes
    and time are the same without.
    """
    for part in network.modules():
        if isinstance(part, nn.BatchNorm2d):
            part.track_running_stats = False
            part.running_mean = part.running_var = part.num_batches_tracked = None
    return network


def _images(network: nn.Module, batch: int, pixels: int, classes: int = IMAGENET_CLASSES) -> Built:
    inputs = {"images": torch.randn(batch, 3, pixels, pixels), "labels": torch.randint(classes, (batch,))}
    return Classifier(_repeatable(network)).train(), inputs


def _unet() -> Built:
    inputs = {"images": torch.randn(32, 3, 256, 256), "labels": torch.randint(2, (32, 256, 256))}
    return Classifier(_repeatable(UNet(base=64, depth=4, classes=2, dropout=0.0))).train(), inputs


def _bert_large() -> Built:
    config = BertConfig(
        hidden_size=1024,
        num_hidden_layers=24,
        num_attention_heads=16,
        intermediate_size=4096,
        attn_implementation="eager",
    )
    tokens = torch.zeros(16, 512, dtype=torch.long)
    inputs = {"input_ids": tokens, "begins": tokens[:, 0].clone(), "ends": tokens[:, 0].clone()}
    return Answers(config).train(), inputs


def _swin_t() -> Built:
    config = SwinConfig(attn_implementation="eager", num_labels=IMAGENET_CLASSES)
    return _images(Logits(SwinForImageClassification(config)), 128, 224)


def _bilstm() -> Built:
    inputs = {"sequence": torch.randn(32, 512, 512), "labels": torch.randint(100, (512,))}
    return BiLSTM(2, 512, 512, 100).train(), inputs


MODELS = {
    model.name: model
    for model in (
        CoopModel("ResNet-50", lambda: _images(resnet50(), 128, 224), "128 images of 224²"),
        CoopModel("Inception-V3", lambda: _images(inception_v3(), 96, 299, 10), "96 images of 299²"),
        CoopModel("U-Net", _unet, "32 images of 256²"),
        CoopModel("Swin-T", _swin_t, "128 images of 224²"),
        CoopModel("BERT-Large", _bert_large, "16 texts of 512 tokens", states=2),
        CoopModel("GPT-2", Gpt2("GPT-2", 12, 768, 12, 8, 1024, tokens_lost=True).build, "8 texts of 1,024 tokens", 2),
        CoopModel("BiLSTM", _bilstm, "512 sequences of 32"),
        CoopModel("SPOS", lambda: _images(spos(0), 256, 224), "256 images of 224²"),
    )
}
"""The eight networks."""
