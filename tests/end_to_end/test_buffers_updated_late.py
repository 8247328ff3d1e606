"""Buffers that a program updates between the forward and the backward of a planned graph: what PyTorch trains, trains.

A counter or a queue behind a graph break, a bias that a hook moves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler


@pytest.fixture(autouse=True)
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))


class Block(nn.Module):
    """Gates by a bias that is a buffer, and scales by another one of two parts."""

    bias: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 64)
        self.register_buffer("bias", torch.zeros(64))
        self.register_buffer("scale", torch.ones(2, 64))

    def forward(self, x: Tensor) -> Tensor:
        gate, h = torch.sigmoid(self.first(x) + self.bias), x
        for _ in range(4):
            h = torch.tanh(h * gate + self.bias + self.scale[1].exp())
        result: Tensor = self.last(h)
        return x + result


def behind_a_break(model: nn.Sequential, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    torch._dynamo.graph_break()
    with torch.no_grad():
        model[0].bias.add_(y.mean(0))
        model[1].scale.mul_(0.9)
    return y


def counted_in_another_graph(model: nn.Sequential, x: Tensor) -> Tensor:
    y: Tensor = model[0](x)
    torch._dynamo.graph_break()
    model[0].scale.add_(1e-3)
    z: Tensor = model[1](y)
    model[0].bias.add_(1e-3)
    return z


def filled_by_slices(model: nn.Sequential, x: Tensor) -> Tensor:
    y: Tensor = model(x)
    torch._dynamo.graph_break()
    with torch.no_grad():
        model[0].scale[1, :8] = y.detach()[0, :8]
        model[1].bias.copy_(y.detach()[1])
    return y


PROGRAMS = (behind_a_break, counted_in_another_graph, filled_by_slices)
Compile = Callable[[Any], Any]


def _moved(block: Any, *_: object) -> None:
    with torch.no_grad():
        block.bias.add_(0.01)


def hooked_in_place(model: nn.Sequential, compile_: Compile) -> Callable[[Tensor], Tensor]:
    """Blocks compiled one by one, with a hook of the module: it is traced with the module."""
    for block in model:
        block._compiled_call_impl = compile_(block._call_impl)  # type: ignore[assignment]  # as `Module.compile` does
        block.register_forward_hook(_moved)
    return model


def hooked_around(model: nn.Sequential, compile_: Compile) -> Callable[[Tensor], Tensor]:
    """A hook that Dynamo leaves to eager, once each graph has run."""
    calls = [compile_(block) for block in model]
    for block, call in zip(model, calls):
        call.register_forward_hook(torch.compiler.disable(partial(_moved, block)))
    return lambda x: calls[1](calls[0](x))


def called_twice(model: nn.Sequential, compile_: Compile) -> Callable[[Tensor], Tensor]:
    """One graph that counts its calls, two of which wait for one backward."""

    def counted(x: Tensor) -> Tensor:
        y: Tensor = model(x)
        model[0].bias.add_(1e-3)
        return y

    call = compile_(counted)
    return lambda x: call(x) + call(x * 2)


def two_readers(model: nn.Sequential, compile_: Compile) -> Callable[[Tensor], Tensor]:
    """Two graphs read one buffer, which is moved by eager code after each."""
    model[1].bias = model[0].bias
    calls = [compile_(block) for block in model]

    def run(x: Tensor) -> Tensor:
        for block, call in zip(model, calls):
            x = call(x)
            _moved(block)
        return x

    return run


PARTS = (hooked_in_place, hooked_around, called_twice, two_readers)


def _trained(program: Callable[..., Any], backend: str, **options: Any) -> list[Tensor]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = nn.Sequential(Block(), Block()), torch.randn(256, 64)
    compile_ = partial(torch.compile, backend=backend, options=options or None)
    call = program(model, compile_) if program in PARTS else partial(compile_(program), model)
    found = []
    for _ in range(3):
        model.zero_grad()
        loss = call(x).square().mean()
        loss.backward()
        found += [loss.detach(), *(p.grad.clone() for p in model.parameters() if p.grad is not None)]
    return [*found, *(value.clone() for value in model.buffers())]


@pytest.mark.parametrize("budget", [0.7, "min"])
@pytest.mark.parametrize("program", [*PROGRAMS, *PARTS])
def test_what_pytorch_trains_is_trained(program: Callable[..., Any], budget: float | str) -> None:
    options = {"memory_budget": budget, "inner": "eager", "cost_model": "nominal", "on_infeasible": "min"}
    torch.testing.assert_close(_trained(program, "remat", **options), _trained(program, "aot_eager"))


def test_inductor_reads_the_copies_too() -> None:
    found = _trained(behind_a_break, "remat", memory_budget="min", cost_model="nominal")
    torch.testing.assert_close(found, _trained(behind_a_break, "aot_eager"), rtol=1e-3, atol=1e-5)


def test_a_step_that_fits_copies_nothing() -> None:
    remat_compiler.clear_reports()
    _trained(behind_a_break, "remat", memory_budget="1GiB", inner="eager", cost_model="nominal")
    assert all(report.peak_bytes == report.peak_before_bytes for report in remat_compiler.reports())
