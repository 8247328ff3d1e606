"""Which calls make a step is learnt from autograd, in whatever order a program trains its graphs."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch.testing._internal.two_tensor import TwoTensor

from dry_run.steps import interpret
from remat_compiler.step_model.events import Call, Leaf, Passed, Turn
from remat_compiler.step_model.step import Step
from remat_compiler.watching.step_watch import StepWatch

F, B, DROPPED = Turn.FORWARD, Turn.BACKWARD, Turn.DROPPED
WatchedStep = Step["Watched"]


class Watched:
    """A compiled function under watch."""

    def __init__(self, watch: StepWatch[Watched], function: Callable[..., Any]) -> None:
        self.watch = watch
        torch._dynamo.reset()
        self.compiled = torch.compile(function, backend=self._backend, dynamic=False)

    def _backend(self, gm: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
        compiled = aot_autograd(fw_compiler=interpret, bw_compiler=interpret)(gm, inputs)

        def call(*arguments: Any) -> Any:
            outputs = compiled(*arguments)
            self.watch.forward(self, arguments, outputs)
            return outputs

        return call

    def __call__(self, *arguments: Tensor) -> Any:
        return self.compiled(*arguments)


def squared() -> Any:
    """A function of its own for each watch, as each compiled graph is."""

    class Squared(torch.autograd.Function):
        """Stands for a compiled graph: AOTAutograd's node is of this kind, too."""

        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return 2 * gradients[0] * ctx.saved_tensors[0]

    return Squared


@pytest.fixture
def steps() -> Iterator[list[WatchedStep]]:
    """The complete steps."""
    found: list[WatchedStep] = []
    yield found
    gc.collect()


@pytest.fixture
def watch(steps: list[WatchedStep]) -> StepWatch[Watched]:
    return StepWatch(steps.append)


def leaf() -> Tensor:
    return torch.randn(4, 8, requires_grad=True)


