"""Each rule against the operator itself: chunks put together are what the operator gives on the whole."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from remat_compiler.chunks.axis import results_of
from remat_compiler.chunks.cut import Cut, Partial, even_bounds, operands, seen_through
from remat_compiler.chunks.rewriting import TRUSTING
from remat_compiler.chunks.rules import cutting
from remat_compiler.chunks.writing import arguments_with

aten = torch.ops.aten


@dataclass(frozen=True)
class Call:
    """A call of an operator; its axes are the ways to cut it, by the first operand that is cut and its dimension."""

    target: Callable[..., Any]
    args: tuple[Any, ...]
    cuts: int
    """From how many operands, results and dimensions it can be cut."""


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64)


def indices(most: int, *shape: int) -> Tensor:
    return torch.randint(0, most, shape)


def attention(heads: int, keys: int, batch: int = 2) -> tuple[Tensor, Tensor, Tensor]:
    """Queries of so many heads, and keys and values of as many or fewer."""
    return numbers(batch, heads, 5, 3), numbers(batch, keys, 7, 3), numbers(batch, keys, 7, 3)


CALLS: dict[str, Call] = {
    "mm": Call(aten.mm.default, (numbers(6, 5), numbers(5, 4)), 6),
    "addmm": Call(aten.addmm.default, (numbers(4), numbers(6, 5), numbers(5, 4)), 5),
    "addmm_whole": Call(aten.addmm.default, (numbers(6, 4), numbers(6, 5), numbers(5, 4)), 6),
    "bmm": Call(aten.bmm.default, (numbers(3, 6, 5), numbers(3, 5, 4)), 9),
    "add": Call(aten.add.Tensor, (numbers(6, 1, 4), numbers(5, 4)), 7),
    "where": Call(aten.where.self, (numbers(6, 4) > 0, numbers(6, 1), numbers(4)), 6),
    "mul_number": Call(aten.mul.Tensor, (numbers(6, 4), 2.0), 4),
    "cast": Call(aten._to_copy.default, (numbers(6, 4),), 4),
    "sum": Call(aten.sum.dim_IntList, (numbers(6, 5, 4), [1]), 5),
    "sum_kept": Call(aten.sum.dim_IntList, (numbers(6, 5, 4), [0, 2], True), 4),
    "sum_all": Call(aten.sum.default, (numbers(6, 5),), 2),
    "amax": Call(aten.amax.default, (numbers(6, 5), [-1], True), 2),
    "max": Call(aten.max.dim, (numbers(6, 5), 1), 2),
    "any": Call(aten.any.dims, (numbers(6, 5) > 0, [1], True), 2),
    "argmax": Call(aten.argmax.default, (numbers(6, 5), 1), 2),
    "argmax_all": Call(aten.argmax.default, (numbers(6, 5),), 0),
    "vector_norm": Call(aten.linalg_vector_norm.default, (numbers(6, 5), 2, [1]), 2),
    "norm": Call(aten.norm.ScalarOpt_dim, (numbers(6, 5, 4), 2, [1], True), 4),
    "mean": Call(aten.mean.dim, (numbers(6, 5), [1]), 2),
    "var_mean": Call(aten.var_mean.correction, (numbers(6, 5), [1]), 2),
    "logsumexp": Call(aten.logsumexp.default, (numbers(6, 5), [1]), 2),
    "log_softmax": Call(aten._log_softmax.default, (numbers(6, 5), 1, False), 2),
    "log_softmax_backward": Call(
        aten._log_softmax_backward_data.default, (numbers(6, 5), numbers(6, 5), 1, torch.float64), 3
    ),
    "gather": Call(aten.gather.default, (numbers(6, 5), 1, indices(5, 6, 2)), 5),
    "gather_fewer_rows": Call(aten.gather.default, (numbers(6, 5), 1, indices(5, 4, 2)), 2),
    "scatter": Call(aten.scatter.value, (numbers(6, 5), 1, indices(5, 6, 1), 3.0), 3),
    "scatter_add": Call(aten.scatter_add.default, (numbers(6, 5), 1, indices(5, 6, 2), numbers(6, 2)), 4),
    "cumsum": Call(aten.cumsum.default, (numbers(6, 5), 0), 2),
    "cat": Call(aten.cat.default, ([numbers(6, 5), numbers(6, 2)], 1), 3),
    "topk": Call(aten.topk.default, (numbers(6, 5), 2), 2),
    "nll_sum": Call(aten.nll_loss_forward.default, (numbers(6, 5), indices(5, 6), numbers(5), 2, -100), 2),
    "nll_none": Call(aten.nll_loss_forward.default, (numbers(6, 5), indices(5, 6), None, 0, -100), 3),
    "nll_mean": Call(aten.nll_loss_forward.default, (numbers(6, 5), indices(5, 6), None, 1, -100), 0),
    "nll_backward": Call(
        aten.nll_loss_backward.default,
        (numbers(6), numbers(6, 5), indices(5, 6), None, 0, -100, torch.tensor(6.0, dtype=torch.float64)),
        4,
    ),
    "nll2d_sum": Call(
        aten.nll_loss2d_forward.default, (numbers(6, 5, 3, 4), indices(5, 6, 3, 4), numbers(5), 2, -100), 6
    ),
    "nll2d_none": Call(aten.nll_loss2d_forward.default, (numbers(6, 5, 3, 4), indices(5, 6, 3, 4), None, 0, -100), 9),
    "nll2d_mean": Call(aten.nll_loss2d_forward.default, (numbers(6, 5, 3, 4), indices(5, 6, 3, 4), None, 1, -100), 0),
    "nll2d_backward": Call(
        aten.nll_loss2d_backward.default,
        (
            *(numbers(6, 3, 4), numbers(6, 5, 3, 4), indices(5, 6, 3, 4)),
            *(numbers(5), 0, -100, torch.tensor(6.0, dtype=torch.float64)),
        ),
        12,
    ),
    "index": Call(aten.index.Tensor, (numbers(6, 3, 5, 4), [None, None, indices(5, 7, 1), indices(4, 9)]), 8),
    "index_of_rows": Call(aten.index.Tensor, (numbers(6, 3), [indices(6, 9)]), 2),
    "index_apart": Call(aten.index.Tensor, (numbers(6, 3, 5, 4), [None, indices(3, 7), None, indices(4, 7)]), 0),
    "index_put": Call(
        aten.index_put.default,
        (numbers(6, 3, 5, 4), [None, None, indices(5, 7, 1), indices(4, 9)], numbers(6, 3, 7, 9), True),
        6,
    ),
    "index_put_spread": Call(
        aten.index_put.default, (numbers(6, 3, 5, 4), [None, None, indices(5, 9)], numbers(6, 1, 9, 4), True), 3
    ),
    "index_put_of_fewer": Call(
        aten.index_put.default, (numbers(6, 3, 5, 4), [None, None, indices(5, 9)], numbers(9, 4), True), 0
    ),
    "index_select": Call(aten.index_select.default, (numbers(6, 3), 0, indices(6, 9)), 4),
    "index_add": Call(aten.index_add.default, (numbers(6, 3), 0, indices(6, 9), numbers(9, 3)), 3),
    "scatter_add_of_fewer": Call(aten.scatter_add.default, (numbers(6, 5), 1, indices(5, 4, 2), numbers(6, 2)), 0),
    "embedding_backward": Call(
        aten.embedding_dense_backward.default, (numbers(6, 4, 3), indices(7, 6, 4), 7, -1, False), 4
    ),
    "embedding_backward_by_frequency": Call(
        aten.embedding_dense_backward.default, (numbers(6, 4, 3), indices(7, 6, 4), 7, -1, True), 0
    ),
    "layer_norm": Call(aten.native_layer_norm.default, (numbers(6, 4, 5), [5], numbers(5), numbers(5), 1e-5), 4),
    "layer_norm_backward": Call(
        aten.native_layer_norm_backward.default,
        (
            *(numbers(6, 4, 5), numbers(6, 4, 5), [5], numbers(6, 4, 1), numbers(6, 4, 1)),
            *(numbers(5), numbers(5), [True, True, True]),
        ),
        10,
    ),
    "embedding": Call(aten.embedding.default, (numbers(7, 3), indices(7, 6, 4)), 4),
    "full": Call(aten.full.default, ([6, 5], 2.0), 2),
    "new_zeros": Call(aten.new_zeros.default, (numbers(2), [6, 5]), 3),
    "new_zeros_alike": Call(aten.new_zeros.default, (numbers(6, 7), [6, 5]), 4),
    "view_merges": Call(aten.view.default, (numbers(2, 3, 4), [6, 4]), 4),
    "view_splits": Call(aten.view.default, (numbers(6, 4), [2, 3, 4]), 4),
    "permute": Call(aten.permute.default, (numbers(6, 5, 4), [2, 0, 1]), 6),
    "t": Call(aten.t.default, (numbers(6, 5),), 4),
    "unsqueeze": Call(aten.unsqueeze.default, (numbers(6, 5), 1), 4),
    "squeeze": Call(aten.squeeze.dim, (numbers(6, 1, 5), 1), 4),
    "expand": Call(aten.expand.default, (numbers(6, 1), [3, 6, 5]), 4),
    "select": Call(aten.select.int, (numbers(6, 5, 4), 1, 2), 4),
    "select_backward": Call(aten.select_backward.default, (numbers(6, 4), [6, 5, 4], 1, 2), 4),
    "select_scatter": Call(aten.select_scatter.default, (numbers(6, 5, 4), numbers(6, 4), 1, 2), 6),
    "split": Call(aten.split.Tensor, (numbers(6, 5, 4), 2, 1), 4),
    "unbind": Call(aten.unbind.int, (numbers(6, 3, 4), 1), 4),
    "stack": Call(aten.stack.default, ([numbers(6, 4), numbers(6, 4)], 1), 6),
    "slice": Call(aten.slice.Tensor, (numbers(8, 5), 0, 0, 7), 4),
    "slice_later": Call(aten.slice.Tensor, (numbers(8, 5), 0, 1, 9223372036854775807), 4),
    "slice_steps": Call(aten.slice.Tensor, (numbers(8, 5), 0, 0, 8, 2), 2),
    "slice_backward": Call(aten.slice_backward.default, (numbers(7, 5), [8, 5], 0, 0, 7, 1), 4),
    "slice_scatter": Call(aten.slice_scatter.default, (numbers(8, 5), numbers(7, 5), 0, 1, 8), 6),
    "pad": Call(aten.constant_pad_nd.default, (numbers(6, 5), [0, 2], 0.0), 2),
    "triu": Call(aten.triu.default, (numbers(6, 5),), 0),
    "flip": Call(aten.flip.default, (numbers(6, 5), [0]), 0),
    "dropout": Call(aten.bernoulli.default, (torch.rand(6, 5),), 0),
    "attention": Call(aten._scaled_dot_product_flash_attention_for_cpu.default, attention(4, 4), 8),
    "attention_of_groups": Call(aten._scaled_dot_product_flash_attention_for_cpu.default, attention(4, 2), 8),
    # Chunks of three of six heads would share a key, of two or four not.
    "attention_of_pairs": Call(aten._scaled_dot_product_flash_attention_for_cpu.default, attention(6, 3, batch=1), 2),
    "attention_by_one_key": Call(aten._scaled_dot_product_flash_attention_for_cpu.default, attention(4, 1), 6),
    "attention_with_dropout": Call(
        aten._scaled_dot_product_flash_attention_for_cpu.default, (*attention(4, 4), 0.5), 0
    ),
}


def traced(call: Call) -> tuple[fx.Node, list[Tensor]]:
    """The operator's node, with the values of its operands."""
    flat = [a for a in torch.utils._pytree.tree_leaves(call.args) if isinstance(a, Tensor)]

    def called(*tensors: Tensor) -> Any:
        left = iter(tensors)
        args = torch.utils._pytree.tree_map_only(Tensor, lambda _: next(left), call.args)
        return call.target(*args)

    graph = make_fx(called, tracing_mode="fake")(*flat).graph
    node = next(n for n in graph.nodes if n.target is call.target)
    place = {placeholder: i for i, placeholder in enumerate(graph.find_nodes(op="placeholder"))}
    return node, [flat[place[operand]] for operand in operands(node)]


