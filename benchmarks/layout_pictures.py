"""The layout of a planned step before and after: as torch's allocator makes it, and as a layout planner does.

    python benchmarks/layout_pictures.py gpt2_medium_kernels 0.25 OUT.svg [--planner portfolio]

The allocator is the model of `devices.caching_allocator`, in the third of three equal steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from layout_problems import PlannedStep, planned_steps
from make_instances import INSTANCES, SUFFIX
from remat_compiler.devices.caching_allocator import CachingAllocator
from remat_compiler.ir.layout import LayoutPlanner
from remat_compiler.ir.problem_file import read_problem
from remat_compiler.report.layout_picture import BlockKind, DrawnBlock, DrawnLayout, block_kind, layout_svg
from remat_compiler.simulate.lives import Life
from remat_passes.layout.units import Units, largest_live
from remat_passes.registry import layout_planner_names, make_layout_planner

STEPS = 3
UNLIMITED_BYTES = 2**62


def online_layout(lives: Sequence[Life]) -> tuple[list[int], int]:
    """The address of each allocation in the last of some steps, and what the allocator has reserved by then."""
    allocator = CachingAllocator(UNLIMITED_BYTES)
    events = sorted(
        [(life.made, 1, n) for n, life in enumerate(lives)]
        + [(life.freed, 0, n) for n, life in enumerate(lives) if life.freed is not None]
    )
    addresses = [0] * len(lives)
    for _ in range(STEPS):
        blocks = {}
        for _, is_made, n in events:
            if is_made:
                blocks[n] = allocator.allocate(lives[n].size_bytes)
                addresses[n] = blocks[n].address
            else:
                allocator.free(blocks.pop(n))
        for block in blocks.values():
            allocator.free(block)
    return addresses, allocator.peak_reserved_bytes


def picture(name: str, step: PlannedStep, planner: LayoutPlanner) -> str:
    """Both layouts of a step, as SVG."""
    kinds = [block_kind(step.problem, step.plan, one) for one in step.lives]
    problem = step.layout_problem()
    least = largest_live(Units.of(problem)) * problem.alignment_bytes
    addresses, reserved = online_layout([one.life for one in step.lives])
    layout = planner.place(problem)
    blocks = _blocks(step, layout.offsets, kinds)
    drawn = [
        DrawnLayout("torch's caching allocator, while the step runs", reserved, _blocks(step, addresses, kinds)),
        DrawnLayout(f"planned before the step, by {planner.name}", layout.total_bytes, blocks),
    ]
    return layout_svg(f"Addresses in {name}, budget at {100 * step.position:g} % of its range", step.plan, least, drawn)


def _blocks(step: PlannedStep, offsets: Sequence[int], kinds: Sequence[BlockKind]) -> tuple[DrawnBlock, ...]:
    """The rectangles of one layout."""
    blocks = step.layout_problem().blocks
    return tuple(
        DrawnBlock(block.start, block.stop, offset, block.size_bytes, kind)
        for block, offset, kind in zip(blocks, offsets, kinds)
        if block.size_bytes
    )


def main() -> None:
    """Draw one picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("instance")
    parser.add_argument("position", type=float)
    parser.add_argument("out", type=Path)
    parser.add_argument("--planner", default="portfolio", choices=layout_planner_names())
    options = parser.parse_args()
    problem = read_problem(INSTANCES / f"{options.instance}{SUFFIX}")
    for step in planned_steps(problem, (options.position,)):
        svg = picture(options.instance, step, make_layout_planner(options.planner))
        options.out.write_text(svg, encoding="utf-8")


if __name__ == "__main__":
    main()