def test_two_graphs_in_a_row(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    first, second = Watched(watch, torch.sin), Watched(watch, lambda y: y.exp().sum())
    y = first(leaf())
    assert [held.graph for held in watch.current.held_calls] == [first]
    second(y).backward()
    (step,) = steps
    assert step.graphs == [first, second]
    assert step.calls == [Call(0, leaves=(Leaf(0, 4 * 8 * 4),)), Call(1, (Passed(4 * 8 * 4, 0, 0),))]
    assert step.turns == [(F, 0), (F, 1), (B, 1), (B, 0)]
    assert [held.graph for held in watch.current.held_calls] == []


def test_each_step_by_itself(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    alone, weight = Watched(watch, lambda y: y.exp().sum()), torch.nn.Parameter(torch.randn(8))
    for _ in range(3):
        alone(weight).backward()
    assert [(step.calls, step.turns) for step in steps] == [([Call(0)], [(F, 0), (B, 0)])] * 3


def test_calls_of_micro_batches_share_parameters_and_not_what_they_read(
    watch: StepWatch[Watched], steps: list[WatchedStep]
) -> None:
    alone, weight, inputs = Watched(watch, lambda y, w: (y * w).sum()), torch.nn.Parameter(torch.randn(8)), leaf()
    losses = [alone(x, weight) for x in (inputs, leaf(), inputs)]
    for loss in losses:
        loss.backward()
    (step,) = steps
    assert [call.parameters for call in step.calls] == [0, 0, 0]
    assert [call.leaves for call in step.calls] == [(Leaf(number, 4 * 8 * 4),) for number in (0, 1, 0)]


def test_overlapping_micro_batches_make_up_one_step(steps: list[WatchedStep]) -> None:
    """As in pipelines: a backward of an earlier call, between two open ones, ends no step."""
    watch = StepWatch(steps.append)
    alone = Watched(watch, lambda y: y.exp().sum())

    def forward() -> Tensor:
        watch.begin()
        return alone(leaf())

    losses = [forward(), forward()]
    for _ in range(3):
        losses.pop(0).backward()
        losses.append(forward())
    for loss in losses:
        loss.backward()
    (step,) = steps
    order = [(F, 0), (F, 1), (B, 0), (F, 2), (B, 1), (F, 3), (B, 2), (F, 4), (B, 3), (B, 4)]
    assert step.turns == order


def test_calls_that_were_set_aside_too_early_are_waited_for_next_time(steps: list[WatchedStep]) -> None:
    """As many micro-batches go through a second part one by one, and then back through the first part."""
    watch = StepWatch(steps.append)
    first, second = Watched(watch, torch.sin), Watched(watch, lambda y: y.exp().sum())

    def step() -> None:
        made = []
        for _ in range(5):
            watch.begin()
            made.append(first(leaf()))
        for y in made:
            watch.begin()
            second(y.detach().requires_grad_()).backward()
        torch.autograd.backward(made, [torch.ones_like(y) for y in made])
        watch.begin()

    for _ in range(2):
        step()
    assert all(len(one.graphs) == 1 for one in steps[:-1]), "the second part seems to be a step at first"
    assert [call.graph for call in steps[-1].calls] == [0] * 5 + [1] * 5


def test_what_is_let_go_of_ends_without_a_backward(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    first, second = Watched(watch, torch.sin), Watched(watch, torch.exp)
    z = second(first(leaf()))
    del z
    gc.collect()
    (step,) = steps
    assert sorted(step.turns[2:]) == [(DROPPED, 0), (DROPPED, 1)]


def test_a_kept_loss_does_not_keep_its_step_open(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    alone = Watched(watch, lambda y: y.exp().sum())
    loss = alone(leaf())
    loss.backward()
    assert len(steps) == 1
    del loss
    gc.collect()
    assert len(steps) == 1


def test_the_same_graph_twice(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    twin = Watched(watch, torch.sin)
    (twin(leaf()) - twin(leaf())).sum().backward()
    (step,) = steps
    assert step.graphs == [twin]
    assert [call.graph for call in step.calls] == [0, 0]
    assert set(step.turns[2:]) == {(B, 0), (B, 1)}


def test_a_critic_between_and_a_gradient_passed_over_it(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    maker, critic = Watched(watch, torch.sin), Watched(watch, lambda y: y.exp().sum())
    made = maker(leaf())
    critic(made.detach().requires_grad_()).backward()
    critic(made).backward()
    (step,) = steps
    assert step.turns == [(F, 0), (F, 1), (B, 1), (F, 2), (B, 2), (B, 0)]
    assert [call.passed for call in step.calls] == [(), (), (Passed(128, 0, 0),)]


def test_a_view_of_an_output_is_linked_and_other_operators_are_not(
    watch: StepWatch[Watched], steps: list[WatchedStep]
) -> None:
    first, second = Watched(watch, torch.sin), Watched(watch, lambda a, b: (a.sum() + b.sum()).exp())
    y = first(leaf())
    second(y.view(-1)[:8], y.cos()).backward()
    (step,) = steps
    assert step.calls[1].passed == (Passed(32, 0, 0), Passed(128, None, 1, 0))


def test_calls_with_one_value_of_other_operators_are_told(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    first, second = Watched(watch, torch.sin), Watched(watch, torch.exp)
    y, z = leaf().cos(), leaf().cos()
    (first(y) + second(z.view(-1).view_as(z)) + second(y)).sum().backward()
    (step,) = steps
    assert [[passed.value for passed in call.passed] for call in step.calls] == [[0], [1], [0]]


@pytest.mark.filterwarnings("ignore:TwoTensor does not implement")
def test_what_a_subclass_wraps_links_calls(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    first, second = Watched(watch, torch.sin), Watched(watch, lambda y: y.exp().sum())
    second(first(TwoTensor(leaf(), leaf()).detach().requires_grad_())).backward()
    (step,) = steps
    assert step.calls[1].passed == (Passed(2 * 128, 0, 0),)


def test_tensors_whose_memory_is_not_known_are_watched_all_the_same() -> None:
    steps: list[Step[str]] = []
    watch: StepWatch[str] = StepWatch(steps.append)
    compressed = torch.eye(4).to_sparse_csr().requires_grad_() * 2
    made = squared().apply(leaf())
    watch.forward("graph", [compressed, leaf().to_sparse()], [made, compressed])
    made.sum().backward()
    (step,) = steps
    assert [passed.argument for passed in step.calls[0].passed] == [0, 1]


def test_a_graph_that_is_kept_for_another_backward_is_open_until_that_has_run() -> None:
    steps: list[Step[str]] = []
    watch: StepWatch[str] = StepWatch(steps.append)
    made = squared().apply(leaf())
    watch.forward("graph", [], [made])
    loss = made.sum()
    loss.backward(retain_graph=True)
    assert steps == []
    assert [held.graph for held in watch.current.held_calls] == ["graph"]
    loss.backward()
    (step,) = steps
    assert step.turns == [(F, 0), (Turn.KEPT, 0), (B, 0)]


def test_a_kept_call_is_set_aside_once_the_same_call_is_made_again() -> None:
    steps: list[Step[str]] = []
    watch: StepWatch[str] = StepWatch(steps.append)
    x, function = leaf(), squared()

    def forward() -> Tensor:
        watch.begin()
        made: Tensor = function.apply(x)
        watch.forward("graph", [x], [made])
        return made

    kept = forward()
    for _ in range(5):
        forward().sum().backward()
    assert len(steps) == 5
    assert steps[0].turns == [(F, 0), (B, 0)]
    assert [len(step.aside) for step in steps] == [1] * len(steps)
    assert len(watch.current.step.calls) <= 2
    del kept


def test_calls_without_gradients_are_not_noted(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    alone = Watched(watch, torch.sin)
    with torch.no_grad():
        alone(leaf())
    alone(torch.randn(4, 8))
    assert watch.current.step.calls == []
    assert steps == []


def test_backwards_of_a_step_run_on_two_threads_at_once(watch: StepWatch[Watched], steps: list[WatchedStep]) -> None:
    """As autograd runs them where a step has graphs on two devices: a thread for each."""
    both = Watched(watch, lambda y: (y * y).sum()), Watched(watch, lambda y: y.exp().sum())
    rounds, switched = 50, sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(rounds):
            losses = [graph(leaf()) for graph in both]
            together = threading.Barrier(2)

            def run(loss: Tensor, together: threading.Barrier = together) -> None:
                together.wait()
                loss.backward()

            threads = [threading.Thread(target=run, args=(loss,)) for loss in losses]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(switched)
    turns = [(F, 0), (F, 1), (B, 0), (B, 1)]
    assert [sorted(step.turns, key=turns.index) for step in steps] == [turns] * rounds
    assert not watch.here.open
