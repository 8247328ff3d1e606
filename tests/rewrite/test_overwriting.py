"""Operators that overwrite an argument: where nothing can tell the difference, and nowhere else."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._dynamo.source import ConstantSource
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.testing._internal.two_tensor import TwoTensor

from remat_compiler.offload.operators import OFFLOAD
from remat_compiler.rewrite.overwriting import overwrite_arguments, overwritten
from remat_compiler.torch_compat import have_one_layout, is_whole_storage, plain_tensor

N = 6
Function = Callable[..., tuple[Tensor, ...]]


def rewritten(function: Function, *inputs: Tensor, for_user: int = 0, mode: str = "fake") -> tuple[Any, list[str]]:
    """The traced function with arguments overwritten, and the operators that do so."""
    module = make_fx(function, tracing_mode=mode)(*inputs)
    changed = overwrite_arguments(module, for_user)
    assert overwritten(changed).num_ops == len(changed)
    return module, [str(node.target).removeprefix("aten.") for node in changed]


def targets(function: Function, *inputs: Tensor, for_user: int = 0) -> list[str]:
    """What overwrites an argument, once it is seen that two calls give what the function gives, and change no input."""
    module, found = rewritten(function, *inputs, for_user=for_user)
    expected, before = function(*inputs), [x.clone() for x in inputs]
    for _ in range(2):
        results = module(*inputs)
        assert [a.dtype for a in results] == [b.dtype for b in expected]
        assert [a.stride() for a in results] == [b.stride() for b in expected]
        assert all(map(torch.equal, results, expected))
        assert all(map(torch.equal, inputs, before))
    return found


def square(*, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(N, N, dtype=dtype)


OVERWRITTEN: dict[str, tuple[Function, list[str]]] = {
    "in place": (lambda x: ((x @ x).relu(),), ["relu_.default"]),
    "the second argument": (lambda x: (x * (x @ x),), ["mul.out"]),
    "a keyword": (lambda x: (torch.sub(x, other=x @ x, alpha=2),), ["sub.out"]),
    "an operator without a form in place": (
        lambda x: (torch.ops.aten.sigmoid_backward(x @ x, x),),
        ["sigmoid_backward.grad_input"],
    ),
    "a chain": (lambda x: ((x @ x).relu().exp() * 2,), ["relu_.default", "exp_.default", "mul_.Tensor"]),
    "a view of all": (lambda x: ((x @ x).view(-1).relu(),), ["relu_.default"]),
    "a transposed view of all": (lambda x: ((x @ x).t().relu(),), ["relu_.default"]),
    "read before through a view": (lambda x: ((y := x @ x).view(-1).sum(), y.relu()), ["relu_.default"]),
    "one of several results": (lambda x: ((F.layer_norm(x, (N,))).relu(),), ["relu_.default"]),
    "a smaller one beside it": (lambda x: ((x @ x) + x.sum(0),), ["add_.Tensor"]),
    "a number": (lambda x: ((x @ x).sum() * 2,), ["mul_.Tensor"]),
    "a condition": (lambda x: (torch.where(x > 0, x @ x, x),), ["where.self_out"]),
}


@pytest.mark.parametrize("name", OVERWRITTEN)
def test_what_dies_is_overwritten(name: str) -> None:
    function, expected = OVERWRITTEN[name]
    assert targets(function, square()) == expected


LEFT_ALONE: dict[str, Function] = {
    "an input": lambda x: (x.relu(),),
    "an input through a view": lambda x: (x.view(-1).relu(),),
    "an output": lambda x: (y := x @ x, y.relu()),
    "what an output is a view of": lambda x: ((y := x @ x).view(-1), y.relu()),
    "read later": lambda x: ((y := x @ x).relu(), y.sum()),
    "read later through a view of before": lambda x: ((v := (y := x @ x).t(), y.relu())[1], v.sum(0)),
    "read later through a view of then": lambda x: ((y := x @ x).relu(), y.t().sum(0)),
    "a view of a part": lambda x: ((x @ x)[:2].relu(),),
    "an expanded view": lambda x: (x.sum(0).expand(N, N).relu(),),
    "an overlapping view": lambda x: (x.sum(0).as_strided((3, 3), (1, 1)).relu(),),
    "a broadcast argument": lambda x: (x + x.sum(0),),
    "another type of result": lambda x: ((x @ x) > 0,),
    "a promoted type": lambda x: ((x @ x).long() * 1.5,),
    "itself twice": lambda x: ((y := x @ x) * y,),
    "itself transposed": lambda x: ((y := x @ x) + y.t(),),
    "a product": lambda x: ((x @ x) @ x,),
    "a reduction": lambda x: ((x @ x).softmax(-1), (x @ x).cumsum(0)),
    "another layout": lambda x: (torch.add(x, (x @ x).t()),),
    "only a form that copies": lambda x: (torch.ops.aten.rsub.Scalar(x @ x, 1),),
    "a copy": lambda x: ((x @ x).clone(),),
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_everything_else_is_left_alone(name: str) -> None:
    assert targets(LEFT_ALONE[name], square()) == []


def test_of_two_types_the_one_of_the_result_is_overwritten() -> None:
    assert targets(lambda x, y: ((x @ x) + (y @ y),), square(), square(dtype=torch.float64)) == ["add.out"]


def test_random_operators_draw_what_they_drew() -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return (F.dropout(x @ x, 0.5), torch.bernoulli((x @ x).sigmoid()))

    module, found = rewritten(function, x := square())
    assert found == ["mul_.Tensor", "sigmoid_.default"]
    torch.manual_seed(1)
    expected = function(x)
    torch.manual_seed(1)
    assert all(map(torch.equal, module(x), expected))


def test_a_result_for_the_user_is_not_written_into_a_view() -> None:
    """Autograd forbids to change such a view in place once a differentiable function has returned it."""
    assert targets(lambda x: ((x @ x).view(-1).relu(),), square(), for_user=1) == []
    assert targets(lambda x: ((x @ x).view(-1).relu().exp(),), square(), for_user=1) == ["relu_.default"]
    assert targets(lambda x: ((x @ x).relu(),), square(), for_user=1) == ["relu_.default"]


def traced(build: Callable[[fx.Graph, fx.Node], list[fx.Node]], dtype: torch.dtype = torch.float32) -> fx.GraphModule:
    """A graph by hand over one input, with values as torch would trace them."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    x.meta["val"] = square(dtype=dtype)
    graph.output(tuple(build(graph, x)))
    for node in graph.nodes:
        if node.op == "call_function" and "val" not in node.meta:
            args, kwargs = fx.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
            node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]
    root = torch.nn.Module()
    for node in graph.find_nodes(op="get_attr"):
        root.register_buffer(str(node.target), node.meta["val"])
    return fx.GraphModule(root, graph)


