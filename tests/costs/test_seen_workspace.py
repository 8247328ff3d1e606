"""What operators of other libraries take inside is learnt from the program's own runs of them, and no other."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from instruments.measure import allocator_events, live_bytes
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.seen_workspace import LOOKS, watched
from remat_compiler.costs.workspace import WorkspaceTable

RUNS: list[str] = []
ROWS, WIDTH = 256, 32


def _takes_inside(name: str, times: int) -> Any:
    """An operator that takes `times` its argument inside, forward and backward."""

    @torch.library.custom_op(f"seen_workspace::{name}", mutates_args=())
    def operator(x: Tensor, index: Tensor) -> Tensor:
        RUNS.append(name)
        return torch.cat([x] * times)[: len(x)][index].clone()

    operator.register_fake(lambda x, index: torch.empty_like(x))
    return operator


def _trainable(name: str, times: int) -> Any:
    forward, backward = _takes_inside(name, times), _takes_inside(f"{name}_backward", times + 1)
    forward.register_autograd(
        lambda ctx, gradient: (backward(gradient, *ctx.saved_tensors), None),
        setup_context=lambda ctx, inputs, output: ctx.save_for_backward(inputs[1]),
    )
    return forward


OPERATORS = {
    name: _trainable(name, 3) for name in ("eager", "inductor", "changing", "alone", "bytes_eager", "bytes_inductor")
}
"""One for each test, since what is learnt of it is known from then on."""


class Model(nn.Module):
    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.operator = operator
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        index = torch.arange(x.shape[0])
        for layer in self.layers:
            x = x + self.operator(torch.tanh(layer(x)).sin(), index)
        return x.square().mean()


def trained(module: nn.Module, rows: int = ROWS, steps: int = 2, **options: Any) -> int:
    """Peak of a step after some others, compiled anew."""
    torch._dynamo.reset()
    options = {"memory_budget": 1.0, "cost_model": "nominal", "max_slowdown": None, **options}
    compiled = torch.compile(module, backend="remat", options=options, dynamic=False)

    x = torch.ones(rows, WIDTH)

    def step() -> None:
        module.zero_grad(set_to_none=True)
        compiled(x).backward()

    for _ in range(steps):
        step()
    module.zero_grad(set_to_none=True)
    return max(live_bytes(allocator_events(step)))


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.usefixtures("compiles_anew")
def test_what_the_first_steps_took_counts_in_what_is_compiled_afterwards(inner: str) -> None:
    module = Model(OPERATORS[inner])
    RUNS.clear()
    measured = trained(module, inner=inner)
    # Each of three steps runs it three times, forward and backward.
    assert RUNS.count(inner) == RUNS.count(f"{inner}_backward") == 3 * 3
    before = remat_compiler.reports()[-1].peak_bytes
    assert before < measured
    again = trained(module, inner=inner)
    report = remat_compiler.reports()[-1]
    assert report.checked_peak_bytes == again == measured
    assert RUNS.count(inner) == 2 * 3 * 3


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.usefixtures("compiles_anew")
def test_a_step_that_exceeds_its_bytes_by_what_was_not_known_is_told(
    inner: str, caplog: pytest.LogCaptureFixture
) -> None:
    name = f"bytes_{inner}"
    module = Model(OPERATORS[name])
    trained(module, inner=inner, memory_budget="240KiB")
    assert caplog.text.count(f"how much seen_workspace.{name}") == 1
    assert caplog.text.count(f"the memory that seen_workspace.{name}.default takes inside") == 1
    caplog.clear()
    with pytest.raises(remat_compiler.InfeasibleBudget, match=name):
        trained(module, inner=inner, memory_budget="240KiB")


@pytest.mark.usefixtures("compiles_anew")
def test_other_sizes_are_learnt_as_they_run() -> None:
    module = Model(OPERATORS["changing"])
    assert trained(module, inner="eager") > remat_compiler.reports()[-1].peak_bytes
    for rows, exact in ((2 * ROWS, False), (2 * ROWS, True), (ROWS, True)):
        measured = trained(module, rows, inner="eager")
        assert (remat_compiler.reports()[-1].peak_bytes == measured) is exact


def test_figures_are_kept_for_the_next_process_and_the_largest_counts(tmp_path: Path) -> None:
    func, sizes = torch.ops.seen_workspace.alone.default, []
    table, x, index = WorkspaceTable(tmp_path), torch.ones(8, 4), torch.arange(8)
    assert table.probe(func, (x, index), {}) == 0
    table.learnt = sizes.append  # type: ignore[method-assign]
    run = watched(lambda arguments: [func(*arguments)], table)
    for _ in range(2 * LOOKS):
        run([x, index])
    # Told when more is seen than before, that is once.
    assert sizes == [str(func)]
    # The concatenation; the rows gathered from it are as many as the result keeps.
    assert WorkspaceTable(tmp_path).probe(func, (x, index), {}) == 3 * x.nbytes
    call = OpCall.any(func, (x, index), {})
    assert call is not None
    table.saw(call, 5)
    assert WorkspaceTable(tmp_path).probe(func, (x, index), {}) == 3 * x.nbytes


def test_what_is_known_is_not_watched(caplog: pytest.LogCaptureFixture) -> None:
    def run(arguments: list[Any]) -> Any:
        return arguments

    table = WorkspaceTable()
    assert watched(run, table) is run
    with caplog.at_level(logging.WARNING):
        table.probe(torch.ops.aten.mm.default, (torch.ones(4, 4), torch.ones(4, 4)), {})
    assert watched(run, table) is run
    assert not caplog.records
