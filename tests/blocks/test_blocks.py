"""Blocks: what repeats is cut alike, identical blocks are equal, and every chain of options is a valid plan."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from builders import LIBRARY, TRAINING, encoder_decoder, problems, residual, with_budget
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.rules import Rule
from remat_compiler.simulate.verify import verify
from remat_passes.blocks.chain import BlockChain, BlockOptionCache, Segmentation
from remat_passes.blocks.options import BlockOption, options_of_block
from remat_passes.blocks.repeats import Repeat, aligned_cuts, find_repeats
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.candidate import SequenceCandidate
from remat_passes.sequences.profile import KEPT, SIZE, TIME
from remat_passes.sequences.sequence import Placement, baseline_order

NO_LIMIT = 1 << 62


def cuttings_of(problem: RematProblem, *counts: int) -> list[Segmentation]:
    """The blocks of a problem."""
    search = SequenceSearch.of(problem, 100, 1)
    order = baseline_order(search.index, Placement.LAZY)
    return search.cuttings(order, search.base(order), counts)


def chains_of(problem: RematProblem, *counts: int) -> list[BlockChain]:
    """The chains of a problem, options from a short search."""
    library = BlockOptionCache(2)
    return [cutting.chain(library) for cutting in cuttings_of(problem, *counts)]


def test_runs_find_copies_between_other_operators() -> None:
    labels = np.array([9, 8, *[1, 2, 3, 4, 5] * 4, 7, 7, 6])
    assert find_repeats(labels) == [Repeat(0, 2, 0), Repeat(2, 22, 5), Repeat(22, 25, 0)]


@given(st.lists(st.integers(0, 3), max_size=40))
def test_runs_cover_all_and_repeat(labels: list[int]) -> None:
    runs = find_repeats(np.array(labels, np.int64))
    assert [run.start for run in runs[1:]] == [run.stop for run in runs[:-1]]
    assert not labels or (runs[0].start, runs[-1].stop) == (0, len(labels))
    for run in runs:
        if run.period:
            part = labels[run.start : run.stop]
            assert len(part) >= 2 * run.period
            assert part[run.period :] == part[: -run.period]


@given(st.integers(1, 12), st.integers(2, 9), st.integers(4, 12), st.integers(1, 60))
def test_copies_are_cut_alike(before: int, copies: int, period: int, count: int) -> None:
    """Every copy but the first and the last has its cuts at the same places, or is part of a block of several."""
    sizes = np.array([100] * before + [3 + k for k in range(period)] * copies)
    crossing = np.array([50] * before + [10 if k == 1 else 20 for k in range(period)] * copies + [0])
    cuts = aligned_cuts(sizes, crossing, [Repeat(0, before, 0), Repeat(before, len(sizes), period)], count)
    assert (np.diff(cuts) > 0).all()
    assert (cuts[0], cuts[-1]) == (0, len(sizes))
    inside = [int(cut) for cut in cuts if before + period <= cut < len(sizes) - period]
    places = Counter((cut - before) % period for cut in inside)
    assert max(places.values(), default=0) - min(places.values(), default=0) <= 1


def test_identical_layers_are_one_block() -> None:
    (cutting,) = cuttings_of(residual(blocks=30), 30)
    most = Counter(block.key for block in cutting.blocks).most_common(1)[0][1]
    assert most >= 26  # the first and the last meet other operators
    assert cutting.segments.count <= 33


def test_layers_of_other_costs_are_other_blocks() -> None:
    """Sizes are the same, but the first half of the forward takes longer."""
    problem = residual(blocks=20)
    times = tuple(2 * time if i < 50 else time for i, time in enumerate(problem.costs.time_ns))
    slower = replace(problem, costs=replace(problem.costs, time_ns=times))
    kinds = [len({block.key for block in cuttings_of(p, 20)[0].blocks}) for p in (problem, slower)]
    assert kinds[1] > kinds[0]


@pytest.mark.parametrize("family", LIBRARY)
def test_a_block_holds_its_operators_and_nothing_of_others(family: str) -> None:
    problem = LIBRARY[family]
    for cutting in cuttings_of(problem, 3, 8):
        s = cutting.segments
        for i, block in enumerate(cutting.blocks):
            own = [*s.forward[s.cuts[i] : s.cuts[i + 1]], *s.backward[s.stages[i + 1] : s.stages[i]]]
            assert [op for op in block.ops if op >= 0] == own
            assert block.g.ops[:, TIME].sum() == sum(problem.costs.time_ns[op] for op in own)
            made_elsewhere = block.g.storages[:, 1] < 0
            replayed = np.zeros(len(block.g.storages), np.bool_)
            replayed[block.g.ops[block.g.ops[:, 5] >= 0, 5]] = True
            assert not block.g.storages[made_elsewhere & ~replayed, SIZE].any()
            assert block.g.storages[made_elsewhere, KEPT].all()


@pytest.mark.parametrize("family", LIBRARY)
def test_options_are_a_pareto_set_of_whole_runs(family: str) -> None:
    for cutting in cuttings_of(LIBRARY[family], 4):
        for block in cutting.blocks:
            found = options_of_block(block, 3)
            options = found.options
            assert found.work > 0
            assert options[0].added_ns == 0
            assert all(not a.beats(b) for a in options for b in options if a is not b)
            for option in options:
                assert_runs_everything(block.forward, len(block.ops), option)


def assert_runs_everything(forward: int, count: int, option: BlockOption) -> None:
    """What `rest` and `arrive` stand for is left out, all else runs; the forward needs nothing of the stage."""
    assert set(option.forward.tolist()) | set(option.stage.tolist()) == set(range(count)) - {forward, forward + 1}
    assert option.save_bytes >= 0


@pytest.mark.parametrize("family", TRAINING)
@pytest.mark.parametrize("fraction", [0.4, 0.7])
def test_sequences_of_a_chain_are_valid_plans(family: str, fraction: float) -> None:
    problem = LIBRARY[family]
    search = SequenceSearch.of(problem, 100, 1)
    base = search.base(baseline_order(search.index, Placement.LAZY))
    seen = 0
    for chain in chains_of(problem, 3, 6, 12):
        for steps, boundary in chain.sequences(int(fraction * base.peak), base.peak):
            entry = SequenceCandidate.of(search.g, steps, boundary, NO_LIMIT)
            found = verify(with_budget(problem, entry.peak), entry.plan(), entry.peak)
            assert {violation.rule for violation in found} <= {Rule.SAVED}
            seen += 1
    assert seen


@given(problem=problems(), budget=st.sampled_from([0.3, 0.6, 0.9]))
def test_random_graphs_in_blocks_are_valid_plans(problem: RematProblem, budget: float) -> None:
    search = SequenceSearch.of(problem, 100, 1)
    base = search.base(baseline_order(search.index, Placement.LAZY))
    for chain in chains_of(problem, 2, 4):
        for steps, boundary in chain.sequences(int(budget * base.peak), base.peak):
            entry = SequenceCandidate.of(search.g, steps, boundary, NO_LIMIT)
            found = verify(with_budget(problem, entry.peak), entry.plan(), entry.peak)
            assert {violation.rule for violation in found} <= {Rule.SAVED}


def test_options_serve_every_budget() -> None:
    """A library that has served one budget does no more work for another."""
    (cutting,) = cuttings_of(encoder_decoder(layers=12), 8)
    library = BlockOptionCache(3)
    first = cutting.chain(library)
    work = library.work
    second = cutting.chain(library)
    assert library.work == work
    assert (first.option_bytes == second.option_bytes).all()
