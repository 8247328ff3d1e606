"""The dry run predicts the allocator's peak to the byte, and leaves no trace."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

from dry_run.steps import (
    TABLE,
    Branch,
    CheckpointedDropout,
    DryRunBackend,
    Folding,
    Gpt,
    ImagesInText,
    Mlp,
    MutatedBuffer,
    ReducedLosses,
    ResidualConv,
    Select,
    peak_of,
    predicted_and_measured,
    train_step,
)
from remat_compiler.dry_run.dry_run import dry_run

Make = Callable[[], nn.Module]

INNER = pytest.mark.parametrize("inner", ["inductor", "eager"])
MODELS: dict[str, tuple[Make, tuple[int, ...]]] = {
    "batch norm": (Mlp, (256, 64)),
    "dropout": (lambda: Mlp(0.3), (256, 64)),
    "attention": (Gpt, (2, 64)),
    "attention with dropout": (lambda: Gpt(dropout=0.1), (2, 64)),
    "residual convolutions": (ResidualConv, (4, 3, 32, 32)),
    "checkpointed dropout": (CheckpointedDropout, (64, 64)),
    "mutated buffer": (MutatedBuffer, (32, 64)),
    "windows": (Folding, (2, 32, 16)),
    "images in text": (ImagesInText, (2, 64, 16)),
    "means of terms": (ReducedLosses, (64, 16)),
}


def example_input(model: nn.Module, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.randint(0, 256, shape) if isinstance(model, Gpt) else torch.randn(shape)


@INNER
@pytest.mark.parametrize("name", MODELS)
def test_peak_is_exact(name: str, inner: str) -> None:
    make, shape = MODELS[name]
    model = make()
    prediction, measured = predicted_and_measured(model, [example_input(model, shape)], inner)
    assert prediction.unknown == ""
    assert prediction.unmeasured == ()
    assert prediction.peak_bytes == measured


@INNER
@pytest.mark.parametrize("name", ["batch norm", "attention", "residual convolutions"])
def test_peak_is_exact_under_autocast(name: str, inner: str) -> None:
    make, shape = MODELS[name]
    model = make()
    prediction, measured = predicted_and_measured(model, [example_input(model, shape)], inner, autocast=True)
    assert prediction.unmeasured == ()
    assert prediction.peak_bytes == measured


@INNER
def test_peak_is_exact_with_channels_last(inner: str) -> None:
    model = ResidualConv().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    images = torch.randn(4, 3, 32, 32).to(memory_format=torch.channels_last)
    prediction, measured = predicted_and_measured(model, [images], inner)
    assert prediction.peak_bytes == measured


@INNER
def test_an_input_that_requires_grad_gets_its_gradient(inner: str) -> None:
    images = torch.randn(4, 3, 32, 32, requires_grad=True)
    model = ResidualConv()

    torch._dynamo.reset()
    backend = DryRunBackend(inner)
    compiled = torch.compile(model, backend=backend)

    def step() -> None:
        images.grad = None
        train_step(compiled, model, [images])

    step()
    images.grad = None
    model.zero_grad()
    assert backend.predictions[0].peak_bytes == peak_of(step)


@INNER
def test_one_artifact_at_several_sizes(inner: str) -> None:
    torch._dynamo.reset()
    model, backend = Mlp(), DryRunBackend(inner)
    compiled = torch.compile(model, backend=backend, dynamic=True)
    first = torch.randn(32, 64)
    train_step(compiled, model, [first])
    for batch in (32, 48, 200, 1000):
        x = torch.randn(batch, 64)
        inputs = [
            x if isinstance(value, torch.Tensor) and value.shape == first.shape else value
            for value in (batch if isinstance(value, (int, torch.SymInt)) else value for value in backend.inputs[0])
        ]
        train_step(compiled, model, [x])
        model.zero_grad()
        measured = peak_of(lambda x=x: train_step(compiled, model, [x]))  # type: ignore[misc]
        assert len(backend.compiled) == 1, "recompiled"
        prediction = dry_run(backend.compiled[0], inputs, backend.recorders[0].graphs, TABLE)
        assert prediction.peak_bytes == measured


@INNER
def test_accumulating_into_gradients_that_exist(inner: str) -> None:
    torch._dynamo.reset()
    model, backend = Mlp(), DryRunBackend(inner)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    x = torch.randn(256, 64)
    compiled(x).backward()
    measured = peak_of(lambda: compiled(x).backward())
    graphs = backend.recorders[0].graphs
    prediction = dry_run(backend.compiled[0], backend.inputs[0], graphs, TABLE, gradients_exist=True)
    assert prediction.peak_bytes == measured


@INNER
@pytest.mark.parametrize("make", [Branch, Select])
def test_a_step_that_depends_on_data_is_unknown(make: Make, inner: str) -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        prediction, measured = predicted_and_measured(make(), [torch.randn(4, 8)], inner)
    assert measured > 0
    assert prediction.unknown
    assert "\n" not in prediction.unknown
    assert prediction.peak_bytes == 0


@INNER
def test_no_trace_is_left(inner: str) -> None:
    torch._dynamo.reset()
    model, backend = Mlp(0.3), DryRunBackend(inner)
    x = torch.randn(32, 64)
    compiled = torch.compile(model, backend=backend, dynamic=False)
    train_step(compiled, model, [x])
    model.zero_grad(set_to_none=True)
    buffers = {name: value.clone() for name, value in model.named_buffers()}
    graphs = backend.recorders[0].graphs
    calls = [graph.owner.current_callable for graph in graphs]
    state = torch.get_rng_state()

    first = dry_run(backend.compiled[0], backend.inputs[0], graphs)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, buffers[name]) for name, value in model.named_buffers())
    assert [graph.owner.current_callable for graph in graphs] == calls
    assert dry_run(backend.compiled[0], backend.inputs[0], graphs) == first


def test_the_compiled_step_computes_as_without_a_dry_run() -> None:
    x = torch.randn(32, 64)
    model = Mlp()
    torch._dynamo.reset()
    train_step(torch.compile(model, backend=DryRunBackend("inductor")), model, [x])
    predicted = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    train_step(model, model, [x])
    eager = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    assert len(predicted) == len(eager) > 0
    for ours, expected in zip(predicted, eager):
        torch.testing.assert_close(ours, expected)


def test_timeline_names_lines_of_the_wrapper() -> None:
    prediction, _ = predicted_and_measured(Mlp(), [torch.randn(256, 64)])
    peak = prediction.timeline[prediction.peak_index]
    assert peak.live_bytes + peak.workspace_bytes == prediction.peak_bytes
    assert {sample.phase for sample in prediction.timeline} == {"forward", "backward"}
    assert any(sample.text.startswith("extern_kernels.") for sample in prediction.timeline)
    parameters = sum(p.numel() * 4 for p in Mlp().parameters())
    assert prediction.final_bytes == parameters + 4
    assert 0 < prediction.saved_bytes < prediction.boundary_bytes <= prediction.peak_bytes
    assert prediction.resident_bytes > parameters


def test_a_step_that_holds_its_parameters_is_unknown() -> None:
    weight = torch.nn.Parameter(torch.randn(4, 4))

    def compiled(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).sum()

    prediction = dry_run(compiled, [torch.randn(4, 4, requires_grad=True)])
    assert "holds a parameter" in prediction.unknown
    assert weight.grad is None


class Wrapped(nn.Module):
    """A layer whose weight is made up of two tensors; so is its result."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(TwoTensor(torch.randn(64, 64), torch.randn(64, 64)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x @ self.weight).tanh().exp()


class Mean(nn.Module):
    """A loss that is a wrapper, too."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean()


@INNER
def test_the_peak_of_tensors_made_up_of_others_is_exact(inner: str) -> None:
    model = nn.Sequential(Wrapped(), Mean())
    prediction, measured = predicted_and_measured(model, [torch.randn(256, 64)], inner)
    assert prediction.unknown == ""
    assert prediction.peak_bytes == measured
    # Both parts of the weight.
    assert prediction.resident_bytes == 4 * (2 * 64 * 64 + 256 * 64)


def test_a_result_made_up_of_others_is_given_gradients_of_its_parts() -> None:
    torch._dynamo.reset()
    backend = DryRunBackend("eager")
    torch.compile(Wrapped(), backend=backend)(torch.randn(256, 64)).sum().backward()
    (prediction,) = backend.predictions
    assert prediction.unknown == ""
    # Between forward and backward the caller has both parts, each as large as the input.
    assert prediction.boundary_bytes - prediction.saved_bytes == 2 * 4 * 256 * 64
