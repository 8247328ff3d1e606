"""The planners that run in a pool: what they evict, how fragmented it gets, and what each technique does, by hand."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from builders import LIBRARY, TRAINING, ProblemBuilder, problems, with_budget
from remat_compiler.ir.graph import OpId, Phase, StorageId, StorageKind
from remat_compiler.ir.plan import FITTING, PlanStatus
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate
from remat_compiler.simulate.verify import verify
from remat_passes.eviction.room import COOP, DTE, DTR
from remat_passes.eviction.traces import PoolOptions, PoolTrace, pool_traces
from remat_passes.planning.coop import Coop, operator_classes
from remat_passes.planning.dte import Dte
from remat_passes.planning.dtr_pool import DtrPool
from remat_passes.planning.pooled import choose_trace
from remat_passes.planning.save_all import SaveAll

CONVOLUTION, RELU = "aten.convolution.default", "aten.relu.default"
FEW = PoolOptions(COOP, True, False, 1, 20, kept_first=False)
"""Coop without rounding, and with nothing in place."""


class Writer(ProblemBuilder):
    """Writes a step down with the names of its operators."""

    def named(self, target: str, reads: list[StorageId], size: int, time: int) -> StorageId:
        """A forward operator of ATen with one result."""
        made = self.forward(reads, size, time=time)
        self.ops[-1] = replace(self.ops[-1], target=target)
        return made

    def read_back(self, values: list[StorageId]) -> None:
        """A backward that reads each of the values, the latest first, and makes nothing that takes memory."""
        grad = self.storage(0, StorageKind.TANGENT)
        for value in reversed(values):
            grad = self.run(Phase.BACKWARD, [grad, value], [(0, StorageKind.TEMPORARY)], time=20)[0]


def figure_2() -> RematProblem:
    """The paper's Figure 2: five values of 50 bytes fill the pool, cheap ones between expensive ones, and 100 come."""
    w = Writer()
    values = [w.storage(50, StorageKind.INPUT)]
    for k in range(5):
        target, time = (CONVOLUTION, 100) if k % 2 else (RELU, 10)
        values.append(w.named(target, [values[-1]], 50, time))
    # Time passes, so that staleness differs little between the values.
    pause = w.forward([values[-1]], 0, time=1000)
    values.append(w.named(CONVOLUTION, [values[-1], pause], 100, 100))
    w.read_back(values[1:])
    return w.problem(250)


def only(problem: RematProblem, options: PoolOptions) -> PoolTrace:
    """The trace with tangent-free operators late."""
    return next(pool_traces(problem, operator_classes(problem), options))


def repeated(trace: PoolTrace) -> list[OpId]:
    """Operators that the trace executes more than once."""
    return sorted(op for op in set(trace.plan.steps) if trace.plan.steps.count(op) > 1)


@pytest.mark.parametrize(
    ("policy", "ends", "evictions", "fragmentation", "evicted"),
    [
        # The cheap values 0 and 2 go first, and the dear one between them has to follow: 50 bytes too many.
        (DTR, False, 3, 0.2, [0, 1, 2]),
        (DTE, False, 3, 0.2, [0, 1, 2]),
        # A window, but each window has one value of a convolution in it.
        (COOP, False, 2, 0.0, [0, 1]),
        # The cheap values lie together at the right end.
        (COOP, True, 2, 0.0, [0, 2]),
        (DTR, True, 2, 0.0, [0, 2]),
    ],
)
def test_figure_2_of_the_paper(
    policy: int, ends: bool, evictions: int, fragmentation: float, evicted: list[int]
) -> None:
    trace = only(figure_2(), replace(FEW, policy=policy, ends=ends))
    assert trace.fits
    assert (trace.searches, trace.evictions, repeated(trace)) == (1, evictions, evicted)
    assert trace.fragmentation == trace.worst_fragmentation == pytest.approx(fragmentation)


def test_cheap_tensors_kept_apart_cost_less() -> None:
    problem = figure_2()
    apart, mixed = (
        simulate(problem.graph, problem.costs, only(problem, replace(FEW, ends=ends)).plan) for ends in (True, False)
    )
    assert apart.added_ns == 20
    assert mixed.added_ns == 110


def test_the_named_planners_are_these_ways() -> None:
    problem = figure_2()
    found = {
        planner.name: planner.plan(problem).added_ns
        for planner in (Coop(granularity=1), Dte(granularity=1), DtrPool(granularity=1))
    }
    assert found == {"coop": 20, "dte": 120, "dtr_pool": 120}


def in_place_step() -> RematProblem:
    """A result of 50 bytes over an input that only recomputation could want again; 60 bytes hold one of both."""
    w = Writer()
    x = w.named(CONVOLUTION, [w.storage(50, StorageKind.INPUT)], 50, 100)
    y = w.named(RELU, [x], 50, 10)
    w.read_back([y])
    return w.problem(60)


def test_a_result_in_place_takes_no_memory() -> None:
    problem = in_place_step()
    assert only(problem, replace(FEW, in_place=True)).fits
    apart = only(problem, FEW)
    assert not apart.fits
    assert apart.pool_bytes == 100
    # The simulator has a result beside its input.
    assert Coop(granularity=1).plan(problem).peak_bytes == 100


def test_an_overwritten_input_is_remade_where_it_is_wanted_again() -> None:
    w = Writer()
    x = w.named(CONVOLUTION, [w.storage(50, StorageKind.INPUT)], 50, 100)
    a = w.named("aten.sum.default", [x], 50, 10)
    y = w.named(RELU, [x], 50, 10)
    # For its 60 bytes, `a` is evicted; the backward wants it again, and `a` wants `x`.
    z = w.named(CONVOLUTION, [y], 60, 100)
    w.read_back([a, z])
    problem = w.problem(150)
    trace = only(problem, replace(FEW, in_place=True))
    assert trace.in_place == 1
    assert repeated(trace) == [0, 1]
    assert verify(with_budget(problem, 1 << 40), trace.plan) == []


