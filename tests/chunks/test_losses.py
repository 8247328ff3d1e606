"""Losses in chunks give what eager gives, and hold no logits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from chunks.chunked import Chunked, beside_eager, step
from chunks.programs import CLASSES, IGNORED, PROGRAMS, RANDOM, WHOLE, WIDTH, Head, Program, in_sequences
from remat_compiler.capture.operators import NodeClass, node_class
from remat_compiler.chunks import losses
from remat_compiler.chunks.rewriting import is_in_chunks
from remat_compiler.chunks.tangent import depending_on
from remat_compiler.torch_compat import is_tangent

DECOMPOSED = pytest.mark.parametrize("decomposed", [False, True], ids=["interpreter", "inductor"])


def inputs(program: Program, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Activations, and targets of which some are ignored."""
    x = torch.randn(*program.shape, WIDTH, dtype=dtype)
    targets = torch.randint(0, CLASSES, program.shape)
    return x, torch.where(torch.rand(program.shape) < 0.2, IGNORED, targets)


def run(program: Program, backend: Chunked, dtype: torch.dtype) -> tuple[list[Tensor], list[Tensor]]:
    """What a step gives in chunks, and what it gives eagerly."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = program.make().to(dtype), inputs(program, dtype)
    return beside_eager(backend, model, given)


@DECOMPOSED
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_loss_in_chunks_is_the_same(name: str, decomposed: bool) -> None:
    backend = Chunked(4, decomposed)
    program = PROGRAMS[name]
    made, expected = run(program, backend, torch.float64)

    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)
    assert [one.chunks for one in backend.found][:1] == [program.chunks]
    assert largest(backend) < backend.found[0].whole_bytes


@pytest.mark.parametrize("name", ["mean", "classes_in_front", "pixels"])
def test_gradients_are_computed_beside_the_loss(name: str) -> None:
    """With 1 in the place of the tangent, which multiplies them where they leave the chunks."""
    backend = Chunked(4)
    run(PROGRAMS[name], backend, torch.float64)

    late = depending_on(backend.graph, filter(is_tangent, backend.graph.find_nodes(op="placeholder")))
    assert late
    assert not any(is_in_chunks(node) for node in late)


def largest(backend: Chunked) -> int:
    """Bytes of the largest value that the graph computes."""
    made = (node for node in backend.graph.nodes if node.op == "call_function")
    values = (node.meta.get("val") for node in made if node_class(node) is not NodeClass.VIEW)
    return max(value.numel() * value.element_size() for value in values if isinstance(value, Tensor))


@DECOMPOSED
@pytest.mark.parametrize("name", WHOLE)
def test_values_that_are_needed_whole_are_left_so(name: str, decomposed: bool) -> None:
    backend = Chunked(4, decomposed)
    made, expected = run(WHOLE[name], backend, torch.float64)

    assert backend.made == [()]
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", RANDOM)
def test_random_numbers_are_drawn_as_before(name: str) -> None:
    backend = Chunked(4)
    program, is_cut = RANDOM[name]
    made, expected = run(program, backend, torch.float64)

    assert bool(backend.found) == is_cut
    torch.testing.assert_close(made, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["mean", "z_loss", "in_sequences", "tied"])
def test_rounding_is_no_worse_than_that_of_the_whole(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    program, backend = PROGRAMS[name], Chunked(4)
    model, given = program.make().to(dtype), inputs(program, dtype)
    assert_no_worse(model, model, given, backend, dtype)


def assert_no_worse(
    model: nn.Module, called: Callable[..., Any], given: tuple[Tensor, Tensor], backend: Chunked, dtype: torch.dtype
) -> None:
    """Whether chunks are as near to what exact arithmetic gives as the whole is."""
    torch._dynamo.reset()
    double = copy.deepcopy(model).double()
    exact = step(double, double, (given[0].double(), given[1]))
    made, whole = step(torch.compile(called, backend=backend), model, given), step(called, model, given)
    assert [one.chunks for one in backend.found] == [4]
    for one, other, right in zip(made, whole, exact):
        assert error(one, right) <= 2 * error(other, right) + torch.finfo(dtype).eps


def error(value: Tensor, right: Tensor) -> float:
    """Distance, relative to the length."""
    return float((value.double() - right).norm() / right.norm())


@DECOMPOSED
def test_under_autocast(decomposed: bool) -> None:
    torch.manual_seed(0)
    model, given = Head(in_sequences), inputs(PROGRAMS["in_sequences"], torch.float32)

    def cast(x: Tensor, targets: Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x, targets)

    assert_no_worse(model, cast, given, Chunked(4, decomposed), torch.bfloat16)


def test_sums_of_few_bits_are_added_up_in_32() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = PROGRAMS["mean"].make().bfloat16(), inputs(PROGRAMS["mean"], torch.bfloat16)
    backend = Chunked(8)
    step(torch.compile(model, backend=backend), model, given)

    added = [n for n in backend.graph.nodes if n.target is torch.ops.aten.add.Tensor and n.meta["val"].numel() > 1]
    assert added
    assert {node.meta["val"].dtype for node in added} == {torch.float32}


def test_a_scaled_loss_of_float16_stays_scaled() -> None:
    """It is scaled so that small gradients are no zeros, which they would be with 1 in the place of the tangent."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, given = Head(faint).half(), inputs(PROGRAMS["mean"], torch.float16)
    backend = Chunked(4)
    called = torch.compile(model, backend=backend)
    made, whole = gradients_of_scaled(called, model, given), gradients_of_scaled(model, model, given)

    assert backend.found
    assert all(gradient.abs().sum() > 0 for gradient in whole)
    torch.testing.assert_close(made, whole, rtol=2e-2, atol=1e-4)


