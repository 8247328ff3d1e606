"""Layout problems drawn at random, and the simplest planner that answers them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from remat_compiler.ir.layout import Block, Layout, LayoutProblem

MOMENTS = 12


@dataclass(frozen=True)
class FirstFit:
    """Each block in turn at the lowest place that is free."""

    name: ClassVar[str] = "first_fit"

    def place(self, problem: LayoutProblem) -> Layout:
        offsets: list[int] = []
        for block in problem.blocks:
            beside = [
                (place, place + other.size_bytes)
                for other, place in zip(problem.blocks, offsets)
                if block.start < other.stop and other.start < block.stop
            ]
            ends = [0, *(-(-stop // problem.alignment_bytes) * problem.alignment_bytes for _, stop in beside)]
            offsets.append(min(at for at in ends if all(at + block.size_bytes <= a or b <= at for a, b in beside)))
        total = max((at + block.size_bytes for at, block in zip(offsets, problem.blocks)), default=0)
        return Layout(self.name, tuple(offsets), total)


def random_layout_problem(rng: Random) -> LayoutProblem:
    """Up to ten blocks."""
    blocks = []
    for _ in range(rng.randrange(11)):
        start = rng.randrange(MOMENTS)
        blocks.append(Block(start, rng.randint(start + 1, MOMENTS), rng.choice([0, 1, 64, rng.randrange(1_000)])))
    return LayoutProblem(tuple(blocks), rng.choice([1, 64]))
