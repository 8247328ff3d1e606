"""Options that are remembered are those that a search would find, and what they take is bounded."""

from __future__ import annotations

import numpy as np

from builders import encoder_decoder
from remat_passes.blocks.chain import BlockOptionCache
from remat_passes.blocks.known_options import KnownOptions
from remat_passes.blocks.options import options_of_block
from remat_passes.blocks.problem import Block
from remat_passes.search.sequence_search import SequenceSearch
from remat_passes.sequences.sequence import Placement, baseline_order


def blocks() -> tuple[Block, ...]:
    """Different blocks of one problem."""
    search = SequenceSearch.of(encoder_decoder(layers=6), 100, 1)
    order = baseline_order(search.index, Placement.LAZY)
    (cutting,) = search.cuttings(order, search.base(order), [4])
    return tuple({block.key: block for block in cutting.blocks}.values())


def test_what_is_remembered_is_what_would_be_found() -> None:
    known, (block, other, *_) = KnownOptions(1 << 20), blocks()
    first = known.of(block, 2)
    anew = options_of_block(block, 2)
    assert first.work == anew.work
    for one, same in zip(first.options, anew.options, strict=True):
        assert np.array_equal(one.forward, same.forward)
        assert np.array_equal(one.stage, same.stage)
    assert known.of(block, 2) is first
    assert known.of(block, 3) is not first
    assert known.of(other, 2) is not first


def test_without_room_nothing_is_remembered() -> None:
    known, (block, *_) = KnownOptions(1), blocks()
    assert known.of(block, 2) is not known.of(block, 2)


def test_the_one_that_was_not_asked_for_for_longest_makes_room() -> None:
    block, other, *_ = blocks()
    # Room for either, and not for both.
    known = KnownOptions(5_000)
    first = known.of(block, 2)
    assert known.of(block, 2) is first
    second = known.of(other, 2)
    assert known.of(other, 2) is second
    assert known.of(block, 2) is not first


def test_work_is_charged_whoever_did_it() -> None:
    block, *_ = blocks()
    libraries = [BlockOptionCache(2) for _ in range(2)]
    for library in libraries:
        library.options(block)
    assert libraries[0].work == libraries[1].work > 0
