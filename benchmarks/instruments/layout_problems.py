"""Layouts to plan: published instances, the plans of this project, and made-up training steps of any size."""

from __future__ import annotations

import csv
from bisect import bisect, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from instruments.make_instances import INSTANCES
from remat_compiler.ir.layout import Block, LayoutProblem
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.lives import Life, OwnedLife, owned_lives
from remat_passes.planning.auto import Auto
from remat_passes.planning.save_all import SaveAll

PUBLISHED = INSTANCES / "minimalloc"
DEVICE_ALIGNMENT = 512
"""What torch's allocator for CUDA rounds to."""
SCALED_PEAK = 8 * 2**30
"""The instances are small, so that pages of 20 MiB would hide everything else: all sizes are multiplied by one whole
number, so that the step without recomputation takes about so many bytes."""


def published() -> Iterator[tuple[str, int, LayoutProblem]]:
    """Name, capacity and problem of MiniMalloc's instances."""
    for path in sorted(PUBLISHED.glob("*.csv")):
        name, capacity, _ = path.name.split(".")
        yield name, int(capacity), read_published(path)


def read_published(path: Path) -> LayoutProblem:
    """The problem in a file of MiniMalloc's form."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = [(int(row["lower"]), int(row["upper"]), int(row["size"])) for row in csv.DictReader(file)]
    return LayoutProblem(tuple(Block(*row) for row in rows))


@dataclass(frozen=True)
class PlannedStep:
    """One instance under one budget.

    Attributes:
        position: Where the budget stands, from the smallest peak (0) to the peak without recomputation (1).
        problem: The instance, with its budget.
        plan: Its plan.
        lives: All allocations, scaled.
        num_steps: Steps of the plan: what is never freed is held to the end.
    """

    position: float
    problem: RematProblem
    plan: Plan
    lives: tuple[OwnedLife, ...]
    num_steps: int

    def layout_problem(self) -> LayoutProblem:
        """The blocks to place."""
        return LayoutProblem(tuple(_block(one.life, self.num_steps) for one in self.lives), DEVICE_ALIGNMENT)


def _block(life: Life, num_steps: int) -> Block:
    return Block(life.made, num_steps if life.freed is None else life.freed, life.size_bytes)


def planned_steps(problem: RematProblem, positions: tuple[float, ...]) -> Iterator[PlannedStep]:
    """The instance as `auto` plans it at each position of the budget."""
    bare = replace(problem, reference=None)
    high = SaveAll().plan(bare).peak_bytes
    low = Auto().smallest_peak(replace(bare, budget_bytes=0)).peak_bytes
    for position in positions:
        asked = replace(bare, budget_bytes=low + round(position * (high - low)))
        plan = Auto().plan(asked).plan
        if plan is not None:
            yield planned_step(asked, plan, position, max(1, SCALED_PEAK // high))


def planned_step(problem: RematProblem, plan: Plan, position: float, scale: int = 1) -> PlannedStep:
    """What a plan allocates, with all sizes multiplied by `scale`."""
    lives = (
        replace(one, life=replace(one.life, size_bytes=scale * one.life.size_bytes))
        for one in owned_lives(problem, plan)
    )
    return PlannedStep(position, problem, plan, tuple(lives), len(plan.steps))


def made_up_step(num_blocks: int, seed: int = 0) -> LayoutProblem:
    """A training step of layers: each saves values for its backward, recomputes others, and leaves gradients."""
    rng = Random(seed)
    layers = max(1, num_blocks // 10)
    width = 64 * rng.randrange(2_000, 4_000)
    blocks: list[Block] = []
    end = 8 * layers
    for layer in range(layers):
        made, used = 4 * layer, end - 4 * layer
        size = width * rng.choice((1, 1, 2))
        # What the forward makes: saved to the backward, or gone after the next operators.
        blocks += [Block(made, used, size), Block(made + 1, made + 3, 4 * size), Block(made + 2, made + 4, size)]
        blocks.append(Block(made + 3, used if rng.random() < 0.5 else made + 5, 2 * size))
        # The backward: recomputed values, gradients of values, and those of parameters, which stay.
        blocks += [Block(used - 4, used - 1, 4 * size), Block(used - 3, used, size), Block(used - 2, used + 2, size)]
        blocks += [
            Block(used - 2, end, 64 * rng.randrange(1, 4_000)),
            Block(used - 1, end, 256),
            Block(made, used, 512),
        ]
    return LayoutProblem(tuple(blocks[:num_blocks]), DEVICE_ALIGNMENT)


def overlapping(problem: LayoutProblem, offsets: Sequence[int]) -> list[str]:
    """The first pair of blocks that collide, found by walking through time with the blocks alive sorted by address."""
    events = sorted(
        [(block.stop, 0, i) for i, block in enumerate(problem.blocks) if block.size_bytes]
        + [(block.start, 1, i) for i, block in enumerate(problem.blocks) if block.size_bytes]
    )
    alive: list[tuple[int, int]] = []
    for _, begins, i in events:
        here = (offsets[i], i)
        if not begins:
            alive.remove(here)
            continue
        k = bisect(alive, here)
        for offset, j in alive[max(k - 1, 0) : k + 1]:
            if offset < here[0] + problem.blocks[i].size_bytes and here[0] < offset + problem.blocks[j].size_bytes:
                return [f"blocks {i} and {j} share bytes"]
        insort(alive, here)
    return []
