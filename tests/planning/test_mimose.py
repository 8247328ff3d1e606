"""Mimose's Algorithm 1, and the plans that are made of its choices."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import KB, LIBRARY, TRAINING, ProblemBuilder, problems, with_budget
from remat_compiler.errors import OptionError
from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_passes.chains.chain import Forward
from remat_passes.layers.model_layers import ModelLayers, model_layers
from remat_passes.planning.mimose import LayeredStep, Mimose, buckets_of, choose_layers
from remat_passes.planning.save_all import SaveAll
from remat_passes.sequences.sequence import Placement, StepIndex, baseline_order

SIZES = st.lists(st.integers(0, 400), max_size=24)


def encoders(inner: tuple[int, ...] = (8, 8, 8, 8, 8, 8), modules: bool = True, stream: int = KB) -> RematProblem:
    """An embedding, encoder layers that hold `inner` kilobytes each beside a stream, and a head."""
    b = ProblemBuilder()
    paths: list[str] = []
    values = [b.forward([b.storage(stream, StorageKind.INPUT)], stream)]
    paths.append("model.embedding")
    wides = []
    for k, size in enumerate(inner):
        wides.append(b.forward([values[-1]], size * KB // 2))
        wides.append(b.forward([wides[-1]], size * KB // 2))
        values.append(b.forward([wides[-1]], stream))
        paths += [f"model.layer.{k}.wide", f"model.layer.{k}.wide", f"model.layer.{k}"]
    b.run(b.ops[0].phase, [values[-1]], [(8, StorageKind.OUTPUT)])
    paths.append("model.head")
    grad = b.storage(stream, StorageKind.TANGENT)
    for k in reversed(range(len(inner))):
        grad = b.backward([grad, wides[2 * k], wides[2 * k + 1], values[k]], stream, 16)
    problem = b.problem()
    paths += [""] * (len(problem.graph.ops) - len(paths))
    named = zip(problem.graph.ops, paths) if modules else ((op, "") for op in problem.graph.ops)
    ops = tuple(replace(op, module=path) for op, path in named)
    return replace(problem, graph=replace(problem.graph, ops=ops))


def layers_of(problem: RematProblem) -> ModelLayers:
    return model_layers(problem, Forward.of(StepIndex.of(problem.graph)))


def made_again(problem: RematProblem, result: PlanResult) -> set[str]:
    """Names of the layers of which the plan repeats an operator."""
    assert result.plan is not None
    layers = layers_of(problem)
    repeated = {op for op in result.plan.steps if result.plan.steps.count(op) > 1}
    return {layers.names[layers.place[op]] for op in repeated}


def below(problem: RematProblem, kilobytes: int) -> RematProblem:
    """`problem` with a budget so far below the peak of saving all."""
    return with_budget(problem, SaveAll().plan(problem).peak_bytes - kilobytes * KB)


@given(sizes=SIZES)
def test_buckets_hold_layers_alike_in_forward_order(sizes: list[int]) -> None:
    buckets = buckets_of(sizes)
    assert sorted(layer for bucket in buckets for layer in bucket) == [k for k, size in enumerate(sizes) if size]
    for bucket in buckets:
        assert bucket == sorted(bucket)
        assert 10 * min(sizes[k] for k in bucket) >= 9 * max(sizes[k] for k in bucket)
    for larger, smaller in pairwise(buckets):
        assert 10 * max(sizes[k] for k in smaller) < 9 * max(sizes[k] for k in larger)


@given(sizes=SIZES, excess=st.integers(-100, 4000))
def test_the_excess_is_covered_where_it_can_be_and_by_no_layer_too_many(sizes: list[int], excess: int) -> None:
    chosen = choose_layers(sizes, excess)
    covered = sum(sizes[k] for k in chosen)
    assert len(set(chosen)) == len(chosen)
    assert covered >= min(excess, sum(sizes))
    assert not chosen or covered - sizes[chosen[-1]] < excess, "the last layer was not needed"


@given(size=st.integers(1, 400), count=st.integers(1, 20), wanted=st.integers(0, 25))
def test_equal_layers_go_the_earliest_first(size: int, count: int, wanted: int) -> None:
    assert choose_layers([size] * count, wanted * size) == tuple(range(min(wanted, count)))


@pytest.mark.parametrize(
    ("sizes", "excess", "expected"),
    [
        ([90, 100, 89], 100, (1,)),  # 90 and 100 share a bucket; the earliest of those that cover goes
        ([90, 100, 89], 90, (0,)),  # exactly covered is covered, and 90 is earlier than 100
        ([90, 100, 89], 89, (2,)),  # 89 is a bucket of its own, and nearest
        ([90, 100, 89], 150, (0, 2)),  # none covers: the earliest of the largest bucket, then the nearest for 60
        ([12, 40, 31, 40, 30, 39], 95, (1, 3, 2)),
        ([12, 40, 31, 40, 30, 39], 10**6, (1, 3, 5, 2, 4, 0)),  # more than there is: all of them
        ([50, 20, 10], 10, (2,)),
        ([50, 20, 10], 11, (1,)),
        ([50, 20, 10], 0, ()),
        ([0, 0], 5, ()),
        ([], 5, ()),
    ],
)
def test_examples_worked_by_hand(sizes: list[int], excess: int, expected: tuple[int, ...]) -> None:
    assert choose_layers(sizes, excess) == expected


def test_a_layer_is_made_again_whole_and_its_boundary_saved() -> None:
    problem = below(encoders(), 5)
    result = Mimose().plan(problem)
    assert result.status is PlanStatus.FEASIBLE
    assert result.plan is not None
    assert made_again(problem, result) == {"model.layer.0"}
    repeated = [op for op in result.plan.steps[result.plan.boundary :] if op < 20]
    assert repeated == [1, 2], "both wide operators once, together; not the one that makes the stream"


def test_the_last_layers_are_kept() -> None:
    """Figure 11 of the paper: making the last encoder again does not lower the peak."""
    for kilobytes in (5, 13, 21):
        problem = below(encoders(), kilobytes)
        result = Mimose().plan(problem)
        assert result.status is PlanStatus.FEASIBLE
        assert made_again(problem, result) == {f"model.layer.{k}" for k in range(-(-kilobytes // 8))}


@pytest.mark.parametrize(("kilobytes", "expected"), [(3, 0), (7, 1)])
def test_the_nearest_layer_that_covers_what_is_missing(kilobytes: int, expected: int) -> None:
    problem = below(encoders((4, 8, 16, 2, 2), stream=8), kilobytes)
    assert made_again(problem, Mimose().plan(problem)) == {f"model.layer.{expected}"}


def test_estimates_decide_instead_of_the_bytes_of_the_problem() -> None:
    problem = below(encoders(), 5)
    result = Mimose(layer_bytes=(1, 1, 1, 90 * KB, 1, 1)).plan(problem)
    assert made_again(problem, result) == {"model.layer.3"}
    assert result.status is PlanStatus.FEASIBLE


@pytest.mark.parametrize("estimates", [(1, 2), (1, 2, 3, 4, 5, -6)])
def test_estimates_that_do_not_belong_to_the_model(estimates: tuple[int, ...]) -> None:
    with pytest.raises(OptionError, match="the model has 6 layers"):
        Mimose(layer_bytes=estimates).plan(encoders())


def test_too_low_estimates_end_in_a_plan_that_fits() -> None:
    problem = below(encoders(), 21)
    result = Mimose(layer_bytes=(7, 6, 5, 4, 3, 2)).plan(problem)
    assert result.status is PlanStatus.FEASIBLE
    assert made_again(problem, result) >= {f"model.layer.{k}" for k in range(3)}


def test_where_nothing_fits_the_plan_is_the_lowest_on_the_way() -> None:
    problem = with_budget(encoders(), 1)
    result = Mimose().plan(problem)
    assert result.status is PlanStatus.INFEASIBLE
    assert result.peak_bytes <= SaveAll().plan(problem).peak_bytes - 30 * KB


def test_a_graph_without_modules_is_cut_into_segments() -> None:
    bare = encoders((8,) * 12, modules=False)
    assert any(name.startswith("segment") for name in layers_of(bare).names)
    result = Mimose().plan(below(bare, 30))
    assert result.status is PlanStatus.FEASIBLE
    assert result.added_ns > 0


@pytest.mark.parametrize("name", TRAINING)
def test_the_bytes_of_a_layer_are_those_that_are_not_saved(name: str) -> None:
    problem = LIBRARY[name]
    index = StepIndex.of(problem.graph)
    forward = Forward.of(index)
    order = baseline_order(index, Placement.LAZY)
    step = LayeredStep.of(index, order, forward, model_layers(problem, forward))

    def saved_bytes(chosen: list[int]) -> int:
        plan = step.plan(index, order, chosen)
        made, saved = set(), set()
        for op in plan.steps[plan.boundary :]:
            saved |= {s for s in index.reads[op] if s not in made}
            made |= set(index.writes[op])
        return sum(index.size_bytes[s] for s in saved if index.producer[s] >= 0)

    everything = saved_bytes([])
    for layer, size in enumerate(step.layer_bytes):
        assert saved_bytes([layer]) <= everything - size + _boundary(problem, step, layer)


def _boundary(problem: RematProblem, step: LayeredStep, layer: int) -> int:
    """Bytes that other layers make and this one reads, which have to be saved where it is made again."""
    reads = {s for op in problem.graph.ops for s in op.reads if any(step.layer_of[w] == layer for w in op.writes)}
    return sum(problem.graph.storages[s].size_bytes for s in reads if step.layer_of[s] != layer)


@settings(max_examples=60)
@given(problem=problems())
def test_where_all_fits_nothing_is_chosen(problem: RematProblem) -> None:
    result = Mimose().plan(problem)
    assert ("made again", "0") in result.stats
    assert result.added_ns <= SaveAll().plan(problem).added_ns