@pytest.mark.parametrize("name", CALLS)
def test_chunks_give_what_the_whole_gives(name: str) -> None:
    call = CALLS[name]
    node, values = traced(call)
    found = 0
    for operand in (None, *range(len(values))):
        shape = tuple(results_of(node)[0].shape) if operand is None else tuple(values[operand].shape)
        for dim, size in enumerate(shape):
            if size < 2:
                continue
            cut = Cut(dim, dim, even_bounds(size, 2))
            if cutting(node, operand, cut) is not None:
                assert_same(node, values, operand, cut)
                found += 1
    assert found == call.cuts


def assert_same(node: fx.Node, values: list[Tensor], operand: int | None, cut: Cut) -> None:
    """Compute an operator in chunks and whole."""
    how = cutting(node, operand, cut)
    assert how is not None
    made = [
        called(node, [in_order(node, part(*one, chunk)) for one in zip(values, how.operands)], how.changes[chunk])
        for chunk in range(cut.chunks)
    ]
    whole = called(node, values, {})
    for i, (right, placement) in enumerate(zip(whole, how.results)):
        parts = [results[i] for results in made]
        if right is None:
            # A gradient that is not wanted.
            assert not any(isinstance(one, Tensor) for one in parts)
            continue
        if placement is Partial.ANY:
            assert all(torch.equal(one, right) for one in parts)
            continue
        joined = sum(parts) if placement is Partial.SUM else torch.cat(parts, placement.last)
        torch.testing.assert_close(joined.reshape(right.shape), right, rtol=1e-12, atol=1e-12)


