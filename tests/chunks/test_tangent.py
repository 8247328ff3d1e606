"""What is a multiple of the tangent, against arithmetic: the same with 1 in its place, times the tangent."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from remat_compiler.chunks.tangent import multiples_of, scalar_tangents, take_out

X = torch.randn(3, 4, dtype=torch.float64)
aten = torch.ops.aten

MULTIPLES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "product": lambda t, x: (t * x) @ x.T,
    "quotient": lambda t, x: t / x,
    "both_terms": lambda t, x: t * x - t / 2,
    "views": lambda t, x: t.expand(3, 4).t().reshape(2, 6).unsqueeze(0)[..., 1:],
    "chosen": lambda t, x: torch.where(x > 0, t * x, torch.zeros((), dtype=x.dtype)),
    "masked": lambda t, x: (t * x).masked_fill(x > 0, 0),
    "scattered": lambda t, x: torch.zeros_like(x).scatter(1, x.argmax(1, keepdim=True), t.expand(3, 1)),
    "added_in_place_of": lambda t, x: torch.zeros_like(x).scatter_add(1, x.argsort(1), t * x),
    "softmax": lambda t, x: aten._log_softmax_backward_data(t * x, x.log_softmax(1), 1, x.dtype),
    "tanh": lambda t, x: aten.tanh_backward(t * x, x.tanh()),
    "padded": lambda t, x: aten.constant_pad_nd(t * x, [0, 2], 0.0),
    "narrower": lambda t, x: (t * x).float(),
}
OTHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "square": lambda t, x: (t * x) * (t * x),
    "divisor": lambda t, x: x / t,
    "one_term": lambda t, x: t * x + x,
    "number": lambda t, x: t * x + 1,
    "exponential": lambda t, x: torch.exp(t * x),
    "other_factor": lambda t, x: t * x * torch.exp(t * x),
    "condition": lambda t, x: torch.where(t * x > 0, t * x, t * x),
    "other_branch": lambda t, x: torch.where(x > 0, t * x, x),
    "masked": lambda t, x: (t * x).masked_fill(x > 0, -1.0),
    "scattered": lambda t, x: x.scatter(1, x.argmax(1, keepdim=True), t.expand(3, 1)),
    "padded": lambda t, x: aten.constant_pad_nd(t * x, [0, 2], 1.0),
    "few_exponents": lambda t, x: (t * x).half(),
}


def traced(called: Callable[[Tensor, Tensor], Tensor]) -> tuple[fx.GraphModule, fx.Node, fx.Node]:
    """The program as a graph, the tangent, and the result."""

    def program(tangents_1: Tensor, x: Tensor) -> Tensor:
        return called(tangents_1, x)

    module = make_fx(program, tracing_mode="fake")(torch.tensor(3.0, dtype=torch.float64), X)
    tangent, _ = module.graph.find_nodes(op="placeholder")
    tangent.target = tangent.name = "tangents_1"
    module.recompile()
    result = module.graph.output_node().args[0]
    assert isinstance(result, fx.Node)
    return module, tangent, result


@pytest.mark.parametrize("name", MULTIPLES)
def test_multiples_are_computed_from_one(name: str) -> None:
    module, tangent, result = traced(MULTIPLES[name])
    assert scalar_tangents(module.graph) == [tangent]
    assert result in multiples_of(module.graph, tangent)

    given = (torch.tensor(3.0, dtype=torch.float64), X)
    expected = module(*given)
    take_out(module.graph, tangent, [result])
    module.graph.lint()
    module.recompile()
    torch.testing.assert_close(module(*given), expected)
    scaled, *others = tangent.users
    assert not others
    assert scaled.target is aten.mul.Tensor
    assert next(iter(scaled.users)).op == "output"


@pytest.mark.parametrize("name", OTHERS)
def test_others_are_none(name: str) -> None:
    module, tangent, result = traced(OTHERS[name])
    assert result not in multiples_of(module.graph, tangent)
