"""Settings of Inductor made for all compilations do not reach planned graphs, if they would break the promise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._inductor import config
from torch._inductor.fx_passes import pad_mm
from torch._subclasses.fake_tensor import FakeTensorMode

from remat_compiler.torch_compat import inductor_settings


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    inductor_settings._tell_off.cache_clear()
    # It asks for a driver.
    monkeypatch.setattr(pad_mm, "has_triton", lambda: True)


def _gradient(**options: Any) -> Tensor:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 32)), torch.randn(64, 32)
    call = torch.compile(model, backend="remat", options=options) if options else model
    call(x).square().mean().backward()
    gradient = next(model.parameters()).grad
    assert gradient is not None
    return gradient


def test_a_step_trains_though_a_wrapper_of_c_is_asked_for_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    with config.patch({"cpp_wrapper": True}):
        found = _gradient(memory_budget=0.7, on_infeasible="min", cost_model="nominal")
        assert config.cpp_wrapper
    torch.testing.assert_close(found, _gradient())
    assert caplog.text.count("cpp_wrapper, a setting of Inductor, is on for all compilations") == 1


class _Broken(nn.Module):
    """Two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.one(x))
        torch._dynamo.graph_break()
        return torch.tanh(self.two(x)).sin()


class _Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 4, 2)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.two(torch.relu(self.norm(self.one(x.view(-1, 2, 4, 4)))))
        return y


class _Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.made, self.table = nn.Linear(32, 96), nn.Embedding(64, 32)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.table(torch.arange(len(x)))
        q, k, v = self.made(x).view(1, -1, 2, 48).transpose(1, 2).chunk(3, -1)
        return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("kind", [_Broken, _Images, _Attention])
def test_models_train_though_a_wrapper_of_c_is_asked_for_everywhere(kind: type[nn.Module], dynamic: bool) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = kind(), torch.randn(64, 32)
    options: dict[str, Any] = {"memory_budget": "min", "cost_model": "nominal"}
    compiled, found = torch.compile(model, backend="remat", options=options, dynamic=dynamic), []
    for call in (model, compiled):
        model.zero_grad()
        with config.patch({"cpp_wrapper": call is compiled}):
            call(x).square().mean().backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("name", ["cpp_wrapper", "triton.cudagraphs"])
def test_a_setting_of_the_process_is_off_within_a_compilation(name: str) -> None:
    with config.patch({name: True}):
        with inductor_settings.with_settings(()):
            assert not config.get_config_copy()[name]
        assert config.get_config_copy()[name]
    with config.patch({name: False}), inductor_settings.with_settings((("max_autotune", True),)):
        assert config.max_autotune


@pytest.mark.parametrize(
    ("everywhere", "asked", "pads"),
    [
        ({}, (), False),
        ({"shape_padding": True}, (), False),
        ({"force_shape_pad": True}, (), True),
        ({}, (("force_shape_pad", True),), True),
        ({}, (("shape-padding", True),), True),
    ],
)
def test_products_are_padded_only_if_that_is_asked_for(
    everywhere: dict[str, Any], asked: tuple[tuple[str, Any], ...], pads: bool
) -> None:
    """Of sizes that a GPU would time: otherwise planned graphs would hang on a clock."""
    with FakeTensorMode():
        left, right = torch.empty(512, 256, device="cuda"), torch.empty(256, 1023, device="cuda")
        with config.patch({"shape_padding": True, **everywhere}):
            assert pad_mm.can_pad(left, right, torch.ops.aten.mm)
            with inductor_settings.with_settings(asked):
                assert pad_mm.can_pad(left, right, torch.ops.aten.mm) == pads


def test_the_interpreter_does_not_ask_for_settings(caplog: pytest.LogCaptureFixture) -> None:
    with config.patch({"cpp_wrapper": True}):
        _gradient(memory_budget="1GiB", inner="eager", cost_model="nominal")
    assert "cpp_wrapper" not in caplog.text