def called(node: fx.Node, values: list[Tensor], changes: Mapping[int, Any]) -> list[Tensor]:
    """The results of an operator on these operands."""
    left = iter(values)
    args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), lambda _: next(left))
    made = node.target(*arguments_with(node, args, changes), **kwargs)
    return list(made) if isinstance(made, (tuple, list)) else [made]


def in_order(reader: fx.Node, value: Tensor) -> Tensor:
    return value.contiguous() if reader.target in TRUSTING else value


def part(value: Tensor, cut: Cut | None, chunk: int) -> Tensor:
    if cut is None:
        return value
    begin, end = cut.bounds[chunk : chunk + 2]
    return value.reshape(cut.with_rows_together(value.shape)).narrow(cut.last, begin, end - begin)


@pytest.mark.parametrize(
    ("target", "args"),
    [
        (aten.add.Tensor, (numbers(2, 3, 4), numbers(2, 3, 1))),
        (aten._log_softmax.default, (numbers(2, 3, 4), 2, False)),
        (aten.sum.dim_IntList, (numbers(2, 3, 4), [2])),
        (aten.sum.dim_IntList, (numbers(2, 3, 4), [0, 1])),
        (aten.unsqueeze.default, (numbers(2, 3, 4), 3)),
        (aten.gather.default, (numbers(2, 3, 4), 2, indices(4, 2, 3, 1))),
    ],
)
def test_rows_of_two_dimensions_are_cut_together(target: Any, args: tuple[Any, ...]) -> None:
    node, values = traced(Call(target, args, 1))
    assert_same(node, values, 0, Cut(0, 1, (0, 2, 4, 6)))


