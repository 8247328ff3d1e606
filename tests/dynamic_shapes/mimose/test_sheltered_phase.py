"""The phase of collecting: who runs its calls, when it ends, and which graphs are not run twice."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, fx

from dynamic_shapes.made_up_variants import WHOLE, Prepared, variant
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.compilation.compiler import Compiler
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.mimose.collector import Collector
from remat_compiler.dynamic_shapes.mimose.sheltered_phase import (
    NOT_TWICE,
    ShelteredPhase,
    collector_for,
    layered_forward,
    layers_of,
    shelter,
)
from remat_compiler.dynamic_shapes.variant import Use
from remat_compiler.ir.graph import Phase, Trait
from remat_compiler.observer import Observer, observed_by
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.session import Session


@dataclass
class MadeUpCollector:
    """Takes so many samples, each in a moment."""

    samples: int
    seen: list[tuple[int, ...]] = field(default_factory=list)
    inside: int = 0
    together: int = 0

    @property
    def active(self) -> bool:
        return len(self.seen) < self.samples

    def before_step(self, sizes: tuple[int, ...], arguments: Sequence[Any]) -> bool:
        self.inside += 1
        self.together = max(self.together, self.inside)
        time.sleep(0.002)
        self.seen.append(sizes)
        self.inside -= 1
        return self.active


def dispatch_of_two() -> Dispatch:
    made = Dispatch([0], WHOLE, variant("small", 1, 0.3), Prepared(), 6)
    made.variants.append(variant("native", 2))
    return made


def test_the_smallest_runs_until_enough_is_collected() -> None:
    made, collector = dispatch_of_two(), MadeUpCollector(samples=3)
    ShelteredPhase(made, cast(Collector, collector))
    # The phase ends before the step of the last sample, which runs as all later ones do.
    assert [made(size)[0] for size in (10, 20, 30, 40, 10)] == ["small", "small", "native", "native", "native"]
    assert collector.seen == [(10,), (20,), (30,)]
    assert made.watchers == ()
    assert not made.sheltered


def test_it_looks_before_other_watchers_which_stay() -> None:
    order: list[str] = []

    class Other:
        def before(self, use: Use, arguments: Sequence[Any]) -> None:
            order.append("other")

        def after(self, use: Use, outputs: Any) -> None:
            order.append("after")

    class Noted(MadeUpCollector):
        def before_step(self, sizes: tuple[int, ...], arguments: Sequence[Any]) -> bool:
            order.append("collector")
            return super().before_step(sizes, arguments)

    made, other = dispatch_of_two(), Other()
    made.watchers = (other,)
    ShelteredPhase(made, cast(Collector, Noted(samples=1)))
    made(10)
    made(11)
    assert order == ["collector", "other", "after", "other", "after"]
    assert made.watchers == (other,)


def test_threads_collect_one_after_the_other() -> None:
    made, collector = dispatch_of_two(), MadeUpCollector(samples=40)
    phase = ShelteredPhase(made, cast(Collector, collector))
    threads = [
        threading.Thread(target=lambda: [phase.before(Use((size,), made.variants[0]), ()) for size in range(1, 11)])
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert collector.together == 1
    assert len(collector.seen) == 40, "none after the last"
    assert not made.sheltered


def attempt_of(forward: Callable[..., tuple[Tensor]]) -> Attempt:
    x, weight = torch.ones(16, 8), torch.full((8, 8), 0.1, requires_grad=True)
    request = PartitionRequest(None, inner="eager", cost_model="nominal")
    return Compiler(fx.symbolic_trace(forward), [x, weight], (), Session(), "nominal", reported=False).run(request)


def layers(x: Tensor, weight: Tensor) -> tuple[Tensor]:
    for _ in range(4):
        x = torch.sin(x @ weight)
    return (x.sum(),)


def collector_of(attempt: Attempt) -> Collector | None:
    return collector_for(attempt, lambda: 1 << 40, WorkspaceTable())


def test_each_operator_of_the_forward_is_in_a_layer() -> None:
    one = attempt_of(layers).partition
    assert one is not None
    forward, found = layered_forward(one), layers_of(one)
    saved = [storage for layer in found.layers for storage in layer.storages]
    assert len(saved) == len(set(saved)), "each byte counts once"
    assert len(forward.blocks) == len(found.layers) > 0
    places = [found.place[op.id] for op in one.problem.graph.ops if op.phase is Phase.FORWARD]
    assert places == sorted(places), "layers run one after the other"
    assert {0, len(found.layers) - 1} <= set(places) <= set(range(len(found.layers)))
    assert collector_of(attempt_of(layers)) is not None


def with_trait(attempt: Attempt, trait: Trait) -> Attempt:
    """The same, its first operator having `trait`."""
    one = attempt.partition
    assert one is not None
    graph = one.problem.graph
    first = replace(graph.ops[0], traits=graph.ops[0].traits | {trait})
    problem = replace(one.problem, graph=replace(graph, ops=(first, *graph.ops[1:])))
    return replace(attempt, partitions=(replace(one, graphs=replace(one.graphs, problem=problem)),))


@pytest.mark.parametrize("trait", sorted(NOT_TWICE, key=lambda trait: trait.value))
def test_what_acts_on_the_world_does_not_run_twice(trait: Trait, caplog: pytest.LogCaptureFixture) -> None:
    attempt = attempt_of(layers)
    assert collector_of(attempt) is not None
    with caplog.at_level("INFO", "remat_compiler"):
        assert collector_of(with_trait(attempt, trait)) is None
    assert "is not to run twice in a step" in caplog.text


def test_without_a_partition_nothing_is_collected() -> None:
    assert collector_of(replace(attempt_of(layers), partitions=())) is None


def test_those_who_look_on_are_told_of_it() -> None:
    class Sees(Observer):
        made: Any = None

        def collector_made(self, attempt: Any, collector: Any) -> None:
            self.made = (attempt, collector)

    dispatch, attempt = dispatch_of_two(), attempt_of(layers)
    with observed_by(sees := Sees()):
        predict = shelter(dispatch, attempt, WorkspaceTable())
    assert sees.made[0] is attempt
    assert [type(watcher) for watcher in dispatch.watchers] == [ShelteredPhase]
    assert predict((16,)) == (), "nothing was collected yet"

    dispatch = dispatch_of_two()
    assert shelter(dispatch, with_trait(attempt, Trait.COLLECTIVE), WorkspaceTable())((16,)) == ()
    assert dispatch.watchers == ()
    assert not dispatch.sheltered
