"""The forward as blocks: what runs, what is dropped and when, and what it leaves alone."""

from __future__ import annotations

import threading
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from remat_compiler import torch_compat
from remat_compiler.dynamic_shapes.mimose.layered_forward import CpuMeter, Layer, LayeredForward, written_nodes

aten = torch.ops.aten


def joint() -> fx.GraphModule:
    """Two blocks of two operators each, with a mask between them, a buffer that is changed, and a backward."""
    graph = fx.Graph()
    x, buffer, tangent = (graph.placeholder(name) for name in ("primals_1", "primals_2", "tangents_1"))
    a = graph.call_function(aten.sin.default, (x,))
    b = graph.call_function(aten.add.Tensor, (a, buffer))
    mask = graph.call_function(aten.gt.Scalar, (b, 0))
    c = graph.call_function(aten.cos.default, (b,))
    d = graph.call_function(aten.mul.Tensor, (c, mask))
    total = graph.call_function(aten.sum.default, (d,))
    graph.call_function(aten.copy_.default, (buffer, b))
    back = graph.call_function(aten.mul.Tensor, (tangent, c))
    graph.output((total, back))
    names = ("a", "b", "mask", "c", "d", "total", "change", "back")
    for name, node in zip(names, list(graph.nodes)[3:]):
        node.name = name
    return fx.GraphModule(torch.nn.Module(), graph)


PLACES = {"a": 0, "b": 0, "c": 1, "d": 1, "total": -1, "change": -1}


def forward_of(graph: fx.GraphModule) -> LayeredForward:
    blocks = [Layer("layer.0", ("a",), False), Layer("layer.1", ("c", "d"), False)]
    return LayeredForward(graph, PLACES, ["primals_1", "primals_2"], blocks)


class Watching(CpuMeter):
    """Notes the bytes of everything that the run made and that is alive whenever a block is over."""

    def __init__(self) -> None:
        self.made: list[weakref.ref[Any]] = []
        self.alive: list[int] = []

    def release(self, values: list[Tensor]) -> int:
        self.alive.append(sum(one().nbytes() for one in self.made if one() is not None))  # type: ignore[union-attr]
        return super().release(values)


def test_blocks_are_measured_and_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a block alive are what it is measured by and what later blocks read, and nothing else."""
    meter, run_node = Watching(), torch_compat.StepInterpreter.run_node

    def noted(self: fx.Interpreter, node: fx.Node) -> Any:
        value = run_node(self, node)
        meter.made.append(weakref.ref(value.untyped_storage()))
        return value

    monkeypatch.setattr(torch_compat.StepInterpreter, "run_node", noted)
    x, buffer = torch.randn(1_000), torch.randn(1_000)
    found = forward_of(joint()).run([x, buffer], meter)
    assert found.block_bytes == (4_000, 8_000)
    assert min(found.block_ns) > 0
    # a, b and the mask; then c, d, and b for the buffer.
    assert meter.alive == [9_000, 12_000]
    assert all(one() is None for one in meter.made)


def test_inputs_are_not_written_to_and_the_backward_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    interpreter, run_node = torch_compat.StepInterpreter, torch_compat.StepInterpreter.run_node
    monkeypatch.setattr(interpreter, "run_node", lambda self, node: (ran.append(node.name), run_node(self, node))[1])
    x, buffer = torch.randn(10), torch.randn(10)
    before = x.clone(), buffer.clone(), buffer._version
    forward_of(joint()).run([x, buffer], CpuMeter())
    assert torch.equal(x, before[0])
    assert torch.equal(buffer, before[1])
    assert buffer._version == before[2]
    assert ran == ["a", "b", "mask", "c", "d", "total"]


def test_writes_are_found_but_for_copies_into_inputs() -> None:
    graph = joint()
    assert list(written_nodes(graph.graph, PLACES)) == []
    with graph.graph.inserting_before(graph.graph.output_node()):
        written = graph.graph.call_function(aten.add_.Tensor, (next(n for n in graph.graph.nodes if n.name == "c"), 1))
    assert list(written_nodes(graph.graph, [*PLACES, written.name])) == [written]
    assert list(written_nodes(graph.graph, PLACES)) == []


def test_what_runs_beside_the_step_leaves_no_trace() -> None:
    state = torch.get_rng_state()
    weight = torch.randn(3, 3, requires_grad=True)
    torch.set_rng_state(state)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with torch_compat.detached_run():
            product = torch.rand(3, 3) @ weight
            assert product.dtype is torch.float32
            assert not product.requires_grad
        assert (weight @ weight).dtype is torch.bfloat16
    assert torch.equal(torch.get_rng_state(), state)


class Owner:
    """What Inductor's compiled graph is to its caller."""

    def __init__(self) -> None:
        self.ran: list[list[Any]] = []
        self.current_callable: Any = lambda inputs: self.ran.append(inputs)

    def __call__(self, *arguments: Any) -> None:
        self.current_callable([*arguments, "added"])


def test_the_call_is_broken_off_in_this_thread_alone() -> None:
    owner: Any = Owner()

    def compiled(*arguments: Any) -> None:
        other = threading.Thread(target=owner, args=("elsewhere",))
        other.start()
        other.join()
        owner(*arguments)

    found = torch_compat.forward_arguments(compiled, [1, 2], [owner])
    assert found == [1, 2, "added"]
    assert owner.ran == [["elsewhere", "added"]]
    owner("again")
    assert owner.ran[1:] == [["again", "added"]]
    with pytest.raises(RuntimeError, match="did not call its forward"):
        torch_compat.forward_arguments(lambda: None, [], [owner])
