"""`step_in_backward`: an optimizer's updates within the backward, its state and its schedule as ever."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler

X = torch.linspace(-1, 1, 24).reshape(3, 8)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))


def in_groups(parameters: list[Tensor]) -> torch.optim.Optimizer:
    """Weights decay, biases do not."""
    weights, biases = [p for p in parameters if p.ndim > 1], [p for p in parameters if p.ndim == 1]
    return torch.optim.AdamW(
        [{"params": weights, "weight_decay": 0.1}, {"params": biases, "weight_decay": 0.0}], lr=0.05
    )


OPTIMIZERS: dict[str, Callable[[list[Tensor]], torch.optim.Optimizer]] = {
    "sgd with momentum": lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9),
    "adamw": lambda ps: torch.optim.AdamW(ps, lr=0.05),
    "adamw, foreach": lambda ps: torch.optim.AdamW(ps, lr=0.05, foreach=True),
    "groups": in_groups,
    "adafactor": lambda ps: torch.optim.Adafactor(ps, lr=0.05),
}


def assert_same(one: Any, other: Any) -> None:
    torch.testing.assert_close(other, one, rtol=0, atol=0)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_are_those_of_the_optimizer(kind: str) -> None:
    plain, model = network(), network()
    usual = OPTIMIZERS[kind](list(plain.parameters()))
    inside = remat_compiler.step_in_backward(model, OPTIMIZERS[kind])
    schedules = [torch.optim.lr_scheduler.CosineAnnealingLR(one, 4) for one in (usual, inside)]
    for _ in range(4):
        for net, optimizer, schedule in zip((plain, model), (usual, inside), schedules):
            net(X).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
        assert all(p.grad is None for p in model.parameters())
    for one, two in zip(plain.parameters(), model.parameters()):
        assert_same(one, two)
    assert_same(usual.state_dict(), inside.state_dict())


def test_state_is_loaded() -> None:
    model = network()
    optimizer = remat_compiler.step_in_backward(model, OPTIMIZERS["adamw"])
    model(X).square().mean().backward()
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    model(X).square().mean().backward()
    other = network()
    again = remat_compiler.step_in_backward(other, lambda ps: torch.optim.AdamW(ps, lr=1.0))
    other.load_state_dict(weights)
    again.load_state_dict(state)
    other(X).square().mean().backward()
    for one, two in zip(model.parameters(), other.parameters()):
        assert_same(one, two)


def test_frozen_parameters_stay_as_they_are() -> None:
    model = network()
    model[0].requires_grad_(False)
    before = model[0].weight.clone()
    optimizer = remat_compiler.step_in_backward(model, OPTIMIZERS["adamw"])
    model(X).square().mean().backward()
    assert_same(before, model[0].weight)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == 2


def test_clipping_by_the_norm_is_refused() -> None:
    model, other = network(), network()
    remat_compiler.step_in_backward(model, OPTIMIZERS["adamw"])
    for net in (model, other):
        net(X).square().mean().backward()
    with pytest.raises(ValueError, match="cannot be clipped by their norm"):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    assert torch.nn.utils.clip_grad_norm_(other.parameters(), 1e-3) > 1e-3
    # Of no gradients; nothing is clipped.
    assert torch.nn.utils.clip_grad_norm_(model.parameters(), float("inf")) == 0


def test_a_gradient_scaler_refuses_to_step() -> None:
    model = network()
    optimizer = remat_compiler.step_in_backward(model, OPTIMIZERS["adamw"])
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(model(X).square().mean()).backward()
    with pytest.raises(AssertionError, match="No inf checks"):
        scaler.step(optimizer)


class Counting(torch.optim.SGD):
    """Keeps the number of its steps with the group."""

    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["k"] = self.param_groups[0].get("k", 0) + 1
        super().step(closure)


def test_what_cannot_be_served_is_refused() -> None:
    model = network()
    with pytest.raises(ValueError, match="no parameter"):
        remat_compiler.step_in_backward(nn.Identity(), OPTIMIZERS["adamw"])
    with pytest.raises(ValueError, match="LBFGS"):
        remat_compiler.step_in_backward(model, torch.optim.LBFGS)
    with pytest.raises(ValueError, match="1 of 4 parameters"):
        remat_compiler.step_in_backward(model, lambda ps: torch.optim.SGD(ps[:1], lr=0.1))
    remat_compiler.step_in_backward(model, lambda ps: Counting([{"params": ps, "k": 0}], lr=0.1))
    with pytest.raises(ValueError, match="Counting keeps k for a whole group"):
        model(X).square().mean().backward()
