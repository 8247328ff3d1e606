"""What the benchmark of estimators measures: bytes that autograd saves in each layer, each storage once."""

from __future__ import annotations

import torch
from torch import nn

from remat_compiler.dynamic_shapes.mimose.polynomial import PolynomialEstimator
from studies.mimose.varying_models import VaryingModel, bert


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


def test_the_estimator_meets_a_measured_model() -> None:
    model = bert()
    estimator = PolynomialEstimator()
    estimator.add_all(model.measure(length) for length in (31, 64, 99, 150, 233))
    for length in (40, 133, 204):
        assert estimator.predict((length,)).block_bytes == model.measure(length).block_bytes
