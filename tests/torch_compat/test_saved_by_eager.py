"""What eager operators hold is counted once, without parameters, data and what the graph is given."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from remat_compiler.torch_compat import (
    compiled_backward,
    gradients_by_eager,
    gradients_of_views,
    note_outputs,
    saved_by_eager,
)

ROWS, WIDTH = 64, 32
ACTIVATION = ROWS * WIDTH * 4


def test_activations_count_and_parameters_and_data_do_not() -> None:
    x, linear = torch.randn(ROWS, WIDTH), nn.Linear(WIDTH, WIDTH)
    first = linear(x)
    assert saved_by_eager([first]) == 0
    second = first.sin()  # holds `first`
    assert saved_by_eager([second]) == ACTIVATION
    assert saved_by_eager([second, first]) == 0
    third = second.exp()  # holds itself, which the graph is given
    assert saved_by_eager([third]) == ACTIVATION
    assert saved_by_eager([third.cos()]) == 2 * ACTIVATION


def test_results_of_eager_operators_count_if_a_graph_keeps_them() -> None:
    class Graph(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.function.FunctionCtx, kept: Tensor, dropped: Tensor) -> Tensor:
            ctx.save_for_backward(kept)
            return kept + dropped

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    made, other, leaf = x * 2, x * 3, x.view(-1).view(ROWS, WIDTH)
    first = Graph.apply(made, other)  # type: ignore[no-untyped-call]
    assert saved_by_eager([made]) == 0
    assert saved_by_eager([made, other], first) == ACTIVATION
    # Who made these holds them.
    assert saved_by_eager([leaf, other], Graph.apply(leaf, other)) == 0  # type: ignore[no-untyped-call]
    assert saved_by_eager([x, other], Graph.apply(x, other)) == 0  # type: ignore[no-untyped-call]


def test_what_two_operators_hold_counts_once() -> None:
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    y = x * 2.0
    assert saved_by_eager([y.sin() + y.cos()]) == ACTIVATION


def test_what_autograd_alone_holds_counts_though_it_is_no_result() -> None:
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    # In eager, a CPU's dropout multiplies by a mask of numbers, which nothing names a result.
    dropped = torch.dropout(x * 2.0, 0.5, True)
    assert ACTIVATION <= saved_by_eager([dropped]) < 1.01 * ACTIVATION
    mask = torch.rand(ROWS, WIDTH)
    masked = x * mask
    assert saved_by_eager([masked]) == saved_by_eager([x * mask[:1]]) == 0
    # Held by another tensor, as data may be.
    alias = mask.detach()
    del mask
    assert saved_by_eager([masked]) == 0
    del alias
    # The interpreter adapts to code that runs often.
    for _ in range(200):
        assert saved_by_eager([masked]) == saved_by_eager([x * torch.rand(ROWS, WIDTH)[:1]]) == ACTIVATION


def test_what_a_compiled_graph_made_counts_with_the_graph() -> None:
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    torch._dynamo.reset()

    def with_mask(value: Tensor) -> tuple[Tensor, Tensor]:
        return value.sin(), (value > 0).float()

    made, mask = torch.compile(with_mask, backend="aot_eager")(x)
    result = made * mask
    del mask
    assert saved_by_eager([result]) == ACTIVATION
    made, mask = torch.compile(with_mask, backend="aot_eager")(x)
    note_outputs(compiled_backward([made]), [x], [made, mask])
    result = made * mask
    del mask
    assert saved_by_eager([result]) == 0


def test_a_recurrent_layer_holds_its_workspace() -> None:
    layer = nn.LSTM(WIDTH, WIDTH, num_layers=2)
    outputs, _ = layer(torch.randn(8, 4, WIDTH))
    assert saved_by_eager([outputs]) > 8 * 4 * WIDTH * 4


def test_nothing_is_held_without_gradients_nor_behind_compiled_graphs() -> None:
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    with torch.no_grad():
        assert saved_by_eager([x.sin().cos()]) == 0
    torch._dynamo.reset()
    compiled = torch.compile(lambda value: value.sin().cos(), backend="aot_eager")
    assert saved_by_eager([compiled(x)]) == 0
    assert saved_by_eager([compiled(x).sin()]) == ACTIVATION


def test_looking_does_not_run_the_hooks_of_those_who_packed() -> None:
    ran: list[str] = []

    def layer(value: Tensor) -> Tensor:
        ran.append("forward")
        return value.sin().exp()

    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    y = checkpoint(layer, x * 2.0, use_reentrant=False).cos()
    before = saved_by_eager([y])
    assert ran == ["forward"]
    assert before == ACTIVATION  # what is before the checkpoint, or its result, and nothing of what is within
    with torch.autograd.graph.saved_tensors_hooks(lambda _: "packed", lambda _: pytest.fail("unpacked")):
        assert saved_by_eager([(x * 2.0).sin().exp()]) == 0


def test_what_was_changed_since_is_looked_at_all_the_same() -> None:
    y = torch.randn(ROWS, WIDTH, requires_grad=True) * 2.0
    z = y.sin()
    y.add_(1.0)
    assert saved_by_eager([z]) == ACTIVATION


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        pytest.param(lambda x, y: (x.sin(), x[:5]), ACTIVATION, id="a view"),
        pytest.param(lambda x, y: (x.sin(), x[:5], x.t()), ACTIVATION, id="two views of one input"),
        pytest.param(lambda x, y: (x.sin(), x[:5], y.t()), 2 * ACTIVATION, id="views of two inputs"),
        pytest.param(lambda x, y: (x.sin(), x[:5].detach()), 0, id="a view without a gradient"),
        pytest.param(lambda x, y: (x.sin(), x[:5].clone()), 0, id="a copy"),
        pytest.param(lambda x, y: (x.sin(), x), 0, id="the input itself"),
        pytest.param(lambda x, y: x.sin().t(), 0, id="a view of what the graph makes"),
    ],
)
def test_gradients_of_views_of_inputs_are_autograds(returns: Callable[..., object], expected: int) -> None:
    torch._dynamo.reset()
    x, y = (torch.randn(ROWS, WIDTH, requires_grad=True) * 2 for _ in range(2))
    outputs = torch.compile(returns, backend="aot_eager")(x, y)
    assert gradients_of_views([x, y], outputs) == expected


def test_gradients_of_eager_operators_take_the_place_of_those_that_come_in() -> None:
    x, y = (torch.randn(ROWS, WIDTH, requires_grad=True) for _ in range(2))
    assert gradients_by_eager([x, torch.randn(3)]) == 0
    assert gradients_by_eager([x.t()]) == ACTIVATION  # one may be copied
    assert gradients_by_eager([x.t(), y * 2]) == ACTIVATION
    assert gradients_by_eager([x[:5]]) == ACTIVATION  # from 5 rows to all
    assert gradients_by_eager([x.sum()]) == ACTIVATION
    assert gradients_by_eager([x.expand(4, ROWS, WIDTH) * 2]) == ACTIVATION  # four come in, one of them may be copied


def test_the_gradient_of_an_eager_embedding_counts() -> None:
    table = nn.Embedding(1_000, WIDTH)
    rows = torch.arange(ROWS)
    assert gradients_by_eager([table(rows)]) == 1_000 * WIDTH * 4


def test_what_is_behind_compiled_graphs_is_theirs() -> None:
    torch._dynamo.reset()
    x = torch.randn(ROWS, WIDTH, requires_grad=True)
    assert gradients_by_eager([torch.compile(lambda value: value.sin(), backend="aot_eager")(x)]) == 0
