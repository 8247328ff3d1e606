"""The models behind the captured instances: networks of the zoo at three sizes.

The small size keeps the full one's widths where it can and cuts the depth, so that an exact solver sees real ratios
of bytes to time.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from zoo import ZooModel
from zoo.attention import VOCABULARY, bert, gpt2, gpt2_of_depth, llama, t5, vit
from zoo.loss import Classifier
from zoo.sequential import CLASSES, ResidualMLP, UnrolledLSTM
from zoo.vision import UNet, alexnet, resnet50, vgg19

SIZES = ("small", "medium", "full")
Built = tuple[nn.Module, dict[str, Tensor]]
_TEXT = {"vocabulary": VOCABULARY, "batch": 4, "length": 128, "dropout": 0.0}


def _mlp(layers: int) -> Built:
    network = ResidualMLP(layers=layers, hidden=128, classes=CLASSES, dropout=0.0)
    return network, {"x": torch.randn(512, 128), "labels": torch.randint(CLASSES, (512,))}


def _lstm(steps: int) -> Built:
    network = UnrolledLSTM(inputs=128, hidden=128, classes=CLASSES, dropout=0.0)
    return network, {"sequence": torch.randn(steps, 64, 128), "labels": torch.randint(CLASSES, (64,))}


def _unet(base: int, depth: int, pixels: int) -> Built:
    network = Classifier(UNet(base=base, depth=depth, classes=4, dropout=0.0))
    return network, {"images": torch.randn(2, 3, pixels, pixels), "labels": torch.randint(4, (2, pixels, pixels))}


def _classified(network: nn.Module, batch: int, pixels: int) -> Built:
    return Classifier(network), {
        "images": torch.randn(batch, 3, pixels, pixels),
        "labels": torch.randint(CLASSES, (batch,)),
    }


def _gpt2(layers: int, heads: int = 4, attention: str = "sdpa") -> Built:
    return gpt2(layers=layers, hidden=256, heads=heads, attention=attention, **_TEXT)  # type: ignore[arg-type]


def _bert(layers: int) -> Built:
    return bert(layers=layers, hidden=256, heads=4, **_TEXT)  # type: ignore[arg-type]


def _t5(layers: int) -> Built:
    return t5(layers=layers, hidden=256, heads=4, **_TEXT)  # type: ignore[arg-type]


def _llama(layers: int) -> Built:
    return llama(layers=layers, hidden=256, heads=8, **_TEXT)  # type: ignore[arg-type]


def _vit(layers: int) -> Built:
    return vit(layers=layers, hidden=256, heads=4, classes=CLASSES, batch=8, pixels=64, patch=8, dropout=0.0)


def _resnet50(blocks: int) -> Built:
    return _classified(resnet50(width_divisor=2, blocks_cap=blocks, classes=CLASSES, dropout=0.0), 16, 64)


def _vgg19(divisor: int) -> Built:
    return _classified(vgg19(width_divisor=divisor, pooled=2, hidden=512, classes=CLASSES, dropout=0.0), 4, 64)


def _alexnet(divisor: int) -> Built:
    return _classified(alexnet(width_divisor=divisor, pooled=6, hidden=512, classes=CLASSES, dropout=0.0), 16, 224)


MODELS: dict[str, tuple[Callable[[], Built], Callable[[], Built], Callable[[], Built]]] = {
    "mlp": (lambda: _mlp(6), lambda: _mlp(40), lambda: _mlp(200)),
    "lstm": (lambda: _lstm(6), lambda: _lstm(20), lambda: _lstm(64)),
    "gpt2": (lambda: _gpt2(1), lambda: _gpt2(3), lambda: _gpt2(6)),
    "unet": (lambda: _unet(16, 1, 64), lambda: _unet(16, 2, 128), lambda: _unet(16, 3, 128)),
    "gpt2eagerattn": (
        lambda: _gpt2(1, 8, "eager"),
        lambda: _gpt2(3, 8, "eager"),
        lambda: _gpt2(6, 8, "eager"),
    ),
    "gpt2narrow": (lambda: gpt2_of_depth(4), lambda: gpt2_of_depth(24), lambda: gpt2_of_depth(96)),
    "bert": (lambda: _bert(1), lambda: _bert(3), lambda: _bert(6)),
    "t5": (lambda: _t5(1), lambda: _t5(2), lambda: _t5(3)),
    "llama": (lambda: _llama(1), lambda: _llama(3), lambda: _llama(6)),
    "vit": (lambda: _vit(1), lambda: _vit(3), lambda: _vit(6)),
    "resnet50": (lambda: _resnet50(1), lambda: _resnet50(2), lambda: _resnet50(6)),
    "vgg19": (lambda: _vgg19(8), lambda: _vgg19(4), lambda: _vgg19(1)),
    "alexnet": (lambda: _alexnet(8), lambda: _alexnet(4), lambda: _alexnet(1)),
}
"""Builders of the small, medium and full size."""


def model_of(name: str, size: str) -> ZooModel:
    """The model `name` at `size`, with weights and inputs from a fixed seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module, inputs = MODELS[name][SIZES.index(size)]()
    return ZooModel(f"{name}_{size}", module.train(), inputs)
