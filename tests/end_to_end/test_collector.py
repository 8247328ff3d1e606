"""Sheltered execution: what is collected at the first sizes is right, changes nothing, and stays within the budget."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import remat_compiler
from dry_run.steps import peak_of
from end_to_end.compiling import compile_with
from remat_compiler import torch_compat
from remat_compiler.capture.graph import capture
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.mimose.collector import Collector, Dropped
from remat_compiler.dynamic_shapes.variant_maker import VariantMaker
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.ir.saved_layers import SavedLayers
from remat_compiler.observer import Observer, observed_by
from remat_compiler.partition import partitioner
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Partition
from remat_compiler.plan_cache.cached_planner import options_of
from remat_passes.layers.saved_layers import saved_layers
from remat_passes.registry import make_planner

WIDTH, LAYERS = 16, 2
MUCH = 10**9


class Layer(nn.Module):
    """Attention with dropout, and a norm of one kind or the other."""

    def __init__(self, norm: Callable[[int], nn.Module], again: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.norm, self.again = norm(WIDTH), again

    def forward(self, x: Tensor) -> Tensor:
        if self.again:
            return checkpoint(self.inner, x, use_reentrant=False)
        return self.inner(x)

    def inner(self, x: Tensor) -> Tensor:
        """``[batch, length, width]``, the same again."""
        q, k, v = self.qkv(x).chunk(3, -1)
        mixed = F.dropout(torch.softmax(q @ k.transpose(-1, -2), -1), 0.1, self.training) @ v
        return self.norm((x + self.out(mixed)).flatten(0, 1)).view_as(x)


class Encoder(nn.Module):
    """Layers, and a head that is tied to their embedding, or a mean."""

    def __init__(
        self, norm: Callable[[int], nn.Module] = nn.LayerNorm, tied: bool = False, again: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.embedding = nn.Parameter(torch.randn(WIDTH, WIDTH) / 4)
        self.layers = nn.ModuleList(Layer(norm, k in again) for k in range(LAYERS))
        self.tied = tied

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.embedding
        for layer in self.layers:
            x = layer(x)
        return (x @ self.embedding.t() if self.tied else x).square().mean()


MODELS: dict[str, Callable[[], Encoder]] = {
    "dropout": Encoder,
    "batch norm": lambda: Encoder(nn.BatchNorm1d),
    "tied": lambda: Encoder(tied=True),
}


@dataclass
class Seen:
    """What a compilation showed.

    Attributes:
        dispatches: What runs the graphs of changing sizes.
        collectors: What collects from them.
        requests: What was planned for.
        partitions: Each partition with the arguments of its capture.
        collected: Those that are collected from.
    """

    dispatches: list[Dispatch] = field(default_factory=list)
    collectors: list[Collector] = field(default_factory=list)
    requests: list[PartitionRequest] = field(default_factory=list)
    partitions: list[tuple[Partition, dict[str, Any]]] = field(default_factory=list)
    collected: list[Partition] = field(default_factory=list)

    def layers_at(self, sizes: Sequence[int]) -> SavedLayers:
        """The layers of the partition that is collected from, captured anew at sizes."""
        made, keywords = next(one for one in self.partitions if one[0] is self.collected[0])
        names = [name for name, _ in self.requests[0].sizes]
        with torch_compat.sizes_at(dict(zip(names, sizes))):
            graph = capture(made.joint, **keywords).graph
        costs = CostTable((0,) * len(graph.ops), (0,) * len(graph.ops), ("",) * len(graph.ops))
        return saved_layers(RematProblem(graph, costs, MUCH))


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Seen]:
    """Everything that is compiled and collected in the test."""
    found = Seen()

    class Watcher(Observer):
        def dispatch_made(self, dispatch: Dispatch) -> None:
            found.dispatches.append(dispatch)

        def collector_made(self, attempt: Attempt, collector: Collector) -> None:
            found.collected += attempt.partitions
            found.collectors.append(collector)

        def partition_made(self, partition: Partition, request: PartitionRequest, **convention: Any) -> None:
            found.requests.append(request)
            found.partitions.append((partition, {**convention, "fused": request.inner == "inductor"}))

    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    remat_compiler.reset_stats()
    with observed_by(Watcher()):
        yield found


def batch(length: int, width: int = 2) -> Tensor:
    """An input whose length changes."""
    x = torch.randn(width, length, WIDTH)
    torch._dynamo.mark_dynamic(x, 1)
    return x


def compiled(model: nn.Module, **options: Any) -> Any:
    """The model, its peaks and layers learnt as they come."""
    given = {"memory_budget": MUCH, "estimator": "quadratic", "planner": "mimose", **options}
    return compile_with(model, None, **given)  # type: ignore[arg-type]


def train(call: Any, lengths: Sequence[int], model: nn.Module | None = None) -> None:
    """A step at each length; gradients add up, unless a model is named that frees its own before each step."""
    for length in lengths:
        if model is not None:
            model.zero_grad()
        call(batch(length)).backward()


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize("model", MODELS)
def test_collected_bytes_are_those_of_the_layers(model: str, inner: str, seen: Seen) -> None:
    """To the byte, at each size: what making a layer again does not save.

    The lengths are such that Inductor is expected to fuse alike at all of them (`capture.materialise`).
    """
    train(compiled(MODELS[model](), inner=inner), [48, 48, 57, 66])
    (collector,) = seen.collectors
    samples = collector.estimator.samples
    assert [sample.sizes for sample in samples] == [(48,), (57,), (66,)]
    for sample in samples:
        layers = seen.layers_at(sample.sizes).layers
        assert [layer.name.rpartition(".")[2] for layer in layers] == ["0", "1"]
        assert sample.block_bytes == tuple(layer.size_bytes for layer in layers)
        assert min(sample.block_bytes) > 0
        assert min(sample.block_ns) > 0


@pytest.mark.parametrize("model", MODELS)
def test_equal_to_eager_while_collecting(model: str, seen: Seen) -> None:
    """Loss, gradients, buffers and random state, at every call of the phase and after it."""
    made = MODELS[model]()
    call = compiled(made)
    for seed, length in enumerate([12, 12, 19, 30]):
        x, results = batch(length), []
        state = {name: value.clone() for name, value in made.state_dict().items()}
        for run in (made, call):
            made.load_state_dict(state)
            made.zero_grad(set_to_none=True)
            torch.manual_seed(seed)
            loss = run(x)
            loss.backward()
            gradients = {name: p.grad.clone() for name, p in made.named_parameters() if p.grad is not None}
            buffers = {name: value.clone() for name, value in made.named_buffers()}
            results.append({"loss": loss.detach(), "state": torch.get_rng_state(), **gradients, **buffers})
        assert [name for name in results[0] if not torch.equal(results[0][name], results[1][name])] == []
    assert len(seen.collectors[0].estimator.samples) == 3


def test_two_sizes_that_change(seen: Seen) -> None:
    """Batch and length; sizes not seen are predicted to the byte once a polynomial of both is determined."""
    call = compiled(Encoder())
    pairs = [(2, 9), (2, 9), (3, 14), (4, 20), (5, 8), (6, 25), (2, 30), (7, 11), (3, 22), (5, 17), (4, 13)]
    for width, length in pairs:
        x = batch(length, width)
        torch._dynamo.mark_dynamic(x, 0)
        call(x).backward()
    (collector,) = seen.collectors
    assert len(collector.estimator.samples) == 10
    assert not collector.active
    assert all(len(sample.sizes) == 2 for sample in collector.estimator.samples)
    for sizes in [(3, 9), (6, 19)]:
        exact = [layer.size_bytes for layer in seen.layers_at(sizes).layers]
        # Batch times length squared is of degree 3, so what is quadratic in the length is met but about.
        assert sum(collector.layer_bytes(sizes)) == pytest.approx(sum(exact), rel=0.05)


def test_the_run_stays_within_what_it_is_predicted_to_take(seen: Seen) -> None:
    """Measured by the allocator; far below what the step takes, since layers are dropped one by one."""
    model = Encoder(nn.BatchNorm1d)
    call = compiled(model)
    train(call, [12])
    (collector,) = seen.collectors
    for length in (12, 60):
        x = batch(length)
        inner = _inner_arguments(collector, seen, call, x)
        measured = peak_of(partial(_collect, collector, inner))
        assert measured <= (collector._peak_bytes((length,)) or 0) <= 1.05 * measured
    assert measured < 0.6 * peak_of(lambda x=x: call(x).backward())  # type: ignore[misc]


def _collect(collector: Collector, inner: list[Any]) -> None:
    """One run of the forward beside the step."""
    assert collector._forward is not None
    with torch_compat.detached_run():
        collector._forward.run(inner, collector._meter)


def _inner_arguments(collector: Collector, seen: Seen, call: Any, x: Tensor) -> list[Any]:
    """What the forward graph is called with for `x`."""
    found: list[Any] = []
    original = collector._take

    def take(arguments: Sequence[Any]) -> list[Any]:
        found.extend(original(arguments))
        return list(found)

    collector._take = take
    collector._compilations = remat_compiler.stats().compilations
    call(x).backward()
    collector._take = original
    assert found
    return found


def test_what_does_not_fit_is_not_run(seen: Seen) -> None:
    call = compiled(Encoder())
    train(call, [12])
    (collector,) = seen.collectors
    limit = collector._peak_bytes((20,))
    assert limit is not None
    collector._limit_bytes = lambda: limit
    train(call, [21, 20, 40])
    assert [sample.sizes for sample in collector.estimator.samples] == [(20,)]
    assert collector.dropped[Dropped.OVER_BUDGET] == 2


def test_the_first_run_and_compilations_are_dropped(seen: Seen) -> None:
    """A size whose sample is dropped is collected when it comes again."""
    model = Encoder()
    budget = peak_of(lambda: model(batch(20)).backward())
    call = compiled(model, memory_budget=budget)
    # Gradients that add up would be planned for, in one more compilation.
    train(call, [10], model)
    (collector,) = seen.collectors
    assert collector.dropped == {Dropped.FIRST: 1}
    assert not collector.estimator.samples
    train(call, [32], model)
    assert collector.dropped[Dropped.COMPILED] == 1
    assert not collector.estimator.samples
    train(call, [32, 10], model)
    assert [sample.sizes for sample in collector.estimator.samples] == [(10,), (32,)]
    assert remat_compiler.stats().collections == 2
    assert remat_compiler.stats().collections_dropped == 2
    assert remat_compiler.stats().collecting_s > 0


def test_layers_that_the_user_has_made_again_are_dropped(seen: Seen) -> None:
    train(compiled(Encoder(again=[1])), [12, 14, 18])
    (collector,) = seen.collectors
    assert collector.dropped[Dropped.CHECKPOINTED] == 2
    layers = seen.layers_at((14,)).layers
    assert [layer.checkpointed for layer in layers] == [False, True]
    assert collector.estimator.samples[0].block_bytes == (layers[0].size_bytes,)


def test_a_forward_that_must_not_run_twice_is_left_alone(seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[int] = []

    @torch.library.custom_op("remat_tests::counted", mutates_args=())
    def counted(x: Tensor) -> Tensor:
        calls.append(1)
        return x.clone()

    counted.register_fake(lambda x: torch.empty_like(x))
    counted.register_autograd(lambda ctx, grad: grad)

    class Counted(Encoder):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(counted(x))

    with caplog.at_level(logging.INFO, logger="remat_compiler"):
        call = compiled(Counted())
        train(call, [12, 14])
        assert not seen.collectors
        calls.clear()
        train(call, [12, 14])
    assert len(calls) == 2
    assert "remat_tests.counted.default is not to run twice" in caplog.text


def test_the_phase_ends_and_says_what_it_took(seen: Seen, caplog: pytest.LogCaptureFixture) -> None:
    """The smallest variant runs during the phase, the cheapest one after it."""
    model = Encoder()
    budget = peak_of(lambda: model(batch(60)).backward())
    call = compiled(model, memory_budget=budget)
    train(call, [30, 80])
    (dispatch,), (collector,) = seen.dispatches, seen.collectors
    by_label = {variant.label: variant for variant in dispatch.variants}
    assert by_label["first"].added == 0 < min(v.added for label, v in by_label.items() if label != "first")
    train(call, [30])
    assert dispatch.sheltered
    assert dispatch.prepare((30,)).added > 0
    collector._most_calls = collector.calls + 1
    with caplog.at_level(logging.DEBUG, logger="remat_compiler"):
        train(call, [31])
    assert not dispatch.sheltered
    assert not dispatch.watchers
    assert collector._forward is None
    assert dispatch.prepare((30,)) is by_label["first"]
    assert "collected the layers at 2 sizes in 4 calls" in caplog.text
    assert "1 something was compiled in the step" in caplog.text
    assert "layers.1 | " in caplog.text
    collections = remat_compiler.stats().collections
    train(call, [33, 37])
    assert remat_compiler.stats().collections == collections


def test_plans_are_made_of_what_was_collected(seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mimose` plans by the predicted bytes of its layers, and keeps the budget at sizes not seen."""
    monkeypatch.setattr(VariantMaker, "pays", math.inf)
    model = Encoder()
    budget = peak_of(lambda: model(batch(50)).backward())
    call = compiled(model, memory_budget=budget, on_infeasible="error")
    train(call, [10, 11, 14, 17, 22])
    (dispatch,), (collector,) = seen.dispatches, seen.collectors
    assert len(collector.estimator.samples) == 4
    assert [request.layer_bytes for request in seen.requests] == [()] * len(seen.requests)
    before = len(seen.requests)
    for length in (61, 55, 58):
        dispatch.prepare((length,))
        model.zero_grad(set_to_none=True)
        x = batch(length)
        assert peak_of(lambda x=x: call(x).backward()) <= budget  # type: ignore[misc]
    made = seen.requests[before:]
    assert made
    for request in made:
        sizes = tuple(number for _, number in request.sizes)
        exact = tuple(layer.size_bytes for layer in seen.layers_at(sizes).layers)
        assert request.layer_bytes == exact


def test_nothing_is_collected_where_the_bytes_are_known(seen: Seen) -> None:
    train(compiled(Encoder(), estimator="symbolic"), [12, 14])
    assert not seen.collectors
    assert not seen.dispatches[0].watchers
    assert not seen.dispatches[0].sheltered


def test_caches_tell_plans_by_what_was_collected() -> None:
    """Neither compiled code nor a plan is taken that was made of other bytes of layers."""
    requests = [PartitionRequest(MUCH, planner="mimose", layer_bytes=sizes) for sizes in ((), (1, 2), (2, 1))]
    assert len({partitioner.RematPartitioner(request, "").uuid() for request in requests}) == 3
    planners = [make_planner(request.planner, layer_bytes=request.layer_bytes) for request in requests]
    assert len({options_of(planner) for planner in planners}) == 3
