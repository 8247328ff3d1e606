"""Inputs and buffers that the forward changes: the backward works with the old values, and changes nothing twice."""

from __future__ import annotations

from random import Random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from remat_compiler.capture.changes import changed_by_forward
from remat_compiler.capture.mutation import _overlaps_itself
from remat_compiler.ir.graph import Phase, SavePolicy
from rewrite.planned_step import PlannedStep, joint_order, run_step
from rewrite.random_plans import random_plan

PLANS = 12


class OldBuffer(nn.Module):
    """Reads a copy of a buffer, then changes the buffer."""

    buf: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buf", torch.full((8,), 1.5))

    def forward(self, x: Tensor) -> tuple[Tensor]:
        y = torch.sin(x * self.buf.clone() * 3)
        self.buf.add_(1)
        return (y,)


class ReadBeforeAndAfter(OldBuffer):
    """Reads a buffer's old and its new value."""

    def forward(self, x: Tensor) -> tuple[Tensor]:
        old = torch.exp(x * self.buf.sin())
        self.buf.mul_(0.5).add_(x.detach().mean())
        return (old * torch.cos(self.buf * x),)


class Normalised(nn.Module):
    """Batch normalisation, whose running statistics change once a step."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> tuple[Tensor]:
        return (torch.tanh(self.norm(torch.sin(x))),)


class ChangesAWindow(nn.Module):
    """Changes a part of an argument whose rows overlap, and reads what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, windows: Tensor) -> Tensor:
        old = (windows @ windows.t() @ windows / 8) @ self.weight
        windows[0].zero_()
        return old.sin().sum()


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_an_input_that_overlaps_itself_is_changed_as_in_eager(
    inner: str, compiles_anew: None, caplog: pytest.LogCaptureFixture
) -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model, base = ChangesAWindow(), torch.randn(20)
        options = {"memory_budget": "1MiB", "inner": inner}
        call = torch.compile(model, backend="remat", options=options) if compiled else model
        call(base.as_strided((12, 8), (1, 1))).backward()
        found.append((base, model.weight.grad))
    torch.testing.assert_close(found[1], found[0])
    assert "the input windows, which overlaps itself, is changed in place: compiled as without a budget" in caplog.text


@pytest.mark.parametrize(
    ("shape", "stride", "overlaps"),
    [
        ((12, 8), (1, 1), True),
        ((12, 8), (0, 1), True),
        ((12, 8), (7, 1), True),
        ((12, 8), (8, 1), False),
        ((12, 8), (1, 12), False),
        ((12, 1), (1, 1), False),
        ((0, 8), (1, 1), False),
        ((), (), False),
    ],
)
def test_which_tensors_overlap_themselves(shape: tuple[int, ...], stride: tuple[int, ...], overlaps: bool) -> None:
    assert _overlaps_itself(torch.empty(1_000).as_strided(shape, stride)) is overlaps


class ChangesItsInput(nn.Module):
    """Changes an argument, whose old value the backward needs."""

    def forward(self, x: Tensor, state: Tensor) -> tuple[Tensor]:
        y = torch.sin(x * state.clone()) * state.exp()
        state.add_(1)
        return (y,)


@pytest.mark.parametrize("change_in_graph", [True, False])
@pytest.mark.parametrize("kind", [OldBuffer, ReadBeforeAndAfter, Normalised])
def test_changed_buffers_equal_eager_under_every_plan(kind: type[nn.Module], change_in_graph: bool) -> None:
    module, inputs = kind(), (torch.randn(4, 8, requires_grad=True),)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    eager = run_step(module, module, inputs, buffers)
    step = PlannedStep(module, inputs, change_in_graph=change_in_graph)
    for seed in range(PLANS):
        step.use(random_plan(step.captured.graph, Random(seed)))
        assert run_step(module, step.call, inputs, buffers).differences(eager) == []


@pytest.mark.parametrize("change_in_graph", [True, False])
def test_a_changed_argument_keeps_its_old_value_for_the_backward(change_in_graph: bool) -> None:
    module, x = ChangesItsInput(), torch.randn(4, 8, requires_grad=True)
    state = torch.full((8,), 0.5)
    eager = run_step(module, module, (x, state.clone()), {})
    traced = state.clone()
    step = PlannedStep(module, (x, traced), change_in_graph=change_in_graph)
    for seed in range(PLANS):
        step.use(random_plan(step.captured.graph, Random(seed)))
        argument = state.clone()
        assert run_step(module, step.call, (x, argument), {}).differences(eager) == []
        assert torch.equal(argument, state + 1)


def test_the_copy_is_saved_and_made_in_the_forward() -> None:
    step = PlannedStep(ReadBeforeAndAfter(), (torch.randn(4, 8, requires_grad=True),))
    copies = [op for op in step.captured.graph.ops if op.target == "aten.clone.default"]
    assert [op.save_policy for op in copies] == [SavePolicy.MUST_SAVE]
    assert [op.phase for op in copies] == [Phase.FORWARD]
    assert "changes in place" in copies[0].no_recompute


def test_what_is_written_by_keyword_counts_as_changed() -> None:
    graph = fx.Graph()
    x, y = graph.placeholder("x"), graph.placeholder("y")
    total = graph.call_function(torch.ops.aten.add.out, (x, x), {"out": y})
    graph.output((total,))
    assert changed_by_forward(graph) == {y}


def test_an_unchanged_buffer_is_not_copied() -> None:
    class OnlyReads(OldBuffer):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (torch.sin(x * self.buf * 3),)

    step = PlannedStep(OnlyReads(), (torch.randn(4, 8, requires_grad=True),))
    assert not any(op.target == "aten.clone.default" for op in step.captured.graph.ops)


def test_batch_norm_may_run_again() -> None:
    """Its running statistics are copied (they are small), so that its large result need not be saved."""
    step = PlannedStep(Normalised(), (torch.randn(4, 8, requires_grad=True),))
    norms = [op for op in step.captured.graph.ops if "batch_norm" in op.target and op.phase is Phase.FORWARD]
    assert [op.no_recompute for op in norms] == [""]


def test_a_graph_that_only_changes_its_buffer_has_no_backward() -> None:
    class Counts(OldBuffer):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            self.buf.add_(1)
            return (self.buf.sum(),)

    module = Counts()
    step = PlannedStep(module, (torch.randn(4, 8),))
    assert not step.needs_backward
    before = module.buf.clone()
    step.call(torch.randn(4, 8))
    assert torch.equal(module.buf, before + 1)


def test_dropout_beside_batch_norm() -> None:
    class Both(Normalised):
        def forward(self, x: Tensor) -> tuple[Tensor]:
            return (F.dropout(torch.tanh(self.norm(F.dropout(x, 0.2))), 0.5),)

    module, inputs = Both(), (torch.randn(4, 8, requires_grad=True),)
    buffers = {name: value.clone() for name, value in module.named_buffers()}
    eager = run_step(module, module, inputs, buffers)
    step = PlannedStep(module, inputs)
    assert run_step(module, step.call, inputs, buffers).differences(eager) == []
    step.use(joint_order(step.captured))
    for seed in range(PLANS):
        step.use(random_plan(step.captured.graph, Random(seed)))
        assert run_step(module, step.call, inputs, buffers).differences(eager) == []
