"""The zoo builds, trains and repeats; sizes of the models that published figures were measured on stand."""

from __future__ import annotations

import pytest
import torch

from zoo import ZooModel, build, names

GRADIENT_BYTES = {
    "gpt2": 22_052_864,
    "gpt2eagerattn": 22_052_864,
    "bert": 21_803_840,
    "t5": 24_086_528,
    "vgg19": 85_549_712,
    "resnet50": 23_980_560,
    "lstm": 579_984,
    "mlp200": 13_261_200,
}
"""Bytes of the gradients of the full-size models, which decide the floor of their peaks."""


def loss_of(model: ZooModel) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        loss = model.module(**model.inputs)
    assert isinstance(loss, torch.Tensor)
    return loss


@pytest.mark.parametrize("name", names())
def test_a_tiny_model_gives_a_loss_and_every_gradient(name: str) -> None:
    model = build(name, tiny=True)
    loss = loss_of(model)
    assert loss.shape == ()
    assert torch.isfinite(loss)
    torch.autograd.backward(loss)
    without = [key for key, parameter in model.module.named_parameters() if parameter.grad is None]
    assert not without
    assert model.module.training
    assert all(p.dtype == torch.float32 for p in model.module.parameters())
    assert not any(value.requires_grad for value in model.inputs.values())


@pytest.mark.parametrize("name", names())
def test_the_same_seed_gives_the_same_model_and_leaves_the_random_state_alone(name: str) -> None:
    state = torch.random.get_rng_state()
    first, second, other = build(name, tiny=True), build(name, tiny=True), build(name, tiny=True, seed=1)
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(loss_of(first), loss_of(second))
    assert not torch.equal(loss_of(first), loss_of(other))


@pytest.mark.parametrize("name", names())
def test_dropout_reaches_the_model(name: str) -> None:
    assert not torch.equal(loss_of(build(name, tiny=True)), loss_of(build(name, tiny=True, dropout=0.5)))


@pytest.mark.parametrize("name", GRADIENT_BYTES)
def test_full_sizes_stand(name: str) -> None:
    assert build(name).gradient_bytes == GRADIENT_BYTES[name]


def test_an_unknown_name_says_what_is_near() -> None:
    with pytest.raises(KeyError, match="resnet50"):
        build("resnet5")


def test_an_impossible_dropout_is_refused() -> None:
    with pytest.raises(ValueError, match="below 1"):
        build("mlp200", tiny=True, dropout=1.0)
