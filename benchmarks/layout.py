"""Arenas of all layout planners beside the largest live bytes, which no arena can be below.

    python benchmarks/layout.py [--parts published plans sizes] [--planners portfolio exact] [--instances '*_kernels']
                                [--positions 0.75 0.05] [--json OUT.json]

- `published`: MiniMalloc's eleven instances, made to be hard; `exact` is given their capacity, as MiniMalloc is.
- `plans`: the plans of `auto` for the instances of ``benchmarks/instances/`` at positions between the smallest peak (0)
  and that without recomputation (1), beside what torch's allocator reserves for the same allocations over three steps,
  with plain and with expandable segments.
- `sizes`: made-up training steps, for the time that it takes.

Beside them stands the default allocator of the library omnimalloc, where that is installed.

Every layout is checked.  Bytes over the largest live bytes are in percent; seconds are of one thread.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import ClassVar

import numpy as np

from instruments.layout_problems import PlannedStep, made_up_step, overlapping, planned_steps, published
from instruments.make_instances import instance_name, instance_paths
from instruments.problem_file import read_problem
from remat_compiler.ir.layout import Layout, LayoutPlanner, LayoutProblem
from remat_compiler.simulate.reserved import AllocationTrace, reserved_bytes
from remat_compiler.simulate.verify_layout import layout_defects
from remat_passes.layout.exact import Exact
from remat_passes.layout.portfolio import Portfolio
from remat_passes.layout.units import Units, largest_live

POSITIONS = (1.0, 0.75, 0.5, 0.25, 0.05)
SIZES = (100, 300, 1_000, 3_000, 10_000, 20_000)
CHECKED_BLOCKS = 6_000
"""Blocks up to which every pair is compared; beyond, `overlapping` sweeps over the moments."""
UNLIMITED_BYTES = 2**62
PLANNERS: dict[str, LayoutPlanner] = {planner.name: planner for planner in (Portfolio(), Exact())}


@dataclass(frozen=True)
class Row:
    """One layout.

    Attributes:
        part: Part of the benchmark.
        name: The problem.
        position: Position of its budget; 0 where there is none.
        blocks: Its blocks.
        live_bytes: Its largest live bytes, in whole units of the alignment.
        planner: Who placed them.
        arena_bytes: What they take.
        seconds: Time to place them.
    """

    part: str
    name: str
    position: float
    blocks: int
    live_bytes: int
    planner: str
    arena_bytes: int
    seconds: float

    @property
    def over_percent(self) -> float:
        """Bytes beyond those that are alive at once, in percent of them."""
        # An arena may end within the last unit of its alignment, which the live bytes count as a whole.
        return max(0.0, 100 * (self.arena_bytes / max(self.live_bytes, 1) - 1))


def _placed(planner: LayoutPlanner, problem: LayoutProblem) -> tuple[int, float]:
    """Bytes and seconds of a layout, which is checked."""
    start = time.perf_counter()
    layout = planner.place(problem)
    seconds = time.perf_counter() - start
    if len(problem.blocks) <= CHECKED_BLOCKS:
        defects = layout_defects(problem, layout)
    else:
        defects = overlapping(problem, layout.offsets)
    if defects:
        raise SystemExit(f"{planner.name}: {defects[0]}")
    return layout.total_bytes, round(seconds, 4)


def live_bytes(problem: LayoutProblem) -> int:
    """The largest live bytes, in whole units of the alignment."""
    return largest_live(Units.of(problem)) * problem.alignment_bytes


@dataclass(frozen=True)
class Omnimalloc:
    """The library's own choice of several orders."""

    name: ClassVar[str] = "omnimalloc"

    def place(self, problem: LayoutProblem) -> Layout:
        """Answer `problem`, in whole units of the alignment."""
        from omnimalloc import Allocation, allocate

        units = Units.of(problem)
        asked = zip(units.size.tolist(), units.start.tolist(), units.stop.tolist())
        placed = allocate(tuple(Allocation(i, *one) for i, one in enumerate(asked)))
        by_id = {one.id: one.offset or 0 for one in placed}
        return units.layout(self.name, np.array([by_id[i] for i in range(len(units))], np.int64))


def published_rows(planners: Sequence[LayoutPlanner]) -> Iterator[list[Row]]:
    """MiniMalloc's instances."""
    for name, capacity, problem in published():
        least, rows = live_bytes(problem), []
        for planner in planners:
            found = replace(planner, capacity_bytes=capacity) if isinstance(planner, Exact) else planner
            rows.append(Row("published", name, 0, len(problem.blocks), least, planner.name, *_placed(found, problem)))
        yield rows