def test_constants_are_left_alone() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> list[fx.Node]:
        constant = graph.get_attr("constant")
        constant.meta["val"] = square()
        turned = graph.call_function(torch.ops.aten.t.default, (constant,))
        return [graph.call_function(torch.ops.aten.relu.default, (one,)) for one in (turned, constant)]

    assert overwrite_arguments(traced(build)) == []


@pytest.mark.parametrize(("view", "count"), [("_conj", 0), ("_neg_view", 0), ("t", 1)])
def test_what_a_view_leaves_pending_is_not_handed_on(view: str, count: int) -> None:
    """A result that is written into a conjugate view would be conjugated whenever it is read, or refused."""

    def build(graph: fx.Graph, x: fx.Node) -> list[fx.Node]:
        y = graph.call_function(torch.ops.aten.mm.default, (x, x))
        turned = graph.call_function(getattr(torch.ops.aten, view).default, (y,))
        return [graph.call_function(torch.ops.aten.exp.default, (turned,))]

    module = traced(build, torch.complex64)
    x = square(dtype=torch.complex64)
    (expected,) = module(x)
    assert len(overwrite_arguments(module)) == count
    (found,) = module(x)
    assert torch.equal(found, expected)
    assert (found.is_conj(), found.is_neg()) == (False, False)


@pytest.mark.parametrize("times", [1, 2])
def test_a_result_that_is_taken_out_of_its_tuple_twice(times: int) -> None:
    def build(graph: fx.Graph, x: fx.Node) -> list[fx.Node]:
        both = graph.call_function(torch.ops.aten.native_layer_norm.default, (x, [N], None, None, 1e-5))
        items = [graph.call_function(operator.getitem, (both, 0)) for _ in range(times)]
        return [graph.call_function(torch.ops.aten.relu.default, (items[0],)), *items[1:]]

    assert len(overwrite_arguments(traced(build))) == 2 - times


