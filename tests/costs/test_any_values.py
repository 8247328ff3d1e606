"""Only operators that are safe on any values run while compiling; what others take inside comes from closed forms."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from dry_run.steps import peak_of
from remat_compiler.costs.any_values import is_measurable
from remat_compiler.costs.index_workspace import formed_cpu_bytes
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.workspace import WorkspaceTable

aten = torch.ops.aten
RUNS: list[str] = []


def _is_run(name: str) -> Any:
    """An operator of another library that notes its runs on real tensors."""

    @torch.library.custom_op(f"any_values::{name}", mutates_args=())
    def operator(x: Tensor, index: Tensor) -> Tensor:
        RUNS.append(name)
        return x[index.clamp(0, len(x) - 1)].sin()

    operator.register_fake(lambda x, index: x.new_empty(len(index), *x.shape[1:]))
    operator.register_autograd(lambda ctx, g: (None, None))
    return operator


OPERATORS = {name: _is_run(name) for name in ("pure", "told", "nominal", "measured")}
"""One for each test of what is told, since that is told once in a process."""


def call_of(func: Any, *args: Any, **kwargs: Any) -> OpCall:
    call = OpCall.any(func, args, kwargs)
    assert call is not None
    return call


@pytest.mark.parametrize("cost_model", ["nominal", "measured"])
def test_operators_of_other_libraries_run_only_as_the_program_runs_them(
    cost_model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    torch._dynamo.reset()
    RUNS.clear()
    weight = torch.randn(8, 8, requires_grad=True)
    operator = OPERATORS[cost_model]

    def step(x: Tensor, index: Tensor) -> Tensor:
        return (torch.tanh(x @ weight).sin() + operator(x, index)).cos().sum()

    options = {"memory_budget": 1.0, "inner": "eager", "cost_model": cost_model}
    compiled = torch.compile(step, backend="remat", options=options)
    for number in range(1, 3):
        compiled(torch.randn(8, 8), torch.arange(8)).backward()
        assert len(RUNS) == number
    assert caplog.text.count(f"any_values.{cost_model}.default takes inside, beside its results, is not known") == 1


LENGTHS = {16: "a", 40: "b", 64: "c"}
STRICT: dict[str, Callable[[Tensor, Tensor], object]] = {
    "asserts": lambda x, ends: exec("assert (ends[1:] > ends[:-1]).all(), 'ends must increase'", {"ends": ends}),
    "looks up": lambda x, ends: [LENGTHS[end] for end in ends[1:].tolist()],
    "divides": lambda x, ends: [len(x) // end for end in ends[1:].tolist()],
    "ends": lambda x, ends: next(end for end in ends.tolist() if end == len(x)),
}
"""What an operator of another library may ask of its arguments, which numbers that are made up do not answer."""


def _is_strict(number: int, asks: Callable[[Tensor, Tensor], object]) -> Any:
    def run(x: Tensor, ends: Tensor) -> Tensor:
        RUNS.append(str(number))
        asks(x, ends)
        return torch.cat([x[a:b].softmax(0) for a, b in zip(ends[:-1].tolist(), ends[1:].tolist())])

    names = [torch.library.custom_op(f"any_values::strict{number}{end}", run, mutates_args=()) for end in ("", "_back")]
    for operator in names:
        operator.register_fake(lambda x, ends: torch.empty_like(x))
    names[0].register_autograd(
        lambda ctx, gradient: (names[1](gradient, *ctx.saved_tensors), None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
    )
    return names[0]


STRICT_OPERATORS = {name: _is_strict(number, asks) for number, (name, asks) in enumerate(STRICT.items())}


@pytest.mark.parametrize("cost_model", ["nominal", "measured"])
@pytest.mark.parametrize("name", STRICT)
@pytest.mark.usefixtures("compiles_anew")
def test_operators_that_refuse_made_up_values_train(name: str, cost_model: str) -> None:
    """Forward and backward run once a step each, on the program's own values, however little memory there is."""
    layer, operator = torch.nn.Linear(16, 16), STRICT_OPERATORS[name]

    def step(x: Tensor, ends: Tensor) -> Tensor:
        return operator(layer(x).sin(), ends).cos().sum()

    options = {"memory_budget": "min", "inner": "eager", "cost_model": cost_model}
    compiled, x, ends = torch.compile(step, backend="remat", options=options), torch.randn(64, 16), sorted(LENGTHS)
    found = []
    for call in (step, compiled, compiled):
        layer.zero_grad()
        RUNS.clear()
        call(x, torch.tensor([0, *ends])).backward()
        assert len(RUNS) == 2
        assert layer.weight.grad is not None
        found.append(layer.weight.grad.clone())
    torch.testing.assert_close(found[1:], found[:1] * 2)


