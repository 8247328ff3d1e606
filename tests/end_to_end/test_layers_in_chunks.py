"""Layers in chunks through ``torch.compile``: what eager gives, at foretold peaks below those of whole layers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from chunks.layer_programs import Attention, FeedForward, causal
from chunks.stretched_programs import Stem
from end_to_end.compiling import compile_with, differences_from_eager
from instruments.measure import measure_step, train_step
from remat_compiler.report.plan_report import PlanReport
from remat_compiler.report.summary import summary_text
from zoo.loss import MeanSquare

pytestmark = pytest.mark.usefixtures("compiles_anew", "in_four")

WIDTH = 16


@pytest.fixture
def in_four(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are tried in 4 chunks alone: in 16, code takes long to compile."""
    monkeypatch.setattr("remat_compiler.partition.in_chunks.LAYERS", (4,))


class Model(nn.Module):
    """Layers one behind the other, each added to what it reads."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in layers)

    def forward(self, x: Tensor) -> Tensor:
        for norm, layer in zip(self.norms, self.layers):
            x = x + layer(norm(x))
        return x.square().mean()


def feed_forward() -> Model:
    """Three layers of two products."""
    return Model(*(FeedForward(F.gelu) for _ in range(3)))


def attention() -> Model:
    """Two layers of scores."""
    return Model(*(Attention(causal) for _ in range(2)))


def images() -> MeanSquare:
    """The first layers of a network of images."""
    return MeanSquare(Stem(lambda channels: nn.GroupNorm(2, channels), lambda x: F.max_pool2d(x, 2)))


MODELS = {"feed_forward": (feed_forward, (4, 512)), "attention": (attention, (4, 128))}
INNERS = pytest.mark.parametrize("inner", ["eager", "inductor"])


def measured(name: str, chunks: str, inner: str, budget: int | float | str) -> tuple[int, PlanReport]:
    """Peak of a step, and the report."""
    make, shape = MODELS[name]
    torch.manual_seed(0)
    remat_compiler.clear_reports()
    model = compile_with(make(), memory_budget=budget, inner=inner, chunks=chunks, max_slowdown=None)
    step = train_step(model, {"x": torch.randn(*shape, WIDTH)})
    return measure_step(step).peak_bytes, remat_compiler.reports()[-1]


@INNERS
@pytest.mark.parametrize("name", MODELS)
def test_the_smallest_peak_is_lower_and_as_foretold(name: str, inner: str) -> None:
    whole_bytes, whole = measured(name, "never", inner, "min")
    peak_bytes, report = measured(name, "auto", inner, "min")

    assert (whole.peak_bytes, report.peak_bytes) == (whole_bytes, peak_bytes)
    assert peak_bytes < 0.9 * whole_bytes
    assert "layers in" in summary_text(report)
    assert " each\n" in summary_text(report)


@INNERS
def test_images_in_chunks_peak_lower_and_as_foretold(inner: str) -> None:
    peaks = []
    for chunks in ("never", "auto"):
        torch.manual_seed(0)
        remat_compiler.clear_reports()
        model = compile_with(images(), memory_budget="min", inner=inner, chunks=chunks, max_slowdown=None)
        step = train_step(model, {"x": torch.randn(8, 3, 32, 32)})
        peaks.append(measure_step(step).peak_bytes)
        assert peaks[-1] == remat_compiler.reports()[-1].peak_bytes
    assert peaks[1] < 0.7 * peaks[0]


@INNERS
def test_a_budget_that_no_plan_of_whole_layers_reaches(inner: str) -> None:
    _, whole = measured("feed_forward", "never", inner, "min")
    _, chunked = measured("feed_forward", "auto", inner, "min")
    budget = (whole.peak_bytes + 3 * chunked.peak_bytes) // 4
    peak_bytes, report = measured("feed_forward", "auto", inner, budget)
    assert peak_bytes == report.peak_bytes <= budget


@INNERS
@pytest.mark.parametrize("name", MODELS)
def test_equal_to_eager_but_for_rounding(name: str, inner: str) -> None:
    make, shape = MODELS[name]
    options = {"memory_budget": "min", "inner": inner, "max_slowdown": None}
    assert differences_from_eager(make(), (torch.randn(*shape, WIDTH),), tolerance=1e-5, **options) == []
    assert "layers in" in summary_text(remat_compiler.reports()[-1])
