"""What torch's caching allocator reserves above what is alive, with values where it puts them and at planned offsets.

    python benchmarks/fragmentation.py [--models gpt2 unet] [--positions 0.75 0.5 0.25 0.05] [--parts steps lengths]
                                       [--steps FOLDER] [--json OUT.json] [--picture OUT.svg]

- `steps`: five steps with Adam, whose state comes at the end of the first one while gradients are there; gradients and
  outputs are freed after each step.  Budgets at positions between the smallest peak (0) and that without a budget (1).
- `lengths`: six lengths in a row, from half of the longest on, each a step of its own sizes, emitted under one budget
  in bytes: the one that stands at 0.25 for the longest.

Steps are planned and emitted by the backend on the CPU, kernels are left out, and the allocator is its model: nothing
is run.  Each step comes twice, as it is and with all sizes multiplied by one whole number, so that its peak is about
8 GiB: the models are small, and segments of 20 MiB would hide everything else.

`--steps` keeps the emitted steps, and reads those that are there: then only arenas are chosen anew.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from emitted_steps import EmittedStep, has_length, steps_at, steps_of_lengths, stored
from fragmentation_tables import LengthsRow, Reserved, StepRow, lengths_tables, picture, step_tables
from layout_problems import SCALED_PEAK
from placed_steps import PlacedStep, alive_bytes, scaled
from remat_compiler.simulate.lives import Life
from remat_compiler.simulate.reserved import figures_of_steps
from zoo import build, names

POSITIONS = (0.75, 0.5, 0.25, 0.05)
STEPS = 5
LENGTHS = (0.75, 1.0, 0.5, 0.9, 0.6, 0.8)
LENGTHS_POSITION = 0.25


def step_rows(model: str, position: float, placed: PlacedStep) -> Iterator[StepRow]:
    """The rows of one step, as it is and scaled."""
    for scale in (1, max(1, SCALED_PEAK // placed.step.peak_bytes)):
        plain, planned = placed.reserved(STEPS, scale)
        plain_stateless, planned_stateless = placed.reserved(STEPS, scale, optimizer=False)
        yield StepRow(
            model=model,
            position=position,
            scale=scale,
            alive_bytes=alive_bytes(placed.step.lives, scale),
            plain=plain,
            planned=planned,
            plain_stateless=plain_stateless,
            planned_stateless=planned_stateless,
            used=placed.used(scale),
            arenas=len(placed.arenas.sizes),
            covered_percent=placed.covered_percent,
            arena_ratio=placed.arena_ratio,
            packing_ratio=placed.packing_ratio,
            at_peak=placed.at_peak(),
        )


def lengths_rows(model: str, steps: Mapping[str, EmittedStep]) -> Iterator[LengthsRow]:
    """The rows of a sequence of lengths, as it is and scaled."""
    placed = [PlacedStep.of(step) for step in steps.values()]
    resident = shared_resident(list(steps.values()))
    # What only some lengths have is their batch.
    batches = [
        [Life(size, 0) for size in (Counter(one.resident) - Counter(resident)).elements()] for one in steps.values()
    ]
    state = placed[0].step.state
    for scale in (1, max(1, SCALED_PEAK // max(one.step.peak_bytes for one in placed))):
        used = [one.used(scale) for one in placed]

        def reserved(with_arenas: Sequence[bool], scale: int = scale) -> Reserved:
            chosen = [one.planned if arenas else one.step.lives for one, arenas in zip(placed, with_arenas)]
            rows = [scaled([*batch, *lives], scale) for batch, lives in zip(batches, chosen)]
            figures = figures_of_steps([scale * size for size in resident], [scale * size for size in state], rows)
            return Reserved(figures.reserved_bytes, figures.expandable_bytes)

        each = zip(batches, placed)
        yield LengthsRow(
            model=model,
            scale=scale,
            lengths=tuple(steps),
            budget_bytes=placed[0].step.budget_bytes,
            alive_bytes=max(alive_bytes([*batch, *one.step.lives], scale) for batch, one in each),
            plain=reserved([False] * len(placed)),
            planned=Reserved(
                reserved([segments for segments, _ in used]).segments,
                reserved([expandable for _, expandable in used]).expandable,
            ),
            throughout=reserved([True] * len(placed)),
            used=(sum(segments for segments, _ in used), sum(expandable for _, expandable in used)),
        )


def shared_resident(steps: Sequence[EmittedStep]) -> list[int]:
    """Sizes of what is resident at all lengths: parameters and buffers."""
    common = Counter(steps[0].resident)
    for step in steps[1:]:
        common &= Counter(step.resident)
    found = []
    for size in steps[0].resident:
        if common[size]:
            common[size] -= 1
            found.append(size)
    return found


def rows_of(name: str, options: argparse.Namespace, folder: Path) -> Iterator[StepRow | LengthsRow]:
    """The rows of one model; its steps are taken from the folder, or emitted and put there."""
    positions = sorted({*options.positions, LENGTHS_POSITION}, reverse=True)
    steps = stored(folder / f"{name}.json", lambda: steps_at(name, positions))
    if "steps" in options.parts:
        for key, step in steps.items():
            if float(key) in options.positions:
                yield from step_rows(name, float(key), PlacedStep.of(step))
    longest = steps.get(str(LENGTHS_POSITION))
    if "lengths" not in options.parts or longest is None or not has_length(build(name).inputs):
        return
    path = folder / f"{name}_lengths.json"
    lengths = stored(path, lambda: steps_of_lengths(name, LENGTHS, longest.budget_bytes))
    if len(lengths) == len(LENGTHS):
        yield from lengths_rows(name, lengths)


def run(options: argparse.Namespace, folder: Path) -> Iterator[StepRow | LengthsRow]:
    """The rows of all chosen models."""
    for name in options.models:
        start = time.perf_counter()
        try:
            yield from rows_of(name, options, folder)
        except RuntimeError as error:
            reason, _, _ = str(error).partition("\n")
            print(f"{name}: not compared, {reason}", flush=True)
        print(f"{name}: {time.perf_counter() - start:.1f} s", flush=True)


def main() -> None:
    """Run, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(names()), choices=list(names()))
    parser.add_argument("--positions", nargs="*", type=float, default=list(POSITIONS))
    parser.add_argument("--parts", nargs="*", default=["steps", "lengths"], choices=["steps", "lengths"])
    parser.add_argument("--steps", type=Path, help="folder of emitted steps")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--picture", type=Path)
    options = parser.parse_args()
    # What attention holds inside grows with the number of threads.
    torch.set_num_threads(1)
    steps: list[StepRow] = []
    lengths: list[LengthsRow] = []
    with TemporaryDirectory() as folder:
        for row in run(options, options.steps or Path(folder)):
            (steps if isinstance(row, StepRow) else lengths).append(row)  # type: ignore[arg-type]
            if options.json:
                parts = {"steps": [asdict(one) for one in steps], "lengths": [asdict(one) for one in lengths]}
                options.json.write_text(json.dumps(parts, indent=1) + "\n", encoding="utf-8")
    print("\n".join(["", *step_tables(steps), *lengths_tables(lengths)]))
    if options.picture:
        options.picture.write_text(picture(steps), encoding="utf-8")


if __name__ == "__main__":
    main()
