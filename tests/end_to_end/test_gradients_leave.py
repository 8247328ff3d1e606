"""Parameters with post-accumulate hooks, served within the compiled backward: as in eager, whatever the hooks do."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from end_to_end.compiling import compile_with
from end_to_end.parameter_hooks import halve, stepping

STEPS = 4
Hook = Callable[[Tensor], None]
Step = Callable[[nn.Module, Callable[..., Tensor], int], Tensor]
"""One step of training: the model, what is called in its place, and the number of the step; returns the loss."""


class Blocks(nn.Module):
    """Linear layers with norms and dropout, a shared weight, and a branch."""

    def __init__(self, width: int = 16, depth: int = 3, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.norm = nn.LayerNorm(width)
        self.table = nn.Embedding(11, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        h = self.table(x)
        for layer in self.layers:
            h = h + self.dropout(torch.nn.functional.gelu(layer(self.norm(h))))
        return nn.functional.cross_entropy((h @ self.table.weight.T).flatten(0, 1), x.flatten())


def tokens(number: int = 0) -> Tensor:
    return torch.arange(24).reshape(2, 12).add(number) % 11


def plain_step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
    loss = call(tokens(number))
    loss.backward()
    return loss


def trained(model: nn.Module, call: Callable[..., Tensor], step: Step = plain_step) -> dict[str, Tensor]:
    """The losses, the parameters and the gradients after some steps."""
    torch.manual_seed(3)
    losses = [step(model, call, number).detach() for number in range(STEPS)]
    gradients = {f"gradient of {n}": p.grad for n, p in model.named_parameters() if p.grad is not None}
    return {
        **dict(model.named_parameters()),
        **gradients,
        "losses": torch.stack(losses),
        "state": torch.get_rng_state(),
    }


def assert_same(eager: dict[str, Tensor], planned: dict[str, Tensor]) -> None:
    assert eager.keys() == planned.keys()
    for name, value in eager.items():
        torch.testing.assert_close(
            planned[name], value, rtol=1e-11, atol=1e-11, msg=lambda text, name=name: f"{name}: {text}"
        )


def both(
    model: nn.Module, hooks: Callable[[nn.Module], Any], step: Step = plain_step, **options: Any
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """What training leaves behind in eager, and compiled."""
    model = model.double()
    other = copy.deepcopy(model)
    hooks(model), hooks(other)
    eager = trained(model, model, step)
    return eager, trained(other, compile_with(other, **options), step)


OPTIMIZERS = (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor, torch.optim.Adagrad)


@pytest.mark.parametrize("budget", [1.0, 0.6, "min"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_parameters_are_those_of_eager(served: list[Tensor], budget: Any, optimizer: Any) -> None:
    model = Blocks()
    assert_same(*both(model, lambda one: stepping(one, optimizer), memory_budget=budget))
    assert len(served) == STEPS * len(list(model.parameters()))


def test_parameters_are_those_of_eager_under_inductor(served: list[Tensor]) -> None:
    assert_same(*both(Blocks(depth=2), stepping, memory_budget="min", inner="inductor"))
    assert served


def test_dropout_draws_as_in_eager(served: list[Tensor]) -> None:
    model = nn.Sequential(
        *[nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(4)], nn.Dropout(0.5), nn.Linear(8, 1)
    )

    def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
        loss = call(torch.ones(4, 8, dtype=torch.float64)).sum()
        loss.backward()
        return loss

    assert_same(*both(model, stepping, step, memory_budget=0.6))
    assert served


def keeping(model: nn.Module) -> None:
    """Hooks that change the gradients, and keep them."""
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(halve)


def accumulating_step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
    for micro in range(2):
        loss = call(tokens(number + micro))
        loss.backward()
    if number % 2:
        model.zero_grad()
    return loss


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_gradients_that_hooks_keep_are_added_up(served: list[Tensor], inner: str) -> None:
    assert_same(*both(Blocks(depth=2), keeping, accumulating_step, memory_budget=0.7, inner=inner))
    assert served


def regularised_step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
    loss = call(tokens(number))
    if number % 2:
        loss = loss + 0.01 * sum(p.square().sum() for p in model.parameters())
    loss.backward()
    return loss


def asked_step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
    loss = call(tokens(number))
    if number % 2:
        gradients = torch.autograd.grad(loss, list(model.parameters()))
        for parameter, gradient in zip(model.parameters(), gradients):
            parameter.data.sub_(gradient, alpha=0.01)
    else:
        loss.backward(inputs=[next(model.parameters())])
    return loss


def twice_step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
    loss = call(tokens(number)) + call(tokens(number + 1))
    loss.backward()
    return loss


def retaining_step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
    for parameter in model.parameters():
        parameter.retain_grad()
    loss = call(tokens(number))
    loss.backward()
    return loss


SHARED: dict[str, Step] = {
    "a penalty in eager": regularised_step,
    "gradients that are asked for": asked_step,
    "two calls in one backward": twice_step,
    "retain_grad of a leaf": retaining_step,
}


@pytest.mark.parametrize("kind", SHARED)
def test_hooks_run_once_with_the_whole_gradient(served: list[Tensor], kind: str) -> None:
    assert_same(*both(Blocks(), stepping, SHARED[kind], memory_budget=0.6))


def test_part_of_the_parameters_is_used_elsewhere(served: list[Tensor]) -> None:
    def step(model: Any, call: Callable[..., Tensor], number: int) -> Tensor:
        loss = call(tokens(number)) + model.norm.weight.square().sum()
        loss.backward()
        return loss

    model = Blocks()
    assert_same(*both(model, stepping, step, memory_budget=0.6))
    # All but the one.
    assert len(served) == STEPS * (len(list(model.parameters())) - 1)


def test_hooks_on_the_gradient_itself_run_first(served: list[Tensor]) -> None:
    def hooks(model: nn.Module) -> None:
        stepping(model)
        for parameter in list(model.parameters())[::2]:
            parameter.register_hook(lambda gradient: gradient * 0.5)

    assert_same(*both(Blocks(), hooks, memory_budget=0.6))
    assert served


def test_a_hook_on_the_gradient_that_comes_later(served: list[Tensor]) -> None:
    def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
        if number == 2:
            next(model.parameters()).register_hook(lambda gradient: gradient * 0.5)
        return plain_step(model, call, number)

    assert_same(*both(Blocks(), stepping, step, memory_budget=0.6))
    assert served


def test_hooks_that_go(served: list[Tensor]) -> None:
    def run(model: nn.Module, call: Callable[..., Tensor]) -> dict[str, Tensor]:
        handles = [p.register_post_accumulate_grad_hook(halve) for p in model.parameters()]

        def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
            if number == 2:
                for handle in handles:
                    handle.remove()
            return plain_step(model, call, number)

        return trained(model, call, step)

    model = Blocks().double()
    other = copy.deepcopy(model)
    assert_same(run(model, model), run(other, compile_with(other, memory_budget=0.6)))
    assert served


def test_an_error_of_a_hook_ends_the_backward(served: list[Tensor]) -> None:
    def fail(parameter: Tensor) -> None:
        raise ValueError("as it should")

    model = Blocks().double()
    model.norm.weight.register_post_accumulate_grad_hook(fail)
    call = compile_with(model, memory_budget=0.6)
    with pytest.raises(ValueError, match="as it should"):
        call(tokens()).backward()


def test_a_hook_that_returns_something_is_refused(served: list[Tensor]) -> None:
    model = Blocks().double()
    model.norm.weight.register_post_accumulate_grad_hook(lambda p: 1)
    call = compile_with(model, memory_budget=0.6)
    with pytest.raises(RuntimeError, match="should return None"):
        call(tokens()).backward()


@pytest.mark.parametrize("inner", ["eager", "inductor"])
def test_gradients_are_not_written_over(served: list[Tensor], inner: str) -> None:
    """The program keeps each gradient as it came; later operators of the backward leave that memory alone."""

    def run(model: nn.Module, call: Callable[..., Tensor]) -> dict[str, Tensor]:
        kept: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():

            def hook(p: Tensor, name: str = name) -> None:
                kept[name] = p.grad
                p.grad = None

            parameter.register_post_accumulate_grad_hook(hook)
        call(tokens()).backward()
        return kept

    model = Blocks().double()
    other = copy.deepcopy(model)
    assert_same(run(model, model), run(other, compile_with(other, memory_budget="min", inner=inner)))
    assert served


def test_weights_shared_by_two_graphs(served: list[Tensor]) -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shared, self.own = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x: Tensor) -> Tensor:
            h = self.own(self.shared(x).relu())
            torch._dynamo.graph_break()
            return self.shared(h).square().mean()

    def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
        loss = call(torch.full((4, 8), number + 0.5, dtype=torch.float64))
        loss.backward()
        return loss

    assert_same(*both(Broken(), stepping, step, memory_budget=0.6))
    # The weight and the bias of the layer that one graph has alone, until it is known that the graphs share others.
    assert len(served) == 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.gelu(self.layer(x))


def test_one_graph_for_equal_blocks(served: list[Tensor]) -> None:
    def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
        loss = model(torch.full((4, 8), number + 0.5, dtype=torch.float64)).square().mean()
        loss.backward()
        return loss

    model = nn.Sequential(*[Block() for _ in range(3)]).double()
    other = copy.deepcopy(model)
    stepping(model), stepping(other)
    eager = trained(model, model, step)
    torch._dynamo.reset()
    for block in other:
        block.compile(backend="remat", options={"memory_budget": "1MB", "inner": "eager"})
    assert_same(eager, trained(other, other, step))
    assert len(served) == STEPS * 6


def test_hooks_run_once(served: list[Tensor]) -> None:
    """Autograd would call them once more, with no gradient."""
    calls: list[bool] = []

    def hook(parameter: Tensor) -> None:
        calls.append(parameter.grad is not None)
        parameter.grad = None

    model = Blocks().double()
    handles = [p.register_post_accumulate_grad_hook(hook) for p in model.parameters()]
    call = compile_with(model, memory_budget=0.6)
    for _ in range(2):
        call(tokens()).backward()
        assert calls == [True] * len(handles)
        calls.clear()
    for handle in handles:
        handle.remove()
    call(tokens()).backward()
    assert not calls
    assert served


def test_sizes_that_change(served: list[Tensor]) -> None:
    def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
        loss = call(torch.arange(6 * (number + 2)).reshape(2, -1) % 11)
        loss.backward()
        return loss

    assert_same(*both(Blocks(), stepping, step, memory_budget="1MB", dynamic=True))
    assert served


def test_biases_may_change_between_forward_and_backward(served: list[Tensor]) -> None:
    """Eager saves no bias, so that hooks of one backward may update it before another one."""

    def hooks(model: nn.Module) -> None:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(name.endswith("bias"))
        stepping(model)

    def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
        rows = torch.linspace(-1, 1, 32, dtype=torch.float64).reshape(4, 8)
        first, second = call(rows).square().mean(), call(rows + number).square().mean()
        first.backward()
        second.backward()
        return second

    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 8))
    assert_same(*both(model, hooks, step, memory_budget=1.0))
    assert served


@pytest.mark.parametrize("before", [True, False])
def test_autograd_casts_gradients_of_another_type(served: list[Tensor], before: bool) -> None:
    """A parameter asks for them before it is compiled, or when its gradients leave already."""

    def cast(model: nn.Module) -> None:
        model.norm.weight.grad_dtype = torch.float32  # type: ignore[union-attr]

    def hooks(model: nn.Module) -> None:
        keeping(model)
        if before:
            cast(model)

    def step(model: nn.Module, call: Callable[..., Tensor], number: int) -> Tensor:
        model.zero_grad()
        if number == 2 and not before:
            cast(model)
        return plain_step(model, call, number)

    eager, planned = both(Blocks(depth=1), hooks, step, memory_budget=1.0)
    assert planned["gradient of norm.weight"].dtype == torch.float32
    assert_same(eager, planned)
    assert served
