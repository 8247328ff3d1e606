"""What the cost models say of small training steps."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from costs.captured import captured
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.costs import measured
from remat_compiler.costs.any_values import is_measurable
from remat_compiler.costs.op_call import OpCall
from remat_compiler.costs.rates import NOMINAL, Rates
from remat_compiler.costs.roofline import Roofline, flops_of
from remat_compiler.costs.store import device_name, shared_store
from remat_compiler.costs.table import cost_table
from remat_compiler.ir.problem import CostTable
from remat_compiler.torch_compat import Product

FLAT = Rates({"float32": 1e9}, {}, bytes_per_s=1e9, special_per_s=1e9, overhead_ns=0, name="flat")
"""One nanosecond a FLOP, a byte, an evaluation."""


def table(graph: CapturedGraph, model: str, directory: Path | None = None) -> CostTable:
    return cost_table(graph, (0,) * len(graph.main), model, directory)


def op_named(graph: CapturedGraph, target: str) -> int:
    return next(op.id for op in graph.graph.ops if op.target.startswith(target))


def mlp(fused: bool) -> CapturedGraph:
    up, down = torch.rand(64, 256, requires_grad=True), torch.rand(256, 64, requires_grad=True)
    return captured(lambda x, a, b: F.gelu(x @ a) @ b, (torch.rand(32, 64), up, down), fused=fused)


def test_nominal_times_are_the_same_everywhere() -> None:
    graph = mlp(fused=False)
    product = op_named(graph, "aten.mm")
    flops, moved = 2 * 32 * 64 * 256, 4 * (32 * 64 + 64 * 256 + 32 * 256)
    found = table(graph, "nominal")
    assert found.time_ns[product] == round(flops / 50 + moved / 10) + 1000
    assert set(found.provenance) == {"roofline:nominal"}
    assert found == table(graph, "nominal")


def test_a_fused_loop_costs_its_reads_and_its_arithmetic() -> None:
    graph = mlp(fused=True)
    roofline = Roofline(graph, None, FLAT)
    (gelu,) = (op.id for op in graph.graph.ops if graph.loops[op.id] and op.phase.value == "forward")
    assert roofline.traffic.moved_bytes(gelu) == 4 * 32 * 256
    # One erf, the rest multiplications and additions.
    assert 32 * 256 < roofline.traffic.evaluations(gelu) < 2 * 32 * 256
    product = op_named(graph, "aten.mm")
    assert roofline.time_ns(gelu) < roofline.time_ns(product) / 10


def test_a_product_whose_rows_end_between_16_bytes_takes_longer_on_tensor_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def product_ns(width: int, elsewhere: bool) -> float:
        monkeypatch.setattr(Product, "on_tensor_cores", property(lambda _: not elsewhere))
        graph = captured(
            lambda x, w: (x @ w).sum(), (torch.randn(64, 32), torch.randn(32, width, requires_grad=True)), fused=False
        )
        # Bytes take no time, so that what is left is arithmetic.
        return Roofline(graph, None, replace(FLAT, bytes_per_s=1e30)).time_ns(op_named(graph, "aten.mm")) / width

    assert product_ns(33, True) == pytest.approx(product_ns(32, True), rel=0.01)
    assert product_ns(33, False) > 2 * product_ns(32, False)


def test_on_a_gpu_arithmetic_runs_beside_the_bytes() -> None:
    graph = mlp(fused=True)
    (gelu,) = (op.id for op in graph.graph.ops if graph.loops[op.id] and op.phase.value == "forward")
    bytes_ns, erf_per_s = 4 * 32 * 256, 32 * 256 * 1e9
    for rate in (erf_per_s, erf_per_s / 10**6):
        roofline = Roofline(graph, None, replace(FLAT, special_per_s=rate, on_gpu=True))
        arithmetic_ns = roofline.traffic.evaluations(gelu, on_gpu=True) / rate * 1e9
        assert 32 * 256 < arithmetic_ns * rate / 1e9 < 1.5 * 32 * 256
        assert roofline.time_ns(gelu) == round(max(bytes_ns, arithmetic_ns))


def test_bytes_are_those_touched_not_those_of_the_storage() -> None:
    def step(table: torch.Tensor, wide: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = F.embedding(torch.tensor([1, 2, 3]), table)
        return found.sum() + (wide[:, :2] * row.expand(8, 2)).sum()

    inputs = [torch.rand(*size, requires_grad=True) for size in ((1000, 4), (8, 100), (1, 2))]
    graph = captured(step, tuple(inputs), fused=False)
    traffic = Roofline(graph, None, FLAT).traffic
    lookup, product = op_named(graph, "aten.embedding"), op_named(graph, "aten.mul")
    indices = 3 * 8
    assert traffic.moved_bytes(lookup) == 3 * 4 * 4 + indices + 3 * 4 * 4
    assert traffic.moved_bytes(product) == 8 * 2 * 4 + 2 * 4 + 8 * 2 * 4


def test_attention_on_a_cpu_has_flops() -> None:
    q, k, v = (torch.rand(2, 4, 16, 8, requires_grad=True) for _ in range(3))
    graph = captured(F.scaled_dot_product_attention, (q, k, v), fused=False)
    forward = op_named(graph, "aten._scaled_dot_product_flash_attention_for_cpu.default")
    backward = op_named(graph, "aten._scaled_dot_product_flash_attention_for_cpu_backward")
    product = 2 * 2 * 4 * 16 * 16 * 8
    assert flops_of(graph.main[forward]) == 2 * product
    assert flops_of(graph.main[backward]) == 5 * product


def test_costs_put_no_guard_on_a_dynamic_size(tmp_path: Path) -> None:
    tables: list[CostTable] = []

    def look(graph: CapturedGraph) -> None:
        tables.extend(table(graph, model, tmp_path) for model in ("nominal", "roofline", "measured"))

    weight = torch.rand(64, 64, requires_grad=True)

    def step(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.relu(x @ w)

    x = torch.rand(32, 64)
    torch._dynamo.mark_dynamic(x, 0)  # raises where a guard made the size constant
    graph = captured(step, (x, weight), fused=False, dynamic=True, look=look)
    assert all(time > 0 for costs in tables for time in costs.time_ns)
    assert any(isinstance(size, torch.SymInt) for size in graph.main[0].meta["val"].shape)


def test_measured_times_are_kept_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = mlp(fused=True)
    found = table(graph, "measured", tmp_path)
    for op_id, source in enumerate(found.provenance):
        kind = "roofline" if graph.loops[op_id] else "measured"
        assert source == f"{kind}:{device_name('cpu')}"

    def never(call: OpCall) -> int:
        raise AssertionError(f"timed {call.key} again")

    monkeypatch.setattr(measured, "time_call", never)
    shared_store.cache_clear()
    assert table(graph, "measured", tmp_path) == found


def test_random_operators_are_timed_and_the_random_state_put_back(tmp_path: Path) -> None:
    graph = captured(
        lambda x: F.dropout(x.sin(), 0.3, training=True), (torch.rand(64, 64, requires_grad=True),), fused=False
    )
    state = torch.get_rng_state()
    found = table(graph, "measured", tmp_path)
    assert torch.equal(torch.get_rng_state(), state)
    assert {source.partition(":")[0] for source in found.provenance} == {"measured"}


def test_what_changes_something_is_never_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen: torch.Tensor
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.seen.add_(x.detach().sum(0))
            return torch.ops.remat_test_costs.noted(x.sin())  # type: ignore[no-any-return]

    runs: list[int] = []

    @torch.library.custom_op("remat_test_costs::noted", mutates_args=())
    def noted(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        return x.clone()

    noted.register_fake(torch.empty_like)
    noted.register_autograd(lambda context, grad: grad)
    ran: list[int] = []

    def look(graph: CapturedGraph) -> None:
        before = len(runs)
        sources = table(graph, "measured", tmp_path).provenance
        ran.append(len(runs) - before)
        unsafe = [op.id for op in graph.graph.ops if op.traits]
        assert unsafe
        assert all(sources[op].startswith("roofline:") for op in unsafe)

    captured(Counts(), (torch.rand(3, 4, requires_grad=True),), fused=False, look=look)
    assert ran == [0]


def test_measuring_stops_at_its_time_and_goes_on_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    graph = mlp(fused=False)
    monkeypatch.setattr(measured, "MEASURING_SECONDS", -1.0)
    with caplog.at_level(logging.WARNING):
        assert {s.partition(":")[0] for s in table(graph, "measured", tmp_path).provenance} == {"roofline"}
    assert "not timed yet" in caplog.text
    monkeypatch.undo()
    assert {s.partition(":")[0] for s in table(graph, "measured", tmp_path).provenance} == {"measured"}


def test_what_cannot_run_stays_with_the_roofline_and_is_not_tried_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    call = OpCall.any(torch.ops.aten.mm.default, (torch.empty(2, 3), torch.empty(2, 3)), {})
    assert call is not None
    with caplog.at_level(logging.WARNING):
        assert measured.time_call(call) == measured.FAILED_NS
    assert "cannot be timed" in caplog.text


def test_collectives_are_never_repeated() -> None:
    pytest.importorskip("torch.distributed._functional_collectives")
    call = OpCall.any(torch.ops._c10d_functional.all_reduce.default, (torch.empty(4), "sum", "0"), {})
    assert call is not None
    assert not is_measurable(call)


def test_relative_costs_are_sane(tmp_path: Path) -> None:
    """A pointwise chain costs a small part of the product in front of it, by either model."""
    size = 256
    weight = torch.rand(size, 4 * size, requires_grad=True)
    graph = captured(lambda x, w: F.relu(x @ w).square().sum(), (torch.rand(size, size), weight), fused=True)
    loops = [op.id for op in graph.graph.ops if graph.loops[op.id] and op.phase.value == "forward"]
    for model in ("roofline", "measured"):
        times = table(graph, model, tmp_path).time_ns
        assert sum(times[op] for op in loops) < times[op_named(graph, "aten.mm")]


def test_nominal_is_the_name_of_the_nominal_rates() -> None:
    assert NOMINAL.kernel_rate("convolution", torch.float16) == 50e9
