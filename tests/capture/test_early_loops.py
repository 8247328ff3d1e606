"""The order with early loops is one of computation, moves loops of the backward alone, and loses nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx

from costs.captured import captured
from remat_compiler.capture.early_loops import early_loops, order_of, set_order
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.capture.operators import NodeClass, node_class, traits_of
from remat_compiler.ir.graph import Phase

SIZE = 32
Step = Callable[[Tensor, Tensor], Tensor]


def normed(x: Tensor, w: Tensor) -> Tensor:
    for _ in range(3):
        x = x + F.gelu(F.layer_norm(x, (SIZE,)) @ w)
    return x.square().mean()


def dropped(x: Tensor, w: Tensor) -> Tensor:
    return (F.dropout(torch.tanh(x @ w), 0.3) @ w).sum()


def masked(x: Tensor, w: Tensor) -> Tensor:
    """The backward needs a mask that no tangent enters."""
    return (F.relu(x @ w) @ w).logsumexp(0).sum()


STEPS = (normed, dropped, masked)


def orders(step: Step) -> tuple[list[fx.Node], list[fx.Node], CapturedGraph]:
    """The joint graph's own order, and the one with early loops."""
    found: list[tuple[list[fx.Node], list[fx.Node]]] = []

    def look(graph: CapturedGraph) -> None:
        found.append((order_of(graph.joint), early_loops(graph.joint, graph.num_fwd_outputs)))

    inputs = (torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE, requires_grad=True))
    graph = captured(step, inputs, fused=True, look=look)
    ((own, early),) = found
    return own, early, graph


@pytest.mark.parametrize("step", STEPS)
def test_it_is_an_order_of_computation_of_the_same_nodes(step: Step) -> None:
    own, early, _ = orders(step)
    assert sorted(own) == sorted(early)
    place = {node: i for i, node in enumerate(early)}
    assert all(place[a] < place[node] for node in early for a in node.all_input_nodes)


@pytest.mark.parametrize("step", STEPS)
def test_the_forward_the_kernels_and_what_has_an_effect_keep_their_order(step: Step) -> None:
    own, early, graph = orders(step)

    def stays(node: fx.Node) -> bool:
        forward = graph.phases[node] is Phase.FORWARD
        backward = graph.phases[node] is Phase.BACKWARD
        return forward or (backward and (node_class(node) is NodeClass.KERNEL or bool(traits_of(node))))

    assert [node for node in own if stays(node)] == [node for node in early if stays(node)]


@pytest.mark.parametrize("step", STEPS)
def test_no_loop_of_the_backward_waits_for_a_kernel_that_it_does_not_need(step: Step) -> None:
    _, early, graph = orders(step)
    kernel: fx.Node | None = None
    since: set[fx.Node] = set()
    for node in early:
        if graph.phases[node] is not Phase.BACKWARD or traits_of(node):
            continue
        if node_class(node) is NodeClass.KERNEL:
            kernel, since = node, {node}
        elif node_class(node) in (NodeClass.POINTWISE, NodeClass.REDUCTION) and kernel is not None:
            reads = {a for a in node.all_input_nodes if graph.phases[a] is not Phase.FORWARD}
            assert not reads or not reads.isdisjoint(since)
        since.add(node)


def test_setting_an_order_and_back_leaves_the_graph_as_it_was() -> None:
    def look(graph: CapturedGraph) -> None:
        before = str(graph.joint.graph)
        own = order_of(graph.joint)
        set_order(graph.joint, early_loops(graph.joint, graph.num_fwd_outputs))
        assert str(graph.joint.graph) != before
        set_order(graph.joint, own)
        assert str(graph.joint.graph) == before

    captured(normed, (torch.randn(SIZE, SIZE), torch.randn(SIZE, SIZE, requires_grad=True)), fused=True, look=look)