def plan_rows(
    planners: Sequence[LayoutPlanner], patterns: Sequence[str], positions: tuple[float, ...]
) -> Iterator[list[Row]]:
    """This project's plans."""
    paths = {path for pattern in patterns for path in instance_paths(pattern)}
    for path in sorted(paths, key=lambda path: (path.stat().st_size, path.name)):
        for step in planned_steps(read_problem(path), positions):
            yield rows_of_step(instance_name(path), step, planners)


def rows_of_step(name: str, step: PlannedStep, planners: Sequence[LayoutPlanner]) -> list[Row]:
    """The rows of one planned step: by every planner, and by the models of the allocator."""
    problem = step.layout_problem()
    shared = ("plans", name, step.position, len(problem.blocks), live_bytes(problem))
    rows = [Row(*shared, planner.name, *_placed(planner, problem)) for planner in planners]
    trace = AllocationTrace((), (), tuple(one.life for one in step.lives))
    for kind, expandable in (("segments", False), ("expandable", True)):
        rows.append(Row(*shared, kind, reserved_bytes(trace, UNLIMITED_BYTES, expandable=expandable), 0))
    return rows


def size_rows(planners: Sequence[LayoutPlanner]) -> Iterator[list[Row]]:
    """Made-up steps."""
    for size in SIZES:
        problem = made_up_step(size)
        least = live_bytes(problem)
        yield [Row("sizes", str(size), 0, size, least, p.name, *_placed(p, problem)) for p in planners]


def line(rows: Sequence[Row]) -> str:
    """What is printed for the rows of one problem."""
    first = rows[0]
    where = f" at {first.position:4.2f}" if first.part == "plans" else ""
    each = "  ".join(
        f"{row.planner} {row.over_percent:+.2f} %" + (f" {row.seconds:.2f} s" if row.seconds else "") for row in rows
    )
    return f"{first.name}{where}: {first.blocks} blocks, {first.live_bytes / 1e6:.3f} MB  {each}"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """A line for each planner and position: mean and worst of what is beyond the live bytes, and how many are near."""
    groups: dict[tuple[str, str, float], list[Row]] = defaultdict(list)
    for row in rows:
        groups[row.part, row.planner, row.position].append(row)
    for (part, planner, position), own in sorted(groups.items()):
        over = sorted(row.over_percent for row in own)
        yield (
            f"{part:10} {planner:11} at {position:4.2f}: {len(own):3} layouts, mean {sum(over) / len(over):+6.2f} %, "
            f"median {over[len(over) // 2]:+6.2f} %, worst {over[-1]:+6.2f} %, "
            f"at the bound {sum(o <= 0 for o in over):3}, at most 1 % over {sum(o <= 1 for o in over):3}, "
            f"longest {max(row.seconds for row in own):6.2f} s"
        )


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="*", default=["published", "plans", "sizes"])
    parser.add_argument("--planners", nargs="*", default=list(PLANNERS), choices=list(PLANNERS))
    parser.add_argument("--instances", nargs="*", default=["*"], help="globs of instance names")
    parser.add_argument("--positions", nargs="*", type=float, default=list(POSITIONS))
    parser.add_argument("--work", type=int, default=2_000_000_000, help="what `exact` may do for each problem")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = [PLANNERS[name] for name in options.planners]
    planners = [replace(planner, work=options.work) if isinstance(planner, Exact) else planner for planner in chosen]
    if find_spec("omnimalloc"):
        planners.append(Omnimalloc())
    makers = {
        "published": lambda: published_rows(planners),
        "plans": lambda: plan_rows(planners, options.instances, tuple(options.positions)),
        "sizes": lambda: size_rows(planners),
    }
    for planner in planners:
        # Loops are loaded, or compiled, before any time is taken.
        planner.place(made_up_step(40))
    rows: list[Row] = []
    for part in options.parts:
        for own in makers[part]():
            print(line(own), flush=True)
            rows += own
            if options.json:
                text = ",\n".join(json.dumps(asdict(row)) for row in rows)
                options.json.write_text(f"[\n{text}\n]\n", encoding="utf-8")
    print("\n".join(["", *summary(rows)]))


if __name__ == "__main__":
    main()
