"""Graphs that were taken apart get back the inputs, outputs and notes that torch's own partitioner gave them."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import partitioners
from torch._functorch.partitioners import min_cut_rematerialization_partition

from remat_compiler import torch_compat
from remat_compiler.capture.operators import has_tensor

NOTES_BACKWARD = "autograd_backward" in inspect.getsource(partitioners)
"""Whether this version's partitioner notes which nodes are of the backward, rather than tracing alone."""

TAKES_STATIC_NODES = (
    "static_lifetime_input_nodes" in inspect.signature(partitioners._extract_fwd_bwd_modules).parameters
)


class Stop(BaseException):
    """Ends a compilation once the joint graph is there."""


class Dense(nn.Module):
    """Several outputs, one of them an input of the backward as well; a buffer that the forward changes."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6, bias=False)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        self.calls.add_(1)
        hidden = torch.tanh(self.first(x))
        return hidden, torch.softmax(self.second(hidden) * self.calls, -1).sum(0)


class Sized(nn.Module):
    """Sizes of the input take part in the computation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        length = x.shape[0]
        return (x @ self.weight).view(2, -1).cumsum(1) / length, length


def joint_graph(module: nn.Module, inputs: Sequence[Tensor], dynamic: bool) -> tuple[fx.GraphModule, dict[str, Any]]:
    """The joint graph of `module`, and what a partitioner is told of it."""
    found: list[Any] = []

    def stop(joint: fx.GraphModule, _: object, **keywords: Any) -> Any:
        found.extend((joint, keywords))
        raise Stop

    def ignore(gm: fx.GraphModule, _: object) -> Callable[..., Any]:
        return gm.forward

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=ignore, bw_compiler=ignore, partition_fn=stop)
    with contextlib.suppress(Stop):
        torch.compile(module, backend=backend, dynamic=dynamic)(*inputs)
    return found[0], found[1]


def taken_apart(graph: fx.Graph, draw: Random) -> tuple[fx.Graph, dict[str, fx.Node]]:
    """A copy without output and notes, tangents first, and inputs of the backward in any order; nodes by name."""
    apart = fx.Graph()
    named: dict[str, fx.Node] = {}
    inputs = graph.find_nodes(op="placeholder")
    tangents = [n for n in inputs if torch_compat.is_tangent(n)]
    if tangents:
        inputs = [*tangents, *draw.sample([n for n in inputs if n not in tangents], len(inputs) - len(tangents))]
    for node in (*inputs, *(n for n in graph.nodes if n.op not in ("placeholder", "output"))):
        named[node.name] = apart.node_copy(node, lambda n: named[n.name])
        if tangents and NOTES_BACKWARD:
            named[node.name].meta.pop("autograd_backward", None)
    return apart, named


def returned(graph: fx.Graph) -> list[Any]:
    values: Any = graph.output_node().args[0]
    return list(values)


def convention(graph: fx.Graph) -> list[object]:
    """All that AOTAutograd goes by."""
    output = graph.output_node()
    return [
        [(n.name, n.meta["val"], sorted(n.meta)) for n in graph.find_nodes(op="placeholder")],
        [str(value) for value in returned(graph)],
        output.meta.get("desc"),
        output.meta.get("output_stack_traces"),
        [(n.format_node(), n.meta.get("autograd_backward")) for n in graph.nodes if n.op == "call_function"],
    ]


@pytest.mark.parametrize(("module", "dynamic"), [(Dense(), False), (Dense(), True), (Sized(), True)])
@pytest.mark.parametrize("seed", range(3))
def test_the_convention_is_torchs(module: nn.Module, dynamic: bool, seed: int) -> None:
    joint, keywords = joint_graph(module, [torch.randn(4, 6)], dynamic)
    torch_compat.prepare_joint(joint, keywords["num_fwd_outputs"], keywords["static_lifetime_input_indices"])
    expected = min_cut_rematerialization_partition(torch_compat.copy_module(joint), None, **keywords)
    draw = Random(seed)
    (forward, in_forward), (backward, in_backward) = (taken_apart(m.graph, draw) for m in expected)
    own = [n for n in backward.find_nodes(op="placeholder") if n.name in in_forward]
    count = keywords["num_fwd_outputs"]
    halves = torch_compat.Halves(
        joint=joint,
        forward=forward,
        backward=backward,
        crossing={in_forward[n.name]: n for n in draw.sample(own, len(own))},
        symbols=frozenset(n for n in forward.nodes if not has_tensor(n)),
        forward_outputs=tuple(_in(in_forward, returned(expected[0].graph)[:count])),
        backward_outputs=tuple(_in(in_backward, returned(expected[1].graph))),
    )
    modules = torch_compat.finished_modules(halves)
    assert [convention(m.graph) for m in modules] == [convention(m.graph) for m in expected]


def _in(named: dict[str, fx.Node], values: Sequence[Any]) -> list[Any]:
    return [named[v.name] if isinstance(v, fx.Node) else v for v in values]


@pytest.mark.skipif(not TAKES_STATIC_NODES, reason="this torch is not to be told")
def test_torch_is_told_which_inputs_stay_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of others a backward checks where they lie in memory, and may store them in fewer bits."""
    told: list[list[str]] = []
    extract = partitioners._extract_fwd_bwd_modules

    def noted(
        joint: fx.GraphModule, *args: Any, static_lifetime_input_nodes: Sequence[fx.Node] = (), **keywords: Any
    ) -> Any:
        told.append([node.name for node in static_lifetime_input_nodes])
        return extract(joint, *args, **keywords)

    monkeypatch.setattr(partitioners, "_extract_fwd_bwd_modules", noted)
    joint, keywords = joint_graph(Sized(), [torch.randn(4, 6)], False)
    torch_compat.prepare_joint(joint, keywords["num_fwd_outputs"], [0])
    halves = halves_of(joint, keywords)
    told.clear()
    torch_compat.finished_modules(halves)
    assert told == [["primals_1"]]


def halves_of(joint: fx.GraphModule, keywords: dict[str, Any]) -> torch_compat.Halves:
    """What torch's partitioner makes of a joint graph, taken apart."""
    expected = min_cut_rematerialization_partition(torch_compat.copy_module(joint), None, **keywords)
    (forward, in_forward), (backward, in_backward) = (taken_apart(m.graph, Random(0)) for m in expected)
    count = keywords["num_fwd_outputs"]
    return torch_compat.Halves(
        joint,
        forward,
        backward,
        {in_forward[n.name]: n for n in backward.find_nodes(op="placeholder") if n.name in in_forward},
        frozenset(),
        tuple(_in(in_forward, returned(expected[0].graph)[:count])),
        tuple(_in(in_backward, returned(expected[1].graph))),
    )


def test_what_nothing_reads_is_not_saved() -> None:
    joint, keywords = joint_graph(Dense(), [torch.randn(4, 6)], False)
    halves = halves_of(joint, keywords)
    unread = next(n for n in halves.forward.nodes if n.op == "call_function" and n not in halves.crossing)
    halves.crossing[unread] = halves.backward.placeholder("unread")
    _, made = torch_compat.finished_modules(halves)
    assert "unread" not in [n.name for n in made.graph.nodes]
