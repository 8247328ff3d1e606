"""What a plan and compiled code are kept under: each thing that decides them is in the key, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields, replace
from typing import Any

import pytest
import torch
from torch import fx, nn

from other_values import other
from remat_compiler import torch_compat
from remat_compiler.compilation import graph_key
from remat_compiler.compilation.graph_key import PlanKey, devices_of, parameter_shapes, plan_key
from remat_compiler.costs import rates
from remat_compiler.costs.peers import Peers
from remat_compiler.costs.rates import NOMINAL
from remat_compiler.costs.table import cost_identity
from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.options import RematOptions
from remat_compiler.partition import partitioner
from remat_compiler.partition.partitioner import RematPartitioner
from remat_compiler.partition.request import PartitionRequest

CPU, META = torch.device("cpu"), torch.device("meta")
REQUEST = PartitionRequest(budget_bytes=7)


class Doubled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


class Tripled(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 3


def key(
    *,
    gm: fx.GraphModule | None = None,
    inputs: tuple[Any, ...] = (torch.zeros(4, 4),),
    options: RematOptions | None = None,
    budget_bytes: int | None = 7,
    costs: str = "rates",
) -> PlanKey:
    return plan_key(gm or fx.symbolic_trace(Doubled()), inputs, options or RematOptions(), budget_bytes, costs)


def test_how_a_budget_is_written_is_not_in_the_key() -> None:
    one, other = (RematOptions(memory_budget=MemoryBudget.parse(text)) for text in ("1KiB", "1024"))
    assert key(options=one) == key(options=other)


@pytest.mark.parametrize("name", [f.name for f in fields(RematOptions)])
def test_each_option_is_in_the_key_but_those_that_only_show_something(name: str) -> None:
    changed = replace(RematOptions(), **{name: other(RematOptions(), name)})
    assert (key(options=changed) == key()) == (name == "dump")


@pytest.mark.parametrize(
    "inputs",
    [
        (torch.zeros(4, 5),),
        (torch.zeros(4, 4).t().contiguous().t(),),
        (torch.zeros(4, 4, dtype=torch.float64),),
        (torch.zeros(4, 4, device="meta"),),
        (torch.zeros(4, 4, requires_grad=True),),
        (nn.Parameter(torch.zeros(4, 4), requires_grad=False),),
        (torch.zeros(4, 4), torch.zeros(4, 4)),
        (torch.zeros(4, 4), 3),
    ],
)
def test_what_is_known_of_the_inputs_is_in_the_key(inputs: tuple[Any, ...]) -> None:
    assert key(inputs=inputs) != key()


class Outer(nn.Module):
    """A graph with another one inside, whose name alone stands in the outer code."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = fx.symbolic_trace(inner)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.inner(x)
        return out


class Leaves(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, fx.GraphModule)


def nested(inner: nn.Module) -> fx.GraphModule:
    outer = Outer(inner)
    return fx.GraphModule(outer, Leaves().trace(outer))


def test_the_bodies_of_regions_are_in_the_key() -> None:
    assert nested(Doubled()).code == nested(Tripled()).code
    assert key(gm=nested(Doubled())) == key(gm=nested(Doubled()))
    assert key(gm=nested(Doubled())) != key(gm=nested(Tripled()))


@pytest.mark.parametrize(
    "mode",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        lambda: torch.autocast("cpu", dtype=torch.float16),
    ],
)
def test_modes_around_the_call_are_in_the_key(mode: Callable[[], AbstractContextManager[object]]) -> None:
    with mode():
        inside = key()
    with torch.autocast("cpu", dtype=torch.bfloat16), torch.no_grad():
        both = key()
    assert len({key(), inside, both}) == 3


def test_data_are_not_in_the_key() -> None:
    assert key(inputs=(torch.ones(4, 4),)) == key()