def faint(logits: Tensor, targets: Tensor) -> Tensor:
    """A loss whose gradients are too small for the type."""
    return nn.functional.cross_entropy(logits, targets) * 2.0**-14


def gradients_of_scaled(called: Callable[..., Any], model: nn.Module, given: tuple[Tensor, Tensor]) -> list[Tensor]:
    """Those of the parameters, of the loss times a number that the backward is given."""
    model.zero_grad()
    (called(*given) * 2.0**14).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def likelihoods(logits: Tensor, targets: Tensor) -> Tensor:
    """Large losses of rows."""
    return nn.functional.cross_entropy(20 * logits, targets)


def squares(results: Tensor, targets: Tensor) -> Tensor:
    """Large squares."""
    return nn.functional.mse_loss(results, 8 + 0 * results)


@pytest.mark.parametrize("loss", [likelihoods, squares])
def test_a_mean_of_16_bits_whose_sum_is_too_large_is_finite(loss: Callable[[Tensor, Tensor], Tensor]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Head(loss).half()
    given = torch.randn(6000, WIDTH, dtype=torch.float16), torch.randint(0, CLASSES, (6000,))
    backend = Chunked(4)
    with torch.no_grad():
        exact = copy.deepcopy(model).double()(given[0].double(), given[1])
    made, *_ = step(torch.compile(model, backend=backend), model, given)

    assert backend.found
    assert exact * 6000 > torch.finfo(torch.float16).max
    torch.testing.assert_close(made.double(), exact, rtol=2e-3, atol=0)


def test_fewer_chunks_than_rows_and_one_chunk() -> None:
    for asked, expected in ((1, []), (2, [2]), (31, [31]), (1000, [31])):
        backend = Chunked(asked)
        made, eager = run(PROGRAMS["mean"], backend, torch.float64)
        torch.testing.assert_close(made, eager, rtol=1e-12, atol=1e-12)
        assert [one.chunks for one in backend.found] == expected


class Deep(nn.Module):
    """Layers around a stream of many rows: by rule all of their products are cut together, and nothing is spared."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(30))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + nn.functional.gelu(layer(x))
        return x.square().mean()


def test_products_that_go_with_all_of_a_deep_model_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at, reach = [], losses.reach
    monkeypatch.setattr(losses, "reach", lambda *given: looked_at.append(given[1]) or reach(*given))
    monkeypatch.setattr(losses, "FARTHEST", 50)
    torch._dynamo.reset()
    backend = Chunked(4)
    model, given = Deep().double(), (torch.randn(64 * WIDTH, WIDTH).double(),)
    torch.testing.assert_close(*beside_eager(backend, model, given))
    assert backend.found == ()
    assert len(looked_at) == 1