def test_a_value_that_cannot_be_evicted_ends_every_window() -> None:
    """Pinned values of 10 bytes between others of 40: nowhere are 60 bytes contiguous, so the pool must grow."""
    w = Writer()
    values = [w.storage(8, StorageKind.INPUT)]
    for k in range(6):
        pinned = {"no_recompute": "collective"} if k % 2 else {}
        values.append(w.forward([values[0]], 10 if k % 2 else 40, **pinned))
    values.append(w.forward([values[0]], 60))
    w.read_back(values[1:])
    trace = only(w.problem(150), replace(FEW, ends=False))
    assert not trace.fits
    assert trace.pool_bytes == 210


def test_what_the_caller_keeps_lies_apart_from_the_beginning() -> None:
    """Kept results of 10 bytes split a pool in which 60 contiguous bytes are wanted, unless they were placed first."""
    w = Writer()
    values = [w.storage(8, StorageKind.INPUT)]
    for _ in range(3):
        values.append(w.forward([values[0]], 40))
        w.run(Phase.FORWARD, [values[0]], [(10, StorageKind.OUTPUT)])
    values.append(w.forward([values[0]], 60))
    w.read_back(values[1:])
    problem = w.problem(150)
    options = replace(FEW, ends=False)
    assert not only(problem, options).fits
    assert only(problem, replace(options, kept_first=True)).fits


OPTIONS = st.builds(
    PoolOptions,
    policy=st.sampled_from((DTR, DTE, COOP)),
    ends=st.booleans(),
    in_place=st.booleans(),
    granularity=st.sampled_from((1, 8, 512)),
    patience=st.sampled_from((1, 20)),
    kept_first=st.booleans(),
)
FRACTIONS = (0.0, 0.4, 0.6, 0.8, 1.0)


@settings(max_examples=150)
@given(problem=problems(), options=OPTIONS, fraction=st.sampled_from(FRACTIONS))
def test_every_trace_is_a_plan_and_a_pool_holds_what_is_live(
    problem: RematProblem, options: PoolOptions, fraction: float
) -> None:
    free = with_budget(problem, 1 << 60)
    budget = int(fraction * SaveAll().plan(problem).peak_bytes)
    for trace in pool_traces(with_budget(problem, budget), operator_classes(problem), options):
        assert verify(free, trace.plan) == []
        assert trace.fits == (trace.pool_bytes == budget // options.granularity * options.granularity)
        assert trace.most_bytes <= trace.pool_bytes
        assert 0 <= trace.fragmentation <= trace.worst_fragmentation <= 1
        if not trace.in_place:
            assert simulate(problem.graph, problem.costs, trace.plan).peak_bytes <= trace.most_bytes


@settings(max_examples=60)
@given(problem=problems(), options=OPTIONS)
def test_a_pool_with_room_for_all_evicts_nothing(problem: RematProblem, options: PoolOptions) -> None:
    ample = sum(-(-s.size_bytes // 512) * 512 for s in problem.graph.storages) * 4 + (1 << 20)
    for trace in pool_traces(with_budget(problem, ample), operator_classes(problem), options):
        assert trace.fits
        assert (trace.evictions, trace.searches, trace.fragmentation) == (0, 0, 0.0)


@pytest.mark.parametrize("name", TRAINING)
def test_budgets_between_are_met(name: str) -> None:
    most = SaveAll().plan(LIBRARY[name]).peak_bytes
    result = Coop(granularity=8).plan(with_budget(LIBRARY[name], int(0.8 * most)))
    assert result.status is PlanStatus.FEASIBLE
    assert dict(result.stats)["fits_pool"] == "yes"


def test_traces_that_fit_their_pool_go_first() -> None:
    problem = figure_2()
    cheap, dear = only(with_budget(problem, 1 << 20), FEW), only(problem, replace(FEW, policy=DTR, ends=False))
    overflowed = replace(cheap, fits=False)
    ample = with_budget(problem, 1 << 20)
    assert choose_trace(ample, "x", [overflowed, dear]).plan == dear.plan
    # None fits its pool, or none that does is within the budget: the simulator's peak decides.
    assert choose_trace(ample, "x", [overflowed]).status in FITTING
    tight = with_budget(problem, simulate(problem.graph, problem.costs, dear.plan).peak_bytes)
    assert choose_trace(tight, "x", [cheap, replace(dear, fits=False)]).plan == dear.plan


def test_classes_are_by_name_or_else_by_cost_density() -> None:
    named = operator_classes(figure_2())
    assert named[:7, 0].tolist() == [0, 1, 0, 1, 0, 0, 1]
    assert named[:7, 1].tolist() == [1, 0, 1, 0, 1, 0, 0]
    w = Writer()
    value = w.storage(8, StorageKind.INPUT)
    for time in (10, 10, 100, 10):
        value = w.forward([value], 8, time=time)
    assert operator_classes(w.problem())[:, 0].tolist() == [0, 0, 1, 0]


def test_a_granularity_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="allowed is 1 or more"):
        Coop(granularity=0).plan(figure_2())


def test_the_same_run_gives_the_same_trace() -> None:
    rng = Random(3)
    problem = LIBRARY["residual"]
    budget = int(0.5 * SaveAll().plan(problem).peak_bytes)
    classes = operator_classes(problem)
    classes[:, 0] = np.array([rng.randrange(2) for _ in problem.graph.ops])
    first, second = (list(pool_traces(with_budget(problem, budget), classes, FEW)) for _ in range(2))
    assert first == second
