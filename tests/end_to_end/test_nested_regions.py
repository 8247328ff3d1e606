"""Regions that the program marks to be compiled once: planned like the rest of a step, within its budget."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import remat_compiler
from end_to_end.compiling import compile_with, differences_from_eager
from instruments.measure import allocator_events, live_bytes
from remat_compiler.capture.source import module_path
from remat_compiler.torch_compat import inline_regions

ROWS, WIDTH, BLOCKS = 128, 32, 4
marked = torch.compiler.nested_compile_region


class Block(nn.Module):
    """A layer whose whole forward is a region, with random numbers in it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def inside(self, x: Tensor) -> Tensor:
        return x + functional.dropout(self.down(functional.gelu(self.up(self.norm(x)))), 0.2)

    @marked
    def forward(self, x: Tensor) -> Tensor:
        return self.inside(x)


class Nested(Block):
    """A region that calls another one, twice."""

    @marked
    def widened(self, x: Tensor) -> Tensor:
        return torch.tanh(self.norm(x)).sin()

    @marked
    def forward(self, x: Tensor) -> Tensor:
        return self.inside(self.widened(self.widened(x)))


class Checkpointed(Block):
    """A region within a part that the program computes again by itself."""

    @marked
    def region(self, x: Tensor) -> Tensor:
        return self.inside(x)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = checkpoint(self.region, x, use_reentrant=False)
        return result


class Model(nn.Module):
    """Blocks of which each is called by its own parameters, and a loss."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(BLOCKS))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


@pytest.mark.parametrize("block", [Block, Nested, Checkpointed])
@pytest.mark.parametrize("budget", [1.0, 0.6, "min"])
@pytest.mark.usefixtures("compiles_anew")
def test_gradients_and_random_numbers_are_those_of_eager(block: type[Block], budget: float | str) -> None:
    assert not differences_from_eager(Model(block), [torch.randn(ROWS, WIDTH)], memory_budget=budget)


@pytest.mark.usefixtures("compiles_anew")
def test_regions_are_planned_at_sizes_that_change() -> None:
    model, budget = Model(Block), 2**20
    compiled = compile_with(model, dynamic=True, memory_budget=budget, cost_model="nominal")
    for rows in (64, 96, 80):  # with `dynamic=True`, Dynamo takes numbers of modules, as that of a norm, for inputs
        x = torch.randn(rows, WIDTH)

        def step(x: Tensor = x) -> None:
            compiled(x).backward()

        step()
        model.zero_grad(set_to_none=True)
        assert max(live_bytes(allocator_events(step))) <= budget
        model.zero_grad(set_to_none=True)
    assert len(remat_compiler.reports()) == 1


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("block", [Block, Nested])
@pytest.mark.usefixtures("compiles_anew")
def test_a_region_is_computed_again_for_a_budget_and_the_peak_is_the_predicted_one(
    block: type[Block], inner: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = Model(block), torch.randn(ROWS, WIDTH)
    compiled = compile_with(model, inner=inner, memory_budget="min", cost_model="nominal")

    def step() -> None:
        compiled(x).backward()

    for _ in range(2):
        model.zero_grad(set_to_none=True)
        step()
    model.zero_grad(set_to_none=True)
    (report,) = remat_compiler.reports()
    assert max(live_bytes(allocator_events(step))) == report.peak_bytes
    assert report.added_ns
    assert "is not known" not in caplog.text
    # What the layers keep is far less than what one region holds for its backward.
    assert report.saved_bytes < BLOCKS * (4 + 1) * ROWS * WIDTH * 4


def test_calls_of_one_region_are_of_the_modules_that_call_it() -> None:
    found: list[str] = []

    def backend(gm: torch.fx.GraphModule, _: Any) -> Any:
        inline_regions(gm)
        assert not gm.graph.find_nodes(op="call_function", target=torch.ops.higher_order.invoke_subgraph)
        for target in (functional.layer_norm, functional.gelu):
            found.extend(map(module_path, gm.graph.find_nodes(op="call_function", target=target)))
        return gm

    torch._dynamo.reset()
    torch.compile(Model(Block), backend=backend)(torch.randn(ROWS, WIDTH)).backward()
    assert found == [f"blocks.{i}{inside}" for inside in (".norm", "") for i in range(BLOCKS)]
