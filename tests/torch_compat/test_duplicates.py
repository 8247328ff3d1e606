"""Duplicates are merged as torch's partitioner merges them: same nodes, same names, same order of users."""

from __future__ import annotations

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, fx
from torch._functorch.compile_utils import fx_graph_cse
from torch._subclasses.fake_tensor import FakeTensorMode

from remat_compiler.torch_compat.duplicates import merge_duplicates

aten = torch.ops.aten
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
