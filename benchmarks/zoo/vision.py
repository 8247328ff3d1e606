"""Convolutional networks of the zoo, written out here so that no model library is needed.

VGG-19 follows Simonyan & Zisserman (2015), configuration E; AlexNet Krizhevsky's one-tower variant (2014);
ResNet-50 He et al. (2016), Table 1, with the stride on the 3x3 convolution; U-Net Ronneberger et al. (2015),
with padded convolutions and BatchNorm.  Where a size is smaller than the paper's, the builder says so.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from zoo.loss import Classifier, dropout_layer

Built = tuple[nn.Module, dict[str, Tensor]]

CLASSES = 100

VGG19_STAGES: tuple[tuple[int, int], ...] = ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512))
"""(convolutions, channels) of each stage of configuration E; a 2x2 max pool ends each stage."""

RESNET50_STAGES: tuple[tuple[int, int], ...] = ((3, 64), (4, 128), (6, 256), (3, 512))
"""(bottleneck blocks, inner channels) of each stage at full width; a block puts out four times as many."""

BOTTLENECK_EXPANSION = 4


def vgg19(*, width_divisor: int, pooled: int, hidden: int, classes: int, dropout: float) -> nn.Sequential:
    """VGG-19 whose feature map is `pooled` x `pooled` when the classifier starts."""
    layers: list[nn.Module] = []
    channels = 3
    for convolutions, full_width in VGG19_STAGES:
        width = full_width // width_divisor
        for _ in range(convolutions):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    head = _dense_head(channels * pooled * pooled, hidden, classes, dropout)
    return nn.Sequential(*layers, nn.Flatten(), *head)


def alexnet(*, width_divisor: int, pooled: int, hidden: int, classes: int, dropout: float) -> nn.Sequential:
    """AlexNet whose feature map is `pooled` x `pooled` when the classifier starts."""
    c1, c2, c3, c4 = (c // width_divisor for c in (64, 192, 384, 256))
    return nn.Sequential(
        nn.Conv2d(3, c1, 11, stride=4, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(c1, c2, 5, padding=2),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Conv2d(c2, c3, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(c3, c4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.Conv2d(c4, c4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2),
        nn.Flatten(),
        *_dense_head(c4 * pooled * pooled, hidden, classes, dropout),
    )


def _dense_head(features: int, hidden: int, classes: int, dropout: float) -> list[nn.Module]:
    """The three dense layers that end VGG and AlexNet."""
    return [
        nn.Linear(features, hidden),
        nn.ReLU(inplace=True),
        dropout_layer(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(inplace=True),
        dropout_layer(dropout),
        nn.Linear(hidden, classes),
    ]


class Bottleneck(nn.Module):
    """1x1, 3x3, 1x1 convolutions with BatchNorm around a shortcut."""

    def __init__(self, channels: int, inner: int, stride: int) -> None:
        super().__init__()
        outer = inner * BOTTLENECK_EXPANSION
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(inner)
        self.conv3 = nn.Conv2d(inner, outer, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != outer:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, outer, 1, stride=stride, bias=False),
                nn.BatchNorm2d(outer),
            )

    def forward(self, x: Tensor) -> Tensor:
        """``relu(shortcut(x) + block(x))``."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.relu(self.bn2(self.conv2(out)))
        out = self.bn3(self.conv3(out))
        result: Tensor = self.relu(out + self.shortcut(x))
        return result


def resnet50(*, width_divisor: int, blocks_cap: int, classes: int, dropout: float) -> nn.Sequential:
    """ResNet-50 with every width divided by `width_divisor` and at most `blocks_cap` blocks a stage."""
    channels = 64 // width_divisor
    layers: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    for stage, (blocks, full_width) in enumerate(RESNET50_STAGES):
        inner = full_width // width_divisor
        for block in range(min(blocks, blocks_cap)):
            layers.append(Bottleneck(channels, inner, stride=2 if stage > 0 and block == 0 else 1))
            channels = inner * BOTTLENECK_EXPANSION
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), dropout_layer(dropout), nn.Linear(channels, classes)]
    return nn.Sequential(*layers, *head)


def _double_conv(channels: int, width: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with BatchNorm and ReLU."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.Conv2d(width, width, 3, padding=1),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Encoder and decoder with a skip at every resolution; it puts out class scores for every pixel."""

    def __init__(self, *, base: int, depth: int, classes: int, dropout: float) -> None:
        super().__init__()
        widths = [base << level for level in range(depth + 1)]
        self.down = nn.ModuleList(_double_conv(c, w) for c, w in zip([3, *widths], widths))
        self.up = nn.ModuleList(nn.ConvTranspose2d(w * 2, w, 2, stride=2) for w in reversed(widths[:-1]))
        self.merge = nn.ModuleList(_double_conv(w * 2, w) for w in reversed(widths[:-1]))
        self.pool = nn.MaxPool2d(2)
        self.dropout = dropout_layer(dropout)
        self.head = nn.Conv2d(base, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Class scores ``(batch, classes, height, width)``."""
        skips: list[Tensor] = []
        x = images
        for level, block in enumerate(self.down):
            x = block(self.pool(x) if level else x)
            skips.append(x)
        x = self.dropout(skips.pop())
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        scores: Tensor = self.head(x)
        return scores


def build_vgg19(tiny: bool, dropout: float) -> Built:
    """VGG-19 at full width on 64x64 images, with a classifier of 512 instead of 4096 units."""
    if tiny:
        return _classified(vgg19(width_divisor=16, pooled=1, hidden=16, classes=10, dropout=dropout), 2, 32, 10)
    return _classified(vgg19(width_divisor=1, pooled=2, hidden=512, classes=CLASSES, dropout=dropout), 4, 64, CLASSES)


def build_alexnet(tiny: bool, dropout: float) -> Built:
    """AlexNet at full width on 224x224 images, with a classifier of 512 instead of 4096 units."""
    if tiny:
        return _classified(alexnet(width_divisor=16, pooled=1, hidden=16, classes=10, dropout=dropout), 2, 63, 10)
    net = alexnet(width_divisor=1, pooled=6, hidden=512, classes=CLASSES, dropout=dropout)
    return _classified(net, 16, 224, CLASSES)


def build_resnet50(tiny: bool, dropout: float) -> Built:
    """ResNet-50 at half width on 64x64 images."""
    if tiny:
        return _classified(resnet50(width_divisor=16, blocks_cap=1, classes=10, dropout=dropout), 2, 32, 10)
    return _classified(resnet50(width_divisor=2, blocks_cap=6, classes=CLASSES, dropout=dropout), 16, 64, CLASSES)


def build_unet(tiny: bool, dropout: float) -> Built:
    """U-Net with three poolings and 16 channels at full resolution, on 128x128 images."""
    pixels, classes = (16, 2) if tiny else (128, 4)
    net = UNet(base=4 if tiny else 16, depth=2 if tiny else 3, classes=classes, dropout=dropout)
    labels = torch.randint(classes, (2, pixels, pixels))
    return Classifier(net), {"images": torch.randn(2, 3, pixels, pixels), "labels": labels}


def _classified(network: nn.Module, batch: int, pixels: int, classes: int) -> Built:
    """The network under its loss, and a random batch of labelled images."""
    inputs = {"images": torch.randn(batch, 3, pixels, pixels), "labels": torch.randint(classes, (batch,))}
    return Classifier(network), inputs
