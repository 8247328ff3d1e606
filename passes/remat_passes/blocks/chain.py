"""A chain of blocks with the options of each: tables for the block DP, and sequences from its decisions.

    order   ── cuts ──►  blocks  ── options, identical blocks once ──►  tables  ── block DP ──►  sequences

The options of a block do not depend on the budget, so a library of them serves any number of budgets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from remat_passes.blocks.dp import UNITS, fill_tables, instructions
from remat_passes.blocks.known_options import KNOWN
from remat_passes.blocks.options import BlockOption, Options
from remat_passes.blocks.problem import Block, Blocks
from remat_passes.blocks.repeats import aligned_cuts, find_repeats, labels_of
from remat_passes.blocks.segments import Flow, Segments
from remat_passes.sequences.profile import REPEATABLE, Arrays, IntArray, drop_dead_steps

LOWEST_FACTOR, LARGEST_FACTOR, FACTORS = 0.8, 1.3, 50
"""Memory that the block DP may use over the budget, since its estimates are off by that much either way."""
WORK_PER_TURN = 200
"""Work of one turn of the search for the options of a block, for each of its operators."""
MOST_TURNS = 200
DP_WORK = 300
"""Entries of the tables of the block DP that take as long as one step visited."""


@dataclass(slots=True, eq=False)
class BlockOptionCache:
    """Options of blocks seen so far.

    Attributes:
        turns: Turns of the search for each option.
        known: Options by the key of the block.
        work: Work done for them (about steps visited), by whichever search it was done.
    """

    turns: int
    known: dict[bytes, Options] = field(default_factory=dict)
    work: int = 0

    def options(self, block: Block) -> tuple[BlockOption, ...]:
        """The options of `block`."""
        key = block.key
        if key not in self.known:
            self.known[key] = KNOWN.of(block, self.turns)
            self.work += self.known[key].work
        return self.known[key].options


@dataclass(frozen=True, slots=True, eq=False)
class Segmentation:
    """Blocks in order, without options yet.

    Attributes:
        g: The problem.
        segments: Places of the blocks.
        blocks: The blocks.
    """

    g: Arrays
    segments: Segments
    blocks: tuple[Block, ...]

    def chain(self, library: BlockOptionCache) -> BlockChain:
        """The same with options."""
        options = tuple(library.options(block) for block in self.blocks)
        table = np.zeros((4, len(options), max(map(len, options))), np.int64)
        for i, (block, own) in enumerate(zip(self.blocks, options)):
            rows = [(o.save_bytes, o.added_ns, o.stage_peak + block.state_bytes, o.run_peak) for o in own]
            # Blocks with fewer options repeat their last one, which changes no optimum.
            table[:, i] = np.array([*rows, *[rows[-1]] * (table.shape[2] - len(rows))], np.int64).T
        return BlockChain(self.g, self.segments, self.blocks, options, table[0], table[1], table[2], table[3])


@dataclass(frozen=True, slots=True, eq=False)
class BlockChain:
    """Blocks in order, with options.

    Attributes:
        g: The problem.
        segments: Places of the blocks.
        blocks: The blocks.
        options: Options of each block.
        option_bytes: ``[i, o]``: bytes that option `o` of block `i` saves beyond those held.
        option_ns: Time beyond running every operator of the block once.
        option_peak: Bytes that stage `i` needs beyond those held at `i`, the backward's own state included.
        run_peak: Bytes that running block `i` needs beyond those held at `i`.
    """

    g: Arrays
    segments: Segments
    blocks: tuple[Block, ...]
    options: tuple[tuple[BlockOption, ...], ...]
    option_bytes: IntArray
    option_ns: IntArray
    option_peak: IntArray
    run_peak: IntArray

    @property
    def work(self) -> int:
        """Work of one table (about steps visited)."""
        return self.segments.count**3 * UNITS // DP_WORK

    def sequences(self, budget: int, highest: int) -> Iterator[tuple[IntArray, int]]:
        """Sequences with their boundaries for amounts of memory around `budget` bytes, as the DP estimates them.

        If nothing fits near it, for the least memory that the tables find feasible, up to `highest` bytes.
        """
        target, last = budget, self.segments.count - 1
        choice, unit = self._table(target)
        if target == 0 or choice[0, last, -1] < 0:
            # A coarse table up to `highest` finds the least memory, a second one resolves the range around it.
            choice, unit = self._table(highest)
            able = np.flatnonzero(choice[0, last] >= 0)
            if not len(able):
                return
            target = (int(able[0]) + 1) * unit
            choice, unit = self._table(target)
        seen: set[bytes] = set()
        for factor in np.linspace(LOWEST_FACTOR, LARGEST_FACTOR, FACTORS):
            memory = min(int(target * factor / unit), UNITS - 1)
            codes = instructions(self.segments.held, self.option_bytes, choice, unit, memory)
            # Neighbouring amounts of memory often lead to the same decisions.
            if len(codes) and codes.tobytes() not in seen:
                seen.add(codes.tobytes())
                yield self._expand(codes)

    def _table(self, target: int) -> tuple[IntArray, int]:
        """Choices of the block DP for up to `LARGEST_FACTOR` times `target` bytes, and the bytes of one unit."""
        unit = max(int(target * LARGEST_FACTOR) // UNITS, 1)
        s = self.segments
        columns = (self.option_bytes, self.option_ns, self.option_peak, self.run_peak)
        return fill_tables(s.run_ns, s.held, *columns, s.state, unit, UNITS)[1], unit

    def _expand(self, codes: IntArray) -> tuple[IntArray, int]:
        """The sequence of `codes`, see `instructions`, and its boundary."""
        s, size, boundary = self.segments, 0, -1
        parts: list[IntArray] = []
        ran = np.zeros(len(self.g.ops), np.bool_)
        for i, code in codes.tolist():
            # The first stage begins the backward.
            if code >= 0 and boundary < 0:
                boundary = size
            if code == -1:
                steps = s.forward[s.cuts[i] : s.cuts[i + 1]]
            else:
                # A code above the block's own options names a repeated last one.
                option = self.options[i][min(code if code >= 0 else -2 - code, len(self.options[i]) - 1)]
                steps = self.blocks[i].ops[option.stage if code >= 0 else option.forward]
            # A block may run several times, operators that must not repeat only the first time.
            if code < 0:
                steps = steps[(self.g.ops[steps, REPEATABLE] == 1) | ~ran[steps]]
                ran[steps] = True
            parts.append(steps)
            size += len(steps)
        # Operators of the backward that read no managed value from there on belong to no stage.
        parts.append(s.backward[s.stages[0] :])
        return drop_dead_steps(self.g, np.concatenate(parts), size if boundary < 0 else boundary)


def cuttings(g: Arrays, flow: Flow, counts: Iterable[int]) -> list[Segmentation]:
    """The forward of `flow` in about as many blocks as each of `counts`; repeated parts become identical blocks."""
    runs = find_repeats(labels_of(g, flow.forward))
    found: dict[bytes, Segmentation] = {}
    for count in counts:
        cuts = aligned_cuts(flow.sizes, flow.crossing, runs, count)
        # One block alone leaves the DP nothing to decide.
        if len(cuts) > 2 and cuts.tobytes() not in found:
            segments = flow.segments(cuts)
            maker = Blocks(g, flow, segments)
            found[cuts.tobytes()] = Segmentation(g, segments, tuple(maker.block(i) for i in range(segments.count)))
    return list(found.values())


def turns_within(cuttings: Sequence[Segmentation], work: int) -> int:
    """Turns of the search for each option, so that the options of all blocks take about `work`."""
    # Identical blocks are solved once, so they count once.
    sizes = {block.key: len(block.ops) for cutting in cuttings for block in cutting.blocks}
    return min(work // (WORK_PER_TURN * max(sum(sizes.values()), 1)), MOST_TURNS)
