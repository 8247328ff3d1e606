"""Ways to run one block: a Pareto set over bytes saved, added time, and the peaks of its stage and of its run.

Each option is a sequence of the block's own problem (see `problem`), so it may recompute a value several times, in
the order that suits the stage.  The search begins with the option that saves all: step by step less may be saved, and
each sequence starts the search for the next; then the stage may peak less and less in options that save little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from remat_passes.blocks.problem import Block
from remat_passes.moves.climb import climb
from remat_passes.moves.gap_greedy import evict_until_fits
from remat_passes.moves.trim import trim
from remat_passes.sequences.jit import compiled
from remat_passes.sequences.profile import TIME, Arrays, IntArray, find_live

LEVELS = 12
"""Steps between all that may be saved and nothing."""
LOWER = (0.6, 0.3, 0.0)
"""Limits of the peak of the stage to try, from the lowest found (0) to the one without a limit (1) ..."""
LOWER_AT = (0.0, 0.25, 0.5)
"""... for options that save these parts of all that may be saved."""
OPTIONS = 24
"""Options of a block at most."""
TURNS = 12
"""Turns of `climb` for each."""
PATIENCE, MAX_PASSES = 8, 20
ANY_TIME = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class BlockOption:
    """One way to run a block.

    Attributes:
        forward: Operators of the block to run in the forward.
        stage: Operators of the block to run in its stage.
        save_bytes: Bytes that it saves beyond those that other blocks need.
        added_ns: Time beyond running every operator once.
        run_peak: Most bytes of the block's results alive at once in the forward.
        stage_peak: Most bytes alive at once in the stage, without those that the backward holds throughout it.
    """

    forward: IntArray
    stage: IntArray
    save_bytes: int
    added_ns: int
    run_peak: int
    stage_peak: int

    def beats(self, other: BlockOption) -> bool:
        """Whether it is at least as good in everything; equal options beat each other."""
        return (
            self.added_ns <= other.added_ns
            and self.save_bytes <= other.save_bytes
            and self.stage_peak <= other.stage_peak
            and self.run_peak <= other.run_peak
        )


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a block, least time first, and the work done (about steps visited)."""

    options: tuple[BlockOption, ...]
    work: int


def options_of_block(block: Block, turns: int = TURNS) -> Options:
    """The Pareto set of `block`; the first option saves all."""
    finder = _Finder(block, turns)
    return Options(tuple(_pareto(list(finder.run()))), finder.work)


@compiled
def fitted(
    g: Arrays, steps: IntArray, boundary: int, budget: int, once: int, turns: int, seed: int
) -> tuple[IntArray, int, int]:
    """A sequence that fits `budget`, or comes near, and is cheap; its boundary, and the work done.

    In one piece, since blocks are so small that calls from Python would take longer.
    """
    steps, boundary, peak, work = evict_until_fits(g, steps, boundary, budget, 0.5, 1, 0.0, seed, PATIENCE, ANY_TIME)
    # A sequence over the budget may be trimmed up to its own peak: it gets cheaper, and is an option still.
    steps, boundary, passes = trim(g, steps, boundary, max(budget, peak), MAX_PASSES)
    work += 2 * passes * len(steps)
    # Climbing keeps to the budget, so it needs a sequence within it.
    if peak <= budget:
        found = climb(g, steps, boundary, budget, ANY_TIME, once, turns, seed)
        steps, boundary, work = found[0], found[1], work + found[4]
    return steps, boundary, work


class _Finder:
    """Finds the options of one block."""

    def __init__(self, block: Block, turns: int) -> None:
        self.block, self.turns = block, turns
        self.once = int(block.g.ops[:, TIME].sum())
        self.work = 0
        self.seed = 1

    def run(self) -> Iterator[BlockOption]:
        """Options in no particular order, the one that saves all first."""
        block = self.block
        start = (block.steps, block.forward + 1)
        everything = self._option(*start)
        yield everything
        # A budget of nothing drives the peak as low as evictions can.
        lowest, boundary = self._fitted(block.limited(0, 0), *start, 0)
        # More than any option needs: only the bytes saved are limited at first.
        high = 2 * max(everything.stage_peak, everything.run_peak, 1) + everything.save_bytes + block.through_bytes
        floor = max(int(find_live(block.g, lowest, boundary).max()), 1)
        sequences = {}
        now = start
        for level in range(LEVELS - 1, -1, -1):
            save = block.through_bytes + everything.save_bytes * level // LEVELS
            now = self._fitted(block.limited(high, save), *now, high)
            sequences[level] = now
            yield self._option(*now)
        # Options that save little are the ones whose stage recomputes much, and so peaks high.
        for part in LOWER_AT:
            now = sequences[int(part * LEVELS)]
            option = self._option(*now)
            top = max(option.stage_peak, option.run_peak)
            for share in LOWER:
                peak = floor + int(share * (top - floor))
                now = self._fitted(block.limited(peak, option.save_bytes + block.through_bytes), *now, peak)
                yield self._option(*now)

    def _fitted(self, g: Arrays, steps: IntArray, boundary: int, budget: int) -> tuple[IntArray, int]:
        """A sequence that fits `budget`, or comes near, and is cheap."""
        self.seed += 1
        steps, boundary, work = fitted(g, steps, boundary, budget, self.once, self.turns, self.seed)
        self.work += int(work)
        return steps, int(boundary)

    def _option(self, steps: IntArray, boundary: int) -> BlockOption:
        """The option that a sequence stands for."""
        live = find_live(self.block.g, steps, boundary)
        rest = int(np.flatnonzero(steps == self.block.forward)[0])
        # `rest` parts the forward from the stage; `arrive` is no operator of the whole problem.
        behind = steps[rest + 1 :]
        return BlockOption(
            forward=steps[:rest],
            stage=behind[behind != self.block.forward + 1],
            save_bytes=int(live[rest]) - self.block.through_bytes,
            added_ns=int(self.block.g.ops[steps, TIME].sum()) - self.once,
            run_peak=int(live[:rest].max(initial=0)),
            stage_peak=int(live[rest + 1 :].max(initial=0)),
        )


def _pareto(options: Sequence[BlockOption]) -> list[BlockOption]:
    """The options that no other beats, least time first; if there are too many, evenly spread over that order."""
    ranked = sorted(options, key=lambda o: (o.added_ns, o.save_bytes, o.stage_peak, o.run_peak))
    found: list[BlockOption] = []
    # No later option has less time, so only earlier ones can beat it.
    for option in ranked:
        if not any(other.beats(option) for other in found):
            found.append(option)
    if len(found) > OPTIONS:
        found = [found[round(k * (len(found) - 1) / (OPTIONS - 1))] for k in range(OPTIONS)]
    return found
