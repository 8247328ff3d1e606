"""A process that trains alone, or stands for one of several ranks, repeats gathers without a vote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as collectives
from torch import Tensor, nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import remat_compiler
from instruments.measure import measure_step
from remat_compiler.costs.peers import NOMINAL_PEERS
from remat_compiler.costs.rates import NOMINAL
from remat_compiler.distributed.agreement import Alone, agreeing_by
from remat_compiler.distributed.gathers import NoOthers
from remat_compiler.observer import Observer, observed_by

WIDTH, RANKS = 64, 4
BUDGET = 80_000
"""Bytes; what is gathered takes 98,304, and no plan is within them that keeps all of it."""


class Layer(nn.Module):
    """A weight of which the rank holds a part, gathered where it is read."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Parameter(torch.randn(WIDTH // RANKS, WIDTH) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ collectives.all_gather_tensor_autograd(self.part, 0, dist.group.WORLD))


class Net(nn.Sequential):
    """Six layers, and the loss."""

    def __init__(self) -> None:
        super().__init__(*(Layer() for _ in range(6)))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).sum()


@pytest.fixture(autouse=True)
def one_of_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


class Gathered(Observer):
    """How often the plan that was made last runs a gather."""

    times = 0
    time_ns: frozenset[int] = frozenset()

    def partition_made(self, partition: Any, request: Any, **convention: Any) -> None:
        ops = partition.problem.graph.ops
        self.times = sum("all_gather" in ops[step].target for step in partition.graphs.plan.steps)
        self.time_ns = frozenset(partition.problem.costs.time_ns[op.id] for op in ops if "all_gather" in op.target)


def step_of(**options: Any) -> Any:
    """A compiled step of the net."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Net()
    given = {"memory_budget": BUDGET, "inner": "eager", "max_slowdown": None, "cost_model": "nominal", **options}
    call = torch.compile(model, backend="remat", options=given, dynamic=False)
    x = torch.randn(8, WIDTH)

    def step() -> None:
        model.zero_grad()
        call(x).backward()

    return step


def test_the_peak_is_that_of_a_few_gathered_weights() -> None:
    found = Gathered()
    with agreeing_by(Alone()), observed_by(found):
        step = step_of()
        step()
        (measured, report) = measure_step(step, warmup=1).peak_bytes, remat_compiler.reports()[-1]
    assert found.times > 6
    assert measured == report.peak_bytes <= BUDGET


def test_a_gather_takes_the_time_of_the_link() -> None:
    found = Gathered()
    with agreeing_by(Alone()), observed_by(found):
        step_of()()
    part_bytes, whole_bytes = WIDTH // RANKS * WIDTH * 4, WIDTH * WIDTH * 4
    received_s = (whole_bytes - part_bytes) / NOMINAL_PEERS.bytes_per_s
    in_memory_s = (whole_bytes + part_bytes) / NOMINAL.bytes_per_s
    fixed_ns = NOMINAL.overhead_ns + NOMINAL_PEERS.latency_ns
    assert found.time_ns == {round((received_s + in_memory_s) * 1e9) + fixed_ns}


def test_the_same_budget_is_refused_where_gathers_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NoOthers, "vote", lambda *_: False)
    with agreeing_by(Alone()), pytest.raises(remat_compiler.InfeasibleBudget):
        step_of()()


def test_the_outcome_of_an_earlier_compilation_repeats_them_again() -> None:
    found = Gathered()
    with agreeing_by(Alone()), observed_by(found):
        step_of()()
        first = remat_compiler.reports()[-1]
        found.times = 0
        step_of()()
    again = remat_compiler.reports()[-1]
    assert found.times > 6
    assert (again.peak_bytes, again.added_ns) == (first.peak_bytes, first.added_ns)