@pytest.mark.parametrize(
    "change",
    [
        lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77),
        lambda patch: patch.setattr(graph_key, "environment", lambda: ("another machine",)),
        lambda patch: patch.setattr(torch_compat, "inductor_fingerprint", lambda: "other"),
        lambda patch: patch.setattr(graph_key, "__version__", "other"),
        lambda patch: patch.setattr(torch, "__version__", "other"),
    ],
)
def test_settings_and_versions_are_in_the_key(
    change: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = key()
    change(monkeypatch)
    assert key() != before


def test_the_graph_the_budget_now_and_the_costs_are_in_the_key() -> None:
    others = [key(gm=fx.symbolic_trace(Tripled())), key(budget_bytes=8), key(costs="other rates")]
    assert len({key(), *others}) == 4


@pytest.mark.parametrize("name", [f.name for f in fields(PartitionRequest)])
def test_each_field_of_the_request_is_in_the_uuid(name: str) -> None:
    changed = replace(REQUEST, **{name: other(REQUEST, name)})
    assert RematPartitioner(changed, "").uuid() != RematPartitioner(REQUEST, "").uuid()


def test_whether_plans_of_other_sizes_may_be_taken_is_in_the_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    before = RematPartitioner(REQUEST, "")
    assert before.similar
    assert not RematPartitioner(replace(REQUEST, sizes=(("s0", 7),)), "").similar
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert not RematPartitioner(REQUEST, "").similar
    assert RematPartitioner(REQUEST, "").uuid() != before.uuid()


def test_costs_and_versions_are_in_the_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    uuids = [RematPartitioner(REQUEST, costs).uuid() for costs in ("", "other")]
    monkeypatch.setattr(partitioner, "__version__", "other")
    uuids.append(RematPartitioner(REQUEST, "").uuid())
    monkeypatch.setattr(torch, "__version__", "other")
    uuids.append(RematPartitioner(REQUEST, "").uuid())
    assert len(set(uuids)) == len(uuids)
    assert copy.deepcopy(RematPartitioner(REQUEST, "")).uuid() == uuids[-1]


RATES = [
    replace(NOMINAL, flops_per_s={"float32": 60e9}),
    replace(NOMINAL, efficiency={"convolution": 0.5}),
    replace(NOMINAL, bytes_per_s=11e9),
    replace(NOMINAL, special_per_s=1e9),
    replace(NOMINAL, overhead_ns=1001),
    replace(NOMINAL, name="another processor"),
    replace(NOMINAL, on_gpu=True),
    replace(NOMINAL, peers=Peers(2e9, 10_000)),
]


def test_every_rate_is_in_the_identity_of_the_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(RATES) == len(fields(rates.Rates))
    found = set()
    for one in (NOMINAL, *RATES):
        monkeypatch.setattr("remat_compiler.costs.table.rates_of", lambda kind, directory, one=one: one)
        found |= {cost_identity(model, {"cpu"}, None) for model in ("roofline", "measured")}
    assert len(found) == 2 * (len(RATES) + 1)


def test_nominal_costs_are_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_compiler.costs.table.rates_of", lambda *_: pytest.fail("calibrated"))
    assert cost_identity("nominal", {"cpu"}, None) == cost_identity("nominal", {"cuda"}, None)


def test_devices_are_those_of_inputs_and_of_what_the_graph_makes() -> None:
    gm = fx.symbolic_trace(Doubled())
    assert devices_of(gm, (3,)) == {CPU}
    assert devices_of(gm, (torch.zeros(2, device="meta"), 3)) == {META}
    next(iter(gm.graph.nodes)).meta["example_value"] = (torch.zeros(2), 3)
    assert devices_of(gm, (torch.zeros(2, device="meta"),)) == {CPU, META}


def test_parameters_are_told_by_shape_and_type_wherever_they_stand() -> None:
    gm, weight = fx.symbolic_trace(Doubled()), nn.Parameter(torch.zeros(4, 2))
    inside = fx.symbolic_trace(nn.Sequential(nn.Linear(2, 4, bias=False)))
    same = [
        parameter_shapes(gm, (weight, torch.zeros(3))),
        parameter_shapes(gm, (torch.zeros(8, 8), weight)),
        parameter_shapes(inside, (torch.zeros(8, 8),)),
    ]
    others = [
        parameter_shapes(gm, (torch.zeros(4, 2),)),
        parameter_shapes(gm, (nn.Parameter(torch.zeros(2, 4)),)),
        parameter_shapes(gm, (nn.Parameter(torch.zeros(4, 2, dtype=torch.float64)),)),
        parameter_shapes(gm, (weight, weight)),
    ]
    assert len(set(same)) == 1
    assert len({*same, *others}) == 5
