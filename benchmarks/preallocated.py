"""One allocation of a step's peak, made before the first step and freed at once: what is reserved afterwards?

    python benchmarks/fragmentation.py --models gpt2 unet --positions 0.5 --steps FOLDER    # emits the steps
    python benchmarks/preallocated.py FOLDER gpt2 unet

torch's caching allocator then serves all later requests of its large pool from that one segment.  Steps are those of
`fragmentation`, scaled to 8 GiB; lengths are six in a row, and two in turns.  Figures are bytes reserved over the most
in use, by the model of the allocator, on top of what is resident and of Adam's state: without, with the peak, and with
the size between it and 1.13 of it (and the state besides) by which least is reserved.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from emitted_steps import EmittedStep, stored
from layout_problems import SCALED_PEAK
from remat_compiler.devices.caching_allocator import CachingAllocator
from remat_compiler.devices.expandable_segments import ExpandableAllocator
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import run_steps

KINDS = {"plain": CachingAllocator, "expandable": ExpandableAllocator}
ROUNDS = 3
LARGER = tuple(i / 100 for i in range(14))


def reserved_bytes(step: EmittedStep, lives: Sequence[Sequence[Life]], kind: str, first_bytes: int) -> tuple[int, int]:
    """Most in use in a step, and most reserved, if `first_bytes` are allocated and freed before all steps."""
    allocator, alone = KINDS[kind](2**62), KINDS[kind](2**62)
    for size in step.resident:
        allocator.allocate(size)
    if first_bytes:
        allocator.free(allocator.allocate(first_bytes))
    in_use = max(run_steps((), step.state, lives, allocator))
    for size in (*step.resident, *step.state):
        alone.allocate(size)
    return in_use, allocator.peak_reserved_bytes - alone.allocated_bytes


def row(name: str, step: EmittedStep, lives: Sequence[Sequence[Life]], kind: str) -> str:
    """One line of the table."""
    peak, without = reserved_bytes(step, lives, kind, 0)
    _, exact = reserved_bytes(step, lives, kind, peak)
    sizes = [int((1 + more) * peak) + sum(step.state) for more in LARGER]
    best = min(reserved_bytes(step, lives, kind, size)[1] for size in sizes)
    return f"| {name} | {kind} | {without / peak:.3f} | {exact / peak:.3f} | {best / peak:.3f} |"


def rows(folder: Path, name: str) -> list[str]:
    """The lines of one model."""
    found = []
    for file in sorted(folder.glob(f"{name}*.json")):
        steps: dict[str, EmittedStep] = stored(file, dict)
        scale = max(1, SCALED_PEAK // max(step.peak_bytes for step in steps.values()))
        scaled = [step.scaled(scale) for step in steps.values()]
        largest = max(scaled, key=lambda step: step.peak_bytes)
        if file.stem.endswith("_changing"):
            series = {"six lengths": scaled[:6], "two lengths": scaled[:2]}
        else:
            series = {f"budget at {key}": [step] for key, step in zip(steps, scaled)}
        for what, some in series.items():
            lives = [step.lives for step in some] * ROUNDS
            found += [row(f"{name}, {what}", largest if len(some) > 1 else some[0], lives, kind) for kind in KINDS]
    return found


def main() -> None:
    """Print the table."""
    folder, *names = sys.argv[1:]
    print("| steps | segments | as it is | the peak before | the best size before |\n|---|---|--:|--:|--:|")
    for name in names:
        print("\n".join(rows(Path(folder), name)), flush=True)


if __name__ == "__main__":
    main()