def test_rows_of_two_dimensions_stay_whole_where_only_one_is_read() -> None:
    node, _ = traced(Call(aten.add.Tensor, (numbers(2, 3, 4), numbers(3, 4)), 1))
    assert cutting(node, 0, Cut(0, 1, (0, 2, 4, 6))) is None
    node, _ = traced(Call(aten.sum.dim_IntList, (numbers(2, 3, 4), [1]), 1))
    assert cutting(node, 0, Cut(0, 1, (0, 2, 4, 6))) is None


def test_seen_through_another_shape() -> None:
    rows = Cut(0, 0, (0, 4, 8))
    assert seen_through((8, 5), (2, 4, 5), rows) == Cut(0, 0, (0, 1, 2))
    assert seen_through((8, 5), (2, 4, 5), Cut(0, 0, (0, 3, 8))) == Cut(0, 1, (0, 3, 8))
    assert seen_through((8, 5), (1, 8, 5), rows) == Cut(1, 1, (0, 4, 8))
    assert seen_through((8, 5), (40,), rows) == Cut(0, 0, (0, 20, 40))
    assert seen_through((2, 4, 5), (8, 5), Cut(0, 1, (0, 3, 8))) == Cut(0, 0, (0, 3, 8))
    assert seen_through((8, 5), (4, 10), Cut(0, 0, (0, 3, 8))) == Cut(0, 1, (0, 15, 40))
    assert seen_through((8, 6), (8, 2, 3), Cut(1, 1, (0, 3, 6))) == Cut(1, 1, (0, 1, 2))
    assert seen_through((5, 8), (40,), Cut(1, 1, (0, 4, 8))) is None


