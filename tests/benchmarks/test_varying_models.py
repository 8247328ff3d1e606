"""What the benchmark of estimators measures: bytes that autograd saves in each layer, each storage once."""

from __future__ import annotations

import torch
from torch import nn

from remat_compiler.dynamic_shapes.mimose.polynomial import PolynomialEstimator
from varying_models import SwinBlock, VaryingModel, swin


class TwoLayers(nn.Module):
    """A linear layer with a rectifier, a second one that reads the same result twice, and a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(5, 7), nn.ReLU())
        self.second = nn.Bilinear(7, 7, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.first(x)
        return (self.second(hidden, hidden) ** 2).sum()


def two_layers() -> VaryingModel:
    module = TwoLayers()
    return VaryingModel(module, [module.first, module.second], lambda rows: {"x": torch.randn(rows, 5)})


def test_each_storage_counts_once_and_inputs_and_parameters_do_not() -> None:
    sample = two_layers().measure(11)
    # The rectifier saves its result; the second layer reads that alone; the square saves what it is taken of.
    assert sample.block_bytes == (11 * 7 * 4, 0, 11 * 3 * 4)
    assert min(sample.block_ns[:2]) > 0


def test_tensors_may_count_as_an_allocator_rounds_them() -> None:
    assert two_layers().measure(11, round_to=512).block_bytes == (512, 0, 512)


def test_windows_keep_the_shape_of_any_map() -> None:
    block = SwinBlock(8, 2, window=7, shift=3)
    for height, width in ((7, 7), (8, 13), (20, 6)):
        assert block(torch.randn(2, height, width, 8)).shape == (2, height, width, 8)


def test_what_is_padded_alike_takes_the_same_bytes() -> None:
    """Sides of 57 to 60 pixels are fifteen patches, in any stage."""
    model = swin()
    assert len({model.measure(side).block_bytes for side in (57, 58, 60)}) == 1
    assert model.measure(61).block_bytes != model.measure(60).block_bytes


def test_the_estimator_meets_a_measured_model() -> None:
    model = swin()
    estimator = PolynomialEstimator()
    estimator.add_all(model.measure(side) for side in (64, 81, 99, 118, 150, 163, 190, 211, 230, 252))
    for side in (72, 133, 204, 240):
        assert estimator.predict((side,)).block_bytes == model.measure(side).block_bytes
