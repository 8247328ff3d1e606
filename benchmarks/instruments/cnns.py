"""The networks of HOME's and DELTA's tables, written out here so that no model library is needed.

For CIFAR-10, 32 x 32 pixels: VGG-16 with BatchNorm (Simonyan & Zisserman, 2015, configuration D), ResNet-18 (He et al.,
2016, Table 1, with a first convolution of 3 x 3 and no pooling), Plain-20 (the same without shortcuts, 64 channels
wide), MobileNet (Howard et al., 2017, Table 1, with fewer strides), SqueezeNet (Iandola et al., 2016, Table 1, with
BatchNorm), and, at 299 x 299 pixels as it was made for, Inception v3 (Szegedy et al., 2016, Table 1; its auxiliary head
left out).  HOME names these networks and no more; the paper's own largest batches point to these widths.

For ImageNet, 224 x 224 pixels: ResNet-50, ResNet-101, and ResNeXt-50 32x4d (Xie et al., 2017, Table 1).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

CIFAR_CLASSES, IMAGENET_CLASSES = 10, 1000


def convolution(
    channels: int, width: int, kernel: int | tuple[int, int], stride: int = 1, groups: int = 1, padding: int = -1
) -> nn.Sequential:
    """A convolution, BatchNorm and ReLU; images keep their size at stride 1 unless `padding` says otherwise."""
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    pads = (sides[0] // 2, sides[1] // 2) if padding < 0 else (padding, padding)
    return nn.Sequential(
        nn.Conv2d(channels, width, sides, stride=stride, padding=pads, groups=groups, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    )


class Concatenated(nn.Module):
    """Branches over one image, their channels side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        """The branches' answers, concatenated."""
        return torch.cat([branch(x) for branch in self.branches], dim=1)


class Residual(nn.Module):
    """``relu(inside(x) + shortcut(x))``, or without the shortcut."""

    def __init__(self, inside: nn.Module, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.inside, self.relu = inside, nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        """The sum."""
        result: Tensor = self.relu(self.inside(x) + self.shortcut(x))
        return result


def _head(width: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, classes)]


def vgg16() -> nn.Sequential:
    """VGG-16 with BatchNorm."""
    layers: list[nn.Module] = []
    channels = 3
    for convolutions, width in ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)):
        for _ in range(convolutions):
            layers.append(convolution(channels, width, 3))
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers, *_head(channels, CIFAR_CLASSES))


def _two(channels: int, width: int, stride: int) -> nn.Sequential:
    """Two convolutions of 3 x 3, the second without its ReLU."""
    second = [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
    return nn.Sequential(convolution(channels, width, 3, stride), *second)


def resnet18() -> nn.Sequential:
    """ResNet-18."""
    layers: list[nn.Module] = [convolution(3, 64, 3)]
    channels = 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            stride = 2 if stage and not block else 1
            layers.append(Residual(_two(channels, width, stride), channels, width, stride))
            channels = width
    return nn.Sequential(*layers, *_head(channels, CIFAR_CLASSES))


def plain20() -> nn.Sequential:
    """Plain-20: three stages of six convolutions behind a first one."""
    layers: list[nn.Module] = [convolution(3, 64, 3)]
    channels = 64
    for stage, width in enumerate((64, 128, 256)):
        for layer in range(6):
            layers.append(convolution(channels, width, 3, 2 if stage and not layer else 1))
            channels = width
    return nn.Sequential(*layers, *_head(channels, CIFAR_CLASSES))


def mobilenet() -> nn.Sequential:
    """MobileNet of depthwise and pointwise convolutions."""
    layers: list[nn.Module] = [convolution(3, 32, 3)]
    channels = 32
    plan = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *((512, 1),) * 5, (1024, 2), (1024, 1))
    for width, stride in plan:
        layers += [convolution(channels, channels, 3, stride, groups=channels), convolution(channels, width, 1)]
        channels = width
    return nn.Sequential(*layers, *_head(channels, CIFAR_CLASSES))