@pytest.mark.parametrize(
    ("func", "arguments"),
    [
        (aten.embedding.default, (torch.empty(4, 4), torch.zeros(3, dtype=torch.int64))),
        (aten.index.Tensor, (torch.empty(4, 4), [torch.zeros(3, dtype=torch.int64)])),
        (aten._efficient_attention_backward.default, ()),
        (aten._scaled_dot_product_efficient_attention_backward.default, ()),
        (aten._scaled_dot_product_flash_attention_backward.default, ()),
        (aten._scaled_dot_product_cudnn_attention_backward.default, ()),
        (aten.max_pool2d_with_indices_backward.default, ()),
        (aten.mkldnn_rnn_layer_backward.default, ()),
        (aten.fractional_max_pool2d.default, ()),
        (aten.segment_reduce.default, ()),
        (torch.ops.any_values.pure.default, ()),
        (torch.ops._c10d_functional.all_reduce.default, (torch.empty(4), "sum", "0")),
    ],
)
def test_what_reads_values_or_has_effects_is_not_measured(func: Any, arguments: tuple[Any, ...]) -> None:
    assert not is_measurable(call_of(func, *arguments))


def test_an_operator_with_a_random_state_is_as_safe_as_itself() -> None:
    run = torch.ops.higher_order.run_and_save_rng_state
    assert is_measurable(call_of(run, aten.bernoulli.default, torch.empty(4)))
    assert not is_measurable(call_of(run, torch.ops.any_values.pure.default, torch.empty(4), torch.zeros(2).long()))


def _body(function: Callable[..., Any], *arguments: Tensor) -> torch.fx.GraphModule:
    return make_fx(function)(*arguments)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("function", "is_safe"),
    [
        (lambda x: x.sin().view(-1) + 1, True),
        (lambda x: x @ x.t(), True),
        (lambda x: x[x.long()[0]], False),
        (lambda x: torch.ops.any_values.pure(x, x.long()[0]), False),
        (lambda x: x.nonzero(), False),
    ],
)
def test_an_operator_that_runs_graphs_is_as_safe_as_what_is_in_them(function: Any, is_safe: bool) -> None:
    x = torch.zeros(4, 4)
    body = _body(function, x)
    assert is_measurable(call_of(torch.ops.higher_order.map_impl, body, [x[None]], [])) is is_safe
    both = call_of(torch.ops.higher_order.cond, torch.tensor(True), _body(torch.sin, x), body, [x])
    assert is_measurable(both) is is_safe


def test_a_condition_takes_what_its_larger_branch_takes_and_a_loop_comes_to_an_end() -> None:
    x, small, large = (
        torch.zeros(64, 64),
        _body(torch.sin, torch.zeros(4, 4)),
        _body(lambda x: x @ x @ x, torch.zeros(64, 64)),
    )
    condition, loop = torch.ops.higher_order.cond, torch.ops.higher_order.while_loop
    calls = [
        call_of(condition, torch.tensor(True), *both, [x]) for both in ((small, small), (small, large), (large, small))
    ]
    found = WorkspaceTable().resolve(calls)
    assert [found[call.key] for call in calls] == [0, x.nbytes, x.nbytes]
    # The values of a round stay until the next one is over.
    for_ever = call_of(loop, _body(lambda x: x.sum() > -1, x), _body(lambda x: (x.sin(),), x), (x,), ())
    assert WorkspaceTable().resolve([for_ever])[for_ever.key] == x.nbytes + 1