@pytest.mark.parametrize("reader", [OFFLOAD, torch.ops._c10d_functional.wait_tensor.default])
def test_memory_that_others_may_read_later_is_left_alone(reader: Any) -> None:
    """Copies beside the step and collectives return before they are done with their arguments."""

    def build(graph: fx.Graph, x: fx.Node) -> list[fx.Node]:
        y = graph.call_function(torch.ops.aten.mm.default, (x, x))
        handed = graph.call_function(reader, (y, "host") if reader is OFFLOAD else (y,))
        handed.meta["val"] = torch.empty(1, dtype=torch.int64)
        return [graph.call_function(torch.ops.aten.relu.default, (y,)), handed]

    assert overwrite_arguments(traced(build)) == []


def test_memory_that_others_made_is_left_alone() -> None:
    def build(graph: fx.Graph, x: fx.Node) -> list[fx.Node]:
        waited = graph.call_function(torch.ops._c10d_functional.wait_tensor.default, (x,))
        waited.meta["val"] = square()
        return [graph.call_function(torch.ops.aten.relu.default, (waited,))]

    assert overwrite_arguments(traced(build)) == []


def test_memory_that_was_given_for_a_result_is_left_alone() -> None:
    """Its owner may read it later, by another name."""

    def build(graph: fx.Graph, x: fx.Node) -> list[fx.Node]:
        given = graph.call_function(torch.ops.aten.mm.default, (x, x))
        both = graph.call_function(torch.ops.aten.add.out, (x, x), {"out": given})
        return [graph.call_function(torch.ops.aten.relu.default, (both,)), given]

    assert overwrite_arguments(traced(build)) == []


def test_tensors_of_other_kinds_are_left_alone() -> None:
    with torch.no_grad():
        assert plain_tensor(TwoTensor(square(), square())) is None
    assert plain_tensor(square().to_sparse()) is None
    assert plain_tensor(torch._efficientzerotensor((N, N))) is None
    assert plain_tensor(torch._neg_view(square())) is None
    assert plain_tensor(3) is None
    assert plain_tensor(x := square()) is x


@pytest.mark.parametrize(
    ("value", "whole"),
    [
        (torch.empty(2, 3), True),
        (torch.empty(2, 3).t(), True),
        (torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last), True),
        (torch.empty(2, 1, 3), True),
        (torch.empty(()), True),
        (torch.empty(2, 3)[1:], False),
        (torch.empty(2, 3)[:, 1:], False),
        (torch.empty(2, 3)[:, ::2], False),
        (torch.empty(2, 3)[:1], False),
        (torch.empty(2, 1).expand(2, 3), False),
        (torch.empty(6).as_strided((2, 3), (1, 1)), False),
        (torch.empty(8).as_strided((2, 3), (3, 2)), False),
        (torch.empty(0, 3), False),
    ],
)
def test_what_is_all_of_its_memory(value: Tensor, whole: bool) -> None:
    assert is_whole_storage(value) == whole
    assert have_one_layout(value, value)
    assert not have_one_layout(value, value.double())


def test_symbolic_sizes_are_compared_without_assumptions() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return ((x.exp() * 2).relu(), x.exp()[: y.shape[0] - 1].sin(), y.exp())

    module = make_fx(function, tracing_mode="symbolic")(square(), torch.randn(N - 1, N))
    (node, *_) = module.graph.find_nodes(op="placeholder")
    guards = node.meta["val"].fake_mode.shape_env.guards
    before = len(guards)
    assert [str(one.target) for one in overwrite_arguments(module)] == ["aten.mul_.Tensor", "aten.relu_.default"]
    assert len(guards) == before
    x, y = torch.randn(5, N), torch.randn(4, N)
    assert all(map(torch.equal, module(x, y), function(x, y)))


def test_sizes_that_are_equal_by_chance_differ() -> None:
    environment = ShapeEnv(duck_shape=False)
    sources = (ConstantSource(name) for name in "ab")
    symbols = [environment.create_symbol(N, source, DimDynamic.DYNAMIC) for source in sources]
    first, second = (environment.create_symintnode(symbol, hint=N) for symbol in symbols)
    with FakeTensorMode(shape_env=environment):
        x, y = torch.empty(first, N), torch.empty(second, N)
        part, cut = x.as_strided((first, N), (N, 1)), x.as_strided((second, N), (N, 1))
    guards = len(environment.guards)
    assert have_one_layout(x, x + 1)
    assert not have_one_layout(x, y)
    assert is_whole_storage(part)
    assert not is_whole_storage(cut)
    assert len(environment.guards) == guards