def _fire(channels: int, squeezed: int, width: int) -> nn.Sequential:
    expanded = Concatenated(convolution(squeezed, width // 2, 1), convolution(squeezed, width // 2, 3))
    return nn.Sequential(convolution(channels, squeezed, 1), expanded)


def squeezenet() -> nn.Sequential:
    """SqueezeNet."""
    layers: list[nn.Module] = [convolution(3, 96, 3), nn.MaxPool2d(2)]
    channels = 96
    for squeezed, width, pooled in (
        *((16, 128, False), (16, 128, False), (32, 256, True), (32, 256, False)),
        *((48, 384, False), (48, 384, False), (64, 512, True), (64, 512, False)),
    ):
        layers.append(_fire(channels, squeezed, width))
        layers += [nn.MaxPool2d(2)] if pooled else []
        channels = width
    return nn.Sequential(*layers, nn.Conv2d(channels, CIFAR_CLASSES, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())


def _chain(channels: int, *steps: tuple[int, int | tuple[int, int]]) -> nn.Sequential:
    layers = []
    for width, kernel in steps:
        layers.append(convolution(channels, width, kernel))
        channels = width
    return nn.Sequential(*layers)


def _pooled(channels: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), convolution(channels, width, 1))


def _smaller(channels: int, *branches: tuple[tuple[int, int | tuple[int, int]], ...]) -> Concatenated:
    """Branches that end in a convolution of stride 2, and a pooling."""
    made: list[nn.Module] = []
    for steps in branches:
        before = steps[-2][0] if len(steps) > 1 else channels
        made.append(nn.Sequential(_chain(channels, *steps[:-1]), convolution(before, steps[-1][0], 3, 2, padding=0)))
    return Concatenated(*made, nn.MaxPool2d(3, stride=2))


def _factored(channels: int, inner: int) -> Concatenated:
    wide, tall = (1, 7), (7, 1)
    return Concatenated(
        convolution(channels, 192, 1),
        _chain(channels, (inner, 1), (inner, wide), (192, tall)),
        _chain(channels, (inner, 1), (inner, tall), (inner, wide), (inner, tall), (192, wide)),
        _pooled(channels, 192),
    )


def _widened(channels: int) -> Concatenated:
    def split() -> Concatenated:
        return Concatenated(convolution(384, 384, (1, 3)), convolution(384, 384, (3, 1)))

    return Concatenated(
        convolution(channels, 320, 1),
        nn.Sequential(convolution(channels, 384, 1), split()),
        nn.Sequential(_chain(channels, (448, 1), (384, 3)), split()),
        _pooled(channels, 192),
    )


def inception_v3() -> nn.Sequential:
    """Inception v3."""
    layers: list[nn.Module] = [
        convolution(3, 32, 3, 2, padding=0),
        convolution(32, 32, 3, padding=0),
        convolution(32, 64, 3),
        nn.MaxPool2d(3, stride=2),
        convolution(64, 80, 1),
        convolution(80, 192, 3, padding=0),
        nn.MaxPool2d(3, stride=2),
    ]
    channels = 192
    for pooled in (32, 64, 64):
        layers.append(
            Concatenated(
                convolution(channels, 64, 1),
                _chain(channels, (48, 1), (64, 5)),
                _chain(channels, (64, 1), (96, 3), (96, 3)),
                _pooled(channels, pooled),
            )
        )
        channels = 224 + pooled
    layers.append(_smaller(channels, ((384, 3),), ((64, 1), (96, 3), (96, 3))))
    channels += 480
    layers += [_factored(channels, inner) for inner in (128, 160, 160, 192)]
    layers.append(_smaller(channels, ((192, 1), (320, 3)), ((192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3))))
    return nn.Sequential(*layers, _widened(1280), _widened(2048), *_head(2048, CIFAR_CLASSES))


def bottlenecks(blocks: tuple[int, ...], groups: int = 1, inner: int = 64) -> nn.Sequential:
    """ResNet-50, ResNet-101 and ResNeXt-50, by the blocks of each stage."""
    layers: list[nn.Module] = [convolution(3, 64, 7, 2), nn.MaxPool2d(3, stride=2, padding=1)]
    channels = 64
    for stage, count in enumerate(blocks):
        narrow, width = inner << stage, 256 << stage
        for block in range(count):
            stride = 2 if stage and not block else 1
            inside = nn.Sequential(
                convolution(channels, narrow, 1),
                convolution(narrow, narrow, 3, stride, groups=groups),
                nn.Conv2d(narrow, width, 1, bias=False),
                nn.BatchNorm2d(width),
            )
            layers.append(Residual(inside, channels, width, stride))
            channels = width
    return nn.Sequential(*layers, *_head(channels, IMAGENET_CLASSES))


def resnet50() -> nn.Sequential:
    """ResNet-50."""
    return bottlenecks((3, 4, 6, 3))


def resnet101() -> nn.Sequential:
    """ResNet-101."""
    return bottlenecks((3, 4, 23, 3))


def resnext50() -> nn.Sequential:
    """ResNeXt-50 32x4d."""
    return bottlenecks((3, 4, 6, 3), groups=32, inner=128)


CIFAR: dict[str, tuple[Callable[[], nn.Sequential], int]] = {
    "MobileNet": (mobilenet, 32),
    "Plain20": (plain20, 32),
    "SqueezeNet": (squeezenet, 32),
    "VGG16": (vgg16, 32),
    "ResNet": (resnet18, 32),
    "InceptionV3": (inception_v3, 299),
}
"""Builder and pixels a side of each network of HOME's tables."""
IMAGENET: dict[str, Callable[[], nn.Sequential]] = {
    "ResNet-50": resnet50,
    "ResNet-101": resnet101,
    "ResNeXt-50": resnext50,
}
"""Builders of DELTA's convolutional networks."""
