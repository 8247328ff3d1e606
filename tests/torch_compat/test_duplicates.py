"""Duplicates are merged as torch's partitioner merges them: same nodes, same names, same order of users."""

from __future__ import annotations

import copy
from collections.abc import Callable
from inspect import signature
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._functorch.compile_utils import fx_graph_cse
from torch._subclasses.fake_tensor import FakeTensorMode

from remat_compiler.torch_compat.duplicates import merge_duplicates

aten = torch.ops.aten
KEEPS_HALVES_APART = "extra_node_key" in signature(fx_graph_cse).parameters
Arguments = Callable[[Random, Callable[[], fx.Node]], tuple[Any, ...]]

CALLS: tuple[tuple[torch._ops.OpOverload, Arguments], ...] = (
    (aten.sin.default, lambda _, node: (node(),)),
    (aten.add.Tensor, lambda _, node: (node(), node())),
    (aten.mul.Tensor, lambda draw, node: (node(), draw.choice((1, 1.0, 2)))),
    (aten.roll.default, lambda draw, node: (node(), [draw.choice((1, -1))], [draw.choice((0, -1, -2))])),
    (aten.cat.default, lambda _, node: ([node(), node()],)),
    (aten.slice.Tensor, lambda draw, node: (node(), 0, 0, draw.choice((2, 4)))),
    (aten.bernoulli.default, lambda _, node: (node(),)),
    (aten.empty_like.default, lambda _, node: (node(),)),
    (aten.view.default, lambda _, node: (node(), [-1, 4])),
)


def drawn_graph(seed: int, mutations: bool) -> fx.Graph:
    """A graph with many equal calls, and with changes in place if `mutations`."""
    draw = Random(seed)
    graph = fx.Graph()
    with FakeTensorMode():
        nodes: list[fx.Node] = []
        for i in range(2):
            nodes.append(graph.placeholder(f"primals_{i}"))
            nodes[-1].meta["val"] = torch.empty(4, 4)
        for _ in range(draw.randrange(10, 60)):
            target, arguments = draw.choice(CALLS)
            args = arguments(draw, lambda: draw.choice(nodes[:4]))
            if mutations and draw.random() < 0.1:
                target, args = aten.copy_.default, (draw.choice(nodes[:2]), draw.choice(nodes))
            values = fx.map_arg(args, lambda n: n.meta["val"])
            if target is aten.add.Tensor and values[0].shape != values[1].shape:
                continue
            if target is aten.copy_.default and values[0].shape != values[1].shape:
                continue
            node = graph.call_function(target, args)
            node.meta["val"] = target(*values)
            if isinstance(node.meta["val"], Tensor) and node.meta["val"].numel() <= 64:
                nodes.append(node)
            else:
                graph.erase_node(node)
        graph.output(tuple(draw.sample(nodes, min(3, len(nodes)))))
    return graph


def text(graph: fx.Graph) -> list[str]:
    """All that later passes see."""
    return [f"{n.format_node()} {n.meta.get('mutation_region_id')} {[u.name for u in n.users]}" for n in graph.nodes]


@pytest.mark.parametrize("mutations", [False, True])
def test_merges_what_torch_merges(mutations: bool) -> None:
    merged = 0
    for seed in range(60):
        graph = drawn_graph(seed, mutations)
        expected = fx_graph_cse(copy.deepcopy(graph))
        before = len(graph.nodes)
        merge_duplicates(graph)
        merged += before - len(graph.nodes)
        graph.lint()
        assert text(graph) == text(expected)
    assert merged > 50


def computed_from(graph: fx.Graph, outputs: set[fx.Node]) -> set[fx.Node]:
    """All that `outputs` need, found along the graph's order."""
    needed = set(outputs)
    for node in reversed(graph.nodes):
        if node in needed:
            needed.update(node.all_input_nodes)
    return needed