def test_bounds_are_even_and_keep_rows_together() -> None:
    assert even_bounds(10, 4) == (0, 3, 6, 9, 10)
    assert even_bounds(12, 8, 4) == (0, 4, 8, 12)
    assert even_bounds(5, 1) == (0, 5)


def test_a_node_of_unknown_shape_is_left_alone() -> None:
    graph = fx.Graph()
    node = graph.call_function(aten.neg.default, (graph.placeholder("x"),))
    assert cutting(node, 0, Cut(0, 0, (0, 1, 2))) is None


@pytest.mark.parametrize("keys", [4, 2, 1])
@pytest.mark.parametrize("mask", [None, (5, 7), (2, 1, 5, 7), (2, 4, 5, 7)], ids=str)
def test_the_gradient_of_attention(keys: int, mask: tuple[int, ...] | None) -> None:
    query, key, value = attention(4, keys)
    masks = [] if mask is None else [numbers(*mask)]

    def gradient(query: Tensor, key: Tensor, value: Tensor, *masks: Tensor) -> list[Tensor]:
        given = {"attn_mask": masks[0]} if masks else {}
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu.default(query, key, value, **given)
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        return list(backward(out.cos(), query, key, value, out, sums, 0.0, False, **given))

    graph = make_fx(gradient, tracing_mode="fake")(query, key, value, *masks).graph
    *_, node = graph.find_nodes(
        op="call_function", target=aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    )
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu.default(
        query, key, value, attn_mask=next(iter(masks), None)
    )
    values = [out.cos(), query, key, value, out, sums, *masks]
    for dim in range(2):
        assert_same(node, values, None, Cut(dim, dim, even_bounds(query.shape[dim], 2)))
    for dim in (2, 3):
        assert cutting(node, None, Cut(dim, dim, (0, 1, query.shape[dim]))) is None


@pytest.mark.parametrize("kernel", ["flash", "efficient", "cudnn"])
def test_attention_on_a_gpu_gives_chunks_of_the_whole_shape(kernel: str) -> None:
    query = key = value = torch.empty(2, 4, 16, 8, device="meta", dtype=torch.bfloat16)
    target = getattr(aten, f"_scaled_dot_product_{kernel}_attention").default
    arguments = () if kernel == "flash" else (None, True)
    node, values = traced(Call(target, (query, key, value, *arguments), 1))
    how = cutting(node, None, Cut(1, 1, (0, 2, 4)))
    assert how is not None
    whole, half = (
        called(node, values, {}),
        called(node, [part(one, cut, 0) for one, cut in zip(values, how.operands)], {}),
    )
    for right, one, placed in zip(whole, half, how.results):
        if isinstance(placed, Cut):
            assert tuple(one.shape) == tuple(placed.shape(right.shape, 0))
        else:
            # Seeds, and numbers of rows.
            assert placed is Partial.ANY
            assert not isinstance(one, Tensor) or one.dim() < 2


@pytest.mark.parametrize("name", ["index_put", "index_add", "scatter_add"])
def test_what_is_added_into_zeros_is_a_sum_of_parts(name: str) -> None:
    places, values = indices(6, 9), numbers(9, 3)

    def added(values: Tensor) -> Tensor:
        zeros = torch.zeros(6, 3, dtype=torch.float64)
        if name == "index_put":
            return aten.index_put.default(zeros, [places], values, True)
        if name == "index_add":
            return aten.index_add.default(zeros, 0, places, values)
        return aten.scatter_add.default(zeros, 0, places[:, None].expand(9, 3), values)

    graph = make_fx(added, tracing_mode="fake", _allow_non_fake_inputs=True)(values).graph
    (node,) = graph.find_nodes(op="call_function", target=getattr(aten, name).default)
    whole = added(values)
    last = len(operands(node)) - 1
    how = cutting(node, last, Cut(0, 0, (0, 4, 9)))
    assert how is not None
    assert how.results == (Partial.SUM,)
    # Columns are no sum: those of the zeros are as many.
    other = cutting(node, last, Cut(1, 1, (0, 2, 3)))
    assert (other is None) is (name == "index_put")
    zeros = torch.zeros(6, 3, dtype=torch.float64)
    given = [zeros, places[:, None].expand(9, 3) if name == "scatter_add" else places, values]
    parts = [called(node, [part(*one, chunk) for one in zip(given, how.operands)], {})[0] for chunk in range(2)]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-12, atol=1e-12)
