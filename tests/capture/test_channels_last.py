"""Copies for the layout of convolutions: which are made, by whom they are read, and that nothing is copied besides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch._functorch import config as functorch_config
from torch._inductor import config

from capture.emitted import estimated_and_emitted
from costs.captured import captured
from end_to_end.compiling import differences_from_eager
from remat_compiler import torch_compat
from remat_compiler.backend import remat
from remat_compiler.capture.channels_last import copy_inputs_of_convolutions
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.observer import Observer, observed_by
from remat_compiler.partition.request import PartitionRequest

LOWEST, HIGHEST = 0.995, 1.1
"""The estimate over what is emitted; without the copies it is two thirds of it."""
IMAGE, WEIGHT, GRADIENT = "input_channels_last", "weight_channels_last", "weight_gradient_contiguous"


class Small(nn.Module):
    """Convolutions with batch norm and dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.last = nn.Conv2d(16, 32, 3, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout(torch.relu(self.norm(self.first(x))), 0.1)
        y: Tensor = self.last(x)
        return y.square().mean()


class Copied:
    """A joint graph with its copies, by name, and what torch traced of its outputs before."""

    def __init__(self, graph: CapturedGraph) -> None:
        joint, self.number = graph.joint, graph.num_fwd_outputs
        output = joint.graph.output_node()
        before = [node.meta["val"].stride() for node in output.all_input_nodes]
        self.made = copy_inputs_of_convolutions(joint, self.number)
        self.nodes = {node.name: node for node in joint.graph.nodes}
        self.strides_are_kept = before == [node.meta["val"].stride() for node in output.all_input_nodes]
        self.convolutions = [node for node in joint.graph.nodes if node.target is torch_compat.CONVOLUTION]
        self.backwards = [node for node in joint.graph.nodes if node.target is torch_compat.CONVOLUTION_BACKWARD]

    @property
    def names(self) -> set[str]:
        """Names of all nodes that were inserted."""
        return {name for name in self.nodes if name.startswith((IMAGE, WEIGHT, GRADIENT, "input_gradient_contiguous"))}


def copied(function: Callable[..., Tensor], *inputs: Tensor, dynamic: bool = False) -> Copied:
    """The joint graph of `function` with copies, which is then run forward and backward."""
    found: list[Copied] = []
    captured(function, inputs, fused=True, dynamic=dynamic, look=lambda graph: found.append(Copied(graph)))
    (one,) = found
    return one


def weights(*shape: int) -> Tensor:
    return torch.randn(shape, requires_grad=True)


def test_image_and_weight_are_copied_once_and_their_copies_read_by_both_halves() -> None:
    def twice(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(F.conv2d(x, w)) + F.conv2d(x, w).sigmoid()

    graph = copied(twice, torch.randn(2, 3, 8, 8), weights(8, 3, 3, 3))
    assert [node.name for node in graph.made] == [IMAGE, WEIGHT]
    image, weight = graph.made
    assert {node.args[:2] for node in graph.convolutions} == {(image, weight)}
    assert {node.args[1:3] for node in graph.backwards} == {(image, weight)}
    assert all(torch_compat.is_channels_last(node.meta["val"]) for node in (*graph.made, *graph.convolutions))
    assert graph.strides_are_kept


def test_the_gradient_is_returned_as_the_program_lays_it_out() -> None:
    inputs = torch.randn(2, 3, 8, 8), weights(8, 3, 3, 3)
    graph = copied(F.conv2d, *inputs)
    assert graph.names == {IMAGE, WEIGHT, GRADIENT}
    gradient = graph.nodes[GRADIENT]
    assert [node.meta["val"].is_contiguous() for node in (gradient, gradient.args[0])] == [True, False]
    assert [user.op for user in gradient.users] == ["output"]
    (expected,) = torch.autograd.grad(F.conv2d(*inputs).sum(), inputs[1:])
    torch.testing.assert_close(inputs[1].grad, expected)


class Backwards:
    """The nodes of a graph in reverse, as they are before torch 2.13: to be gone through, yet no iterator."""

    def __init__(self, nodes: Iterable[fx.Node]) -> None:
        self.nodes = tuple(nodes)[::-1]

    def __iter__(self) -> Iterator[fx.Node]:
        return iter(self.nodes)


def test_copies_are_made_where_reversed_nodes_are_no_iterator(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = torch.randn(2, 3, 8, 8), weights(8, 3, 3, 3)
    monkeypatch.setattr(type(fx.Graph().nodes), "__reversed__", lambda nodes: Backwards(nodes))
    assert copied(F.conv2d, *inputs).names == {IMAGE, WEIGHT, GRADIENT}


_OTHER: dict[str, tuple[Callable[..., Tensor], Sequence[Tensor], set[str]]] = {
    "groups": (partial(F.conv2d, groups=2), (torch.randn(2, 4, 8, 8), weights(8, 2, 3, 3)), {IMAGE, WEIGHT, GRADIENT}),
    "depthwise": (partial(F.conv2d, groups=4), (torch.randn(2, 4, 8, 8), weights(4, 1, 3, 3)), {IMAGE}),
    "1 x 1": (F.conv2d, (torch.randn(2, 4, 8, 8), weights(8, 4, 1, 1)), {IMAGE}),
    "transposed": (
        partial(F.conv_transpose2d, stride=2),
        (torch.randn(2, 4, 8, 8), weights(4, 8, 2, 2)),
        {IMAGE, WEIGHT, GRADIENT},
    ),
    "a view": (
        lambda x, w: F.conv2d(x.view(2, 4, 8, 8), w),
        (torch.randn(2, 256), weights(8, 4, 3, 3)),
        {IMAGE, WEIGHT, GRADIENT},
    ),
    "channels last": (
        F.conv2d,
        (torch.randn(2, 4, 8, 8).to(memory_format=torch.channels_last), weights(8, 4, 3, 3)),
        {WEIGHT},  # torch returns this gradient in the order of the image
    ),
    "an image that learns": (
        F.conv2d,
        (weights(2, 4, 8, 8), weights(8, 4, 3, 3)),
        {IMAGE, WEIGHT, GRADIENT, "input_gradient_contiguous"},
    ),
    "computed": (lambda x, w: F.conv2d(x.sin(), w.sin()), (torch.randn(2, 4, 8, 8), weights(8, 4, 3, 3)), set()),
    "1-d": (F.conv1d, (torch.randn(2, 4, 8), weights(8, 4, 3)), set()),
    "none": (torch.matmul, (torch.randn(8, 8), weights(8, 8)), set()),
}


@pytest.mark.parametrize("name", _OTHER)
def test_only_inputs_in_another_order_are_copied(name: str) -> None:
    function, inputs, expected = _OTHER[name]
    graph = copied(function, *inputs)
    assert graph.names == expected
    assert graph.strides_are_kept


@pytest.mark.parametrize("setting", [{"layout_optimization": False}, {"max_autotune": True}])
def test_nothing_is_copied_where_inductor_keeps_the_layout(setting: dict[str, Any]) -> None:
    with config.patch(setting):
        assert not copied(F.conv2d, torch.randn(2, 3, 8, 8), weights(8, 3, 3, 3)).names


def test_nothing_is_copied_where_torch_draws_numbers_which_would_be_others_in_another_order() -> None:
    def dropped(x: Tensor, w: Tensor) -> Tensor:
        return F.conv2d(F.dropout(F.conv2d(x, w), 0.5), w)

    assert not copied(dropped, torch.randn(2, 3, 8, 8), weights(3, 3, 3, 3)).names


def test_symbolic_sizes_stay_symbolic() -> None:
    graph = copied(F.conv2d, torch.randn(2, 3, 8, 8), weights(8, 3, 3, 3), dynamic=True)
    image = graph.nodes[IMAGE].meta["val"]
    assert isinstance(image.shape[0], torch.SymInt)
    assert torch_compat.is_channels_last(image)
    assert image.shape == graph.nodes[IMAGE].args[0].meta["val"].shape


# Loops of normalisation that convert their result hold a little more than is planned, in either layout.
@pytest.mark.parametrize(("precision", "lowest"), [(None, LOWEST), (torch.bfloat16, 0.9)])
def test_the_estimate_is_what_is_emitted_also_where_copies_are_made_again(
    precision: torch.dtype | None, lowest: float
) -> None:
    torch.manual_seed(0)
    model, x = Small(), torch.randn(2, 3, 12, 12)
    with torch.autocast("cpu", precision, enabled=precision is not None):
        everything, emitted = estimated_and_emitted(model, (x,), PartitionRequest(None, max_slowdown=None))
        assert LOWEST * emitted <= everything <= HIGHEST * emitted
        smallest = PartitionRequest(1, take_smallest=True, max_slowdown=None)
        estimate, emitted = estimated_and_emitted(model, (x,), smallest)
    assert estimate < everything
    assert lowest * emitted <= estimate <= HIGHEST * emitted


class WithSquares(nn.Sequential):
    """Layers and a loss."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).square().mean()


def test_one_channel_in_each_group_costs_no_copies_in_the_backward() -> None:
    layers = [m for _ in range(3) for m in (nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU())]
    model = WithSquares(nn.Conv2d(3, 16, 4, stride=4), *layers)
    image = torch.randn(2, 3, 64, 64)
    whole, _ = estimated_and_emitted(model, (image,), PartitionRequest(None))
    # No convolution runs again at the first of these budgets, and some do at the second.
    for part in (0.9, 0.6):
        estimated, emitted = estimated_and_emitted(model, (image,), PartitionRequest(int(part * whole)))
        assert LOWEST * emitted <= estimated <= HIGHEST * emitted


class Kept(Observer):
    """The last try of each compilation, which is the one that runs."""

    def attempt_ends(self, attempt: Any) -> None:
        self.attempt = attempt


@pytest.mark.slow
@pytest.mark.parametrize("budget", [0.95, 0.8])
def test_random_numbers_are_those_of_eager(budget: float) -> None:
    model, x = Small(), torch.randn(4, 3, 32, 32)
    with config.patch(fallback_random=True):
        assert differences_from_eager(model, (x,), tolerance=1e-5, memory_budget=budget, inner="inductor") == []


class DroppedAtOnce(nn.Module):
    """Dropout behind convolutions, whose results Inductor leaves in channels-last order."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + F.dropout(layer(F.silu(F.group_norm(x, 4))), 0.1)
        return x.square().mean()


@pytest.mark.slow
def test_repeated_random_numbers_are_those_of_eager_in_inductors_layout() -> None:
    model, x = DroppedAtOnce(), torch.randn(4, 3, 16, 16)
    with config.patch(fallback_random=True):
        assert differences_from_eager(model, (x,), tolerance=1e-5, memory_budget=0.7, inner="inductor") == []


@pytest.mark.slow
def test_a_step_in_inductors_layout_trains_as_without_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    # Code from a cache comes without the partition that is looked at.
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    torch.manual_seed(0)
    model, x = Small(), torch.randn(4, 3, 32, 32)
    state = {name: value.clone() for name, value in model.state_dict().items()}

    def step(backend: Any) -> list[Tensor]:
        torch._dynamo.reset()
        model.load_state_dict(state)
        model.zero_grad(set_to_none=True)
        torch.manual_seed(7)
        loss = torch.compile(model, backend=backend)(x)
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters()), *(b.clone() for b in model.buffers())]

    expected, kept = step("inductor"), Kept()
    with observed_by(kept), functorch_config.patch(enable_autograd_cache=False), config.patch(fx_graph_cache=False):
        found = step(partial(remat, options={"memory_budget": 0.7, "max_slowdown": None}))
    (partition,) = kept.attempt.partitions
    assert kept.attempt.request.free_layout
    assert any(node.name == f"{IMAGE}_recompute" for node in partition.graphs.backward.graph.nodes)
    torch.testing.assert_close(found, expected)
    assert [one.stride() for one in found] == [one.stride() for one in expected]