@pytest.mark.skipif(not KEEPS_HALVES_APART, reason="torch before 2.14 merges over the halves of a step")
def test_what_the_forward_alone_needs_stays_apart_as_in_torch() -> None:
    apart = 0
    for seed in range(60):
        graph = drawn_graph(seed, mutations=False)
        copied = copy.deepcopy(graph)
        needed = computed_from(copied, set(copied.output_node().all_input_nodes[1:]))
        expected = fx_graph_cse(copied, extra_node_key=needed.__contains__)  # type: ignore[call-arg, unused-ignore]
        both = copy.deepcopy(graph)
        merge_duplicates(both)
        merge_duplicates(graph, graph.output_node().all_input_nodes[1:])
        assert text(graph) == text(expected)
        apart += len(graph.nodes) - len(both.nodes)
    assert apart > 0


@pytest.mark.parametrize(("one", "other"), [(0.0, -0.0), (1, 1.0), (complex(0.0, 0.0), complex(0.0, -0.0))])
def test_numbers_that_compute_otherwise_stay_apart(one: complex, other: complex) -> None:
    with FakeTensorMode():
        value = torch.empty(4, 4)
    graph = fx.Graph()
    x = graph.placeholder("primals_0")
    products = [graph.call_function(aten.mul.Tensor, (x, number)) for number in (one, other, one)]
    used = [graph.call_function(aten.sin.default, (product,)) for product in products]
    for node in (x, *products, *used):
        node.meta["val"] = value.clone()
    graph.output(tuple(used))
    merge_duplicates(graph)
    assert len(graph.find_nodes(op="call_function", target=aten.mul.Tensor)) == 2


def test_buffers_that_an_operator_is_handed_to_write_to_stay_apart() -> None:
    with FakeTensorMode():
        values = [torch.empty(4, 4) for _ in range(8)]
    graph = fx.Graph()
    bases = [graph.call_function(aten.full.default, ([4, 4], 1.0)) for _ in range(2)]
    functional = torch.ops.higher_order.auto_functionalized_v2
    for base in bases:
        graph.call_function(functional, (aten.add_.Tensor,), {"_all_bases": [base], "other": base})
    for node, value in zip(graph.nodes, values):
        node.meta["val"] = value
    graph.output(())
    merge_duplicates(graph)
    assert len(graph.find_nodes(op="call_function", target=aten.full.default)) == 2


def test_random_operators_stay_apart() -> None:
    with FakeTensorMode():
        value = torch.empty(4, 4)
    graph = fx.Graph()
    x = graph.placeholder("primals_0")
    both = [graph.call_function(aten.randn_like.default, (x,)) for _ in range(2)]
    for node in (x, *both):
        node.meta["val"] = value
    graph.output(tuple(graph.call_function(aten.sin.default, (n,)) for n in both))
    merge_duplicates(graph)
    assert len([n for n in graph.nodes if n.target is aten.randn_like.default]) == 2


@torch.library.custom_op("remat_duplicates::unpacked", mutates_args=())
def unpacked(weight: Tensor) -> Tensor:
    """Makes a weight of a packed one."""
    return weight.float()


@pytest.mark.parametrize(("target", "left"), [(torch.ops.remat_duplicates.unpacked.default, 2), (aten.sin.default, 1)])
def test_a_custom_operator_that_the_backward_calls_again_is_no_duplicate(target: Any, left: int) -> None:
    """No plan may compute its result again, so merged it would be kept for the backward: all weights in full."""
    graph = fx.Graph()
    weight, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    first, inside = graph.call_function(target, (weight,)), graph.call_function(target, (weight,))
    gradient = graph.call_function(aten.neg.default, (tangent,))
    gradient.meta["partitioner_tag"] = "is_backward"
    again = graph.call_function(target, (weight,))
    product = graph.call_function(aten.mul.Tensor, (first, inside))
    graph.output((product, graph.call_function(aten.mul.Tensor, (gradient, again))))
    with FakeTensorMode():
        for node in graph.nodes:
            if node.op != "output":
                node.meta["val"] = torch.empty(4)
    merge_duplicates(graph)
    assert len(graph.find_nodes(op="call_function", target=target)) == left
    assert product.args == (first, first)