def test_an_unknown_operator_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    calls = [call_of(torch.ops.any_values.told.default, torch.empty(n, 4), torch.zeros(2).long()) for n in (4, 8)]
    with caplog.at_level(logging.WARNING):
        # A table for each graph that is compiled.
        for table in (WorkspaceTable(), WorkspaceTable()):
            assert table.resolve(calls) == {}
            assert table.resolve(calls) == {}
    assert len(caplog.records) == 1


def test_inductors_own_random_numbers_take_nothing_inside(caplog: pytest.LogCaptureFixture) -> None:
    torch._dynamo.reset()
    options = {"memory_budget": 1.0, "cost_model": "nominal"}
    compiled = torch.compile(lambda x: F.dropout(x.sin(), 0.3).sum(), backend="remat", options=options)
    compiled(torch.ones(64, requires_grad=True)).backward()
    assert "not known" not in caplog.text


def _rows(count: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.randint(0, 6, (count,)).to(dtype)


def _layouts() -> list[Callable[[Tensor], Tensor]]:
    return [lambda x: x, lambda x: x.t().contiguous().t() if x.dim() == 2 else x, lambda x: x[:1].expand_as(x)]


READERS: list[tuple[OpOverload, Callable[[Callable[[Tensor], Tensor]], tuple[Any, ...]]]] = [
    (aten.embedding.default, lambda lay: (torch.randn(6, 5), lay(torch.randint(0, 6, (4, 3))))),
    (aten.embedding_dense_backward.default, lambda lay: (lay(torch.randn(4, 5)), _rows(4), 6, -1, False)),
    (aten.gather.default, lambda lay: (lay(torch.randn(6, 5)), 0, torch.randint(0, 6, (2, 5)))),
    (aten.gather.default, lambda lay: (lay(torch.randn(6, 5)), 0, torch.randint(0, 6, (2, 5)).int())),
    (aten.index.Tensor, lambda lay: (lay(torch.randn(6, 5)), [_rows(3)])),
    (aten.index.Tensor, lambda lay: (lay(torch.randn(6, 5)), [_rows(3, torch.int32)])),
    (aten.index_put.default, lambda lay: (torch.randn(6, 5), [_rows(3)], lay(torch.randn(3, 5)), True)),
    (aten.index_put.default, lambda lay: (lay(torch.randn(6, 5)), [torch.ones(6, 5).bool()], torch.randn(30))),
    (aten.index_select.default, lambda lay: (lay(torch.randn(6, 5)), 0, _rows(3))),
    (aten.index_select.default, lambda lay: (lay(torch.randn(6, 5)), -1, _rows(3) % 5)),
    (aten.index_add.default, lambda lay: (torch.randn(6, 5), 0, _rows(3), lay(torch.randn(3, 5)))),
    (aten.scatter_add.default, lambda lay: (torch.randn(6, 5), 0, torch.randint(0, 6, (3, 5)), lay(torch.randn(3, 5)))),
    (aten.nll_loss_forward.default, lambda lay: (lay(torch.randn(4, 6)), _rows(4), None, 1, -100)),
    (aten.nll_loss_forward.default, lambda lay: (lay(torch.randn(4, 6)), _rows(4), None, 0, -100)),
    (aten.lu_unpack.default, lambda lay: torch.linalg.lu_factor(torch.randn(6, 6))),
    (aten.linalg_lu_solve.default, lambda lay: (*torch.linalg.lu_factor(torch.randn(6, 6)), lay(torch.randn(6, 5)))),
]


def _halves(*shape: int) -> Tensor:
    return torch.randn(shape).bfloat16()


def _places(count: int, *shape: int) -> Tensor:
    return torch.randint(0, count, shape)


OF_FEW_DIGITS: list[tuple[OpOverload, tuple[Any, ...]]] = [
    (aten.scatter.src, (_halves(48, 32), 1, _places(32, 48, 1), _halves(48, 1))),
    (aten.scatter.value, (_halves(7), 0, _places(7, 3), 0.5)),
    (aten.scatter_add.default, (_halves(48, 32), 0, _places(48, 20, 32), _halves(20, 32))),
    (aten.scatter_reduce.two, (_halves(48, 32), 1, _places(32, 48, 2), _halves(48, 2), "amax")),
    (aten.gather.default, (_halves(48, 32), 1, _places(32, 48, 3))),
    (aten.gather.default, (_halves(50), 0, _places(50, 20))),
    (aten.gather.default, (_halves(20, 8), 0, _places(20, 20, 1).expand(20, 8))),
    (aten.index_add.default, (_halves(20, 15), 0, _places(20, 3), _halves(3, 15))),
    (aten.index_add.default, (_halves(20, 16), 0, _places(20, 3), _halves(3, 16))),
    (aten.index_add.default, (_halves(3, 20, 40), 2, _places(40, 2), _halves(3, 20, 2))),
    (aten.index_put.default, (_halves(20, 16), [_places(20, 3)], _halves(3, 16), True)),
    (aten.index_select.default, (_halves(20, 16), 0, _places(20, 3))),
]


@pytest.mark.parametrize("case", range(len(OF_FEW_DIGITS)))
def test_sums_of_few_digits_are_taken_in_float32(case: int) -> None:
    func, arguments = OF_FEW_DIGITS[case]
    results: list[Tensor] = []
    peak = peak_of(lambda: results.append(func(*arguments)))
    formed, measured = formed_cpu_bytes(call_of(func, *arguments)), peak - results[0].untyped_storage().nbytes()
    assert formed is not None
    # Two slices at a time are the most: it depends on the rows.
    assert measured <= formed <= (2 * measured if func is aten.index_add.default else measured)


@pytest.mark.parametrize(
    ("func", "arguments"),
    [
        (aten.scatter_reduce_.two, (_halves(48, 32), 1, _places(32, 48, 2), _halves(48, 2), "amax")),
        (aten.scatter_add_.default, (_halves(48, 32), 0, _places(48, 20, 32), _halves(20, 32))),
        (aten.index_put_.default, (torch.randn(6, 5), [_rows(3, torch.int32)], torch.randn(3, 5))),
    ],
)
def test_a_closed_form_holds_for_the_operator_in_place(func: OpOverload, arguments: tuple[Any, ...]) -> None:
    assert formed_cpu_bytes(call_of(func, *arguments)) == peak_of(lambda: func(*arguments)) > 0


@pytest.mark.parametrize("layout", range(3))
@pytest.mark.parametrize("case", range(len(READERS)))
def test_closed_forms_are_what_the_allocator_sees(case: int, layout: int) -> None:
    func, made = READERS[case]
    arguments = made(_layouts()[layout])
    results: list[Any] = []
    peak = peak_of(lambda: results.append(func(*arguments)))
    kept = sum(one.untyped_storage().nbytes() for one in (results[0] if isinstance(results[0], tuple) else results))
    assert formed_cpu_bytes(call_of(func, *arguments)) == peak - kept


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("kind", ["same", "plain", "expanded"])
def test_pooling_copies_a_gradient_of_another_layout(kind: str, channels_last: bool) -> None:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    x = torch.randn(2, 3, 8, 8).to(memory_format=layout)
    pooled, indices = aten.max_pool2d_with_indices.default(x, [2, 2])
    expanded = torch.ones(()).expand_as(pooled)
    gradient = {"same": torch.randn_like(pooled), "plain": torch.randn(2, 3, 4, 4), "expanded": expanded}[kind]
    arguments = (gradient, x, [2, 2], [2, 2], [0, 0], [1, 1], False, indices)
    results: list[Tensor] = []
    peak = peak_of(lambda: results.append(aten.max_pool2d_with_indices_backward.default(*arguments)))
    expected = peak - results[0].untyped_storage().nbytes()
    assert formed_cpu_bytes(call_of(aten.max_pool2d_with_indices_backward.default, *arguments)) == expected
