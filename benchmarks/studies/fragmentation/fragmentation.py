"""What torch's caching allocator reserves above what is alive, with values where it puts them and at planned offsets.

    python -m studies.fragmentation.fragmentation [--models gpt2 unet] [--positions 0.75 0.5 0.25 0.05]
                                                  [--parts steps lengths] [--steps FOLDER] [--json OUT.json]
                                                  [--picture OUT.svg]

- `steps`: five steps with Adam, whose state comes at the end of the first one while gradients are there; gradients and
  outputs are freed after each step.  Budgets at positions between the smallest peak (0) and that without a budget (1).
- `lengths`: six lengths in a row, from half of the longest on, all run by one code, which is emitted for the longest
  under the budget that stands at 0.25 for it.  One set of arenas, planned for the longest, serves all of them.

Each comes with the arenas that the backend would choose for either kind of segments, and throughout: with all arenas
that leave the peak as it is.  Steps are planned and emitted by the backend on the CPU, kernels are left out, and the
allocator is its model: nothing is run.  Each step comes twice, as it is and with all sizes multiplied by one whole
number, so that its peak is about 8 GiB: the models are small, and segments of 20 MiB would hide everything else.

`--steps` keeps the emitted steps, and reads those that are there: then only arenas are chosen anew.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from instruments.layout_problems import SCALED_PEAK
from remat_compiler.errors import RematError
from remat_compiler.simulate.lives import Life
from studies.fragmentation.emitted_steps import EmittedStep, has_length, steps_at, steps_of_lengths, stored
from studies.fragmentation.fragmentation_tables import (
    KINDS,
    LengthsRow,
    Reserved,
    StepRow,
    lengths_tables,
    picture,
    step_tables,
)
from studies.fragmentation.placed_lengths import SMALLER, Lengths, lengths_rows
from studies.fragmentation.placed_steps import PlacedStep, alive_bytes, arenas_throughout, chosen_arenas, reserved
from zoo import build, names

POSITIONS = (0.75, 0.5, 0.25, 0.05)
STEPS = 5
LENGTHS = (0.75, 1.0, 0.5, 0.9, 0.6, 0.8)
LENGTHS_POSITION = 0.25


def step_rows(model: str, position: float, emitted: EmittedStep) -> Iterator[StepRow]:
    """The rows of one step, as it is and scaled."""
    for scale in (1, max(1, SCALED_PEAK // emitted.peak_bytes)):
        step = emitted.scaled(scale)

        def over_steps(lives: Sequence[Life], step: EmittedStep = step, optimizer: bool = True) -> Reserved:
            return reserved(step.resident, step.state if optimizer else (), [lives] * STEPS)

        placed = [PlacedStep.of(step, chosen_arenas(step, (), kind == "expandable")) for kind in KINDS]
        planned, stateless = (
            Reserved(*(over_steps(one.lives, optimizer=optimizer).of(kind) for one, kind in zip(placed, KINDS)))
            for optimizer in (True, False)
        )
        segments, expandable = (one.figures for one in placed)
        yield StepRow(
            model=model,
            position=position,
            scale=scale,
            alive_bytes=alive_bytes(step.lives),
            online=over_steps(step.lives),
            planned=planned,
            throughout=over_steps(PlacedStep.of(step, arenas_throughout(step)).lives),
            online_stateless=over_steps(step.lives, optimizer=False),
            planned_stateless=stateless,
            segments=segments,
            expandable=expandable,
        )


def rows_of(name: str, options: argparse.Namespace, folder: Path) -> Iterator[StepRow | LengthsRow]:
    """The rows of one model; its steps are taken from the folder, or emitted and put there."""
    positions = sorted({*options.positions, LENGTHS_POSITION}, reverse=True)
    steps = stored(folder / f"{name}.json", lambda: steps_at(name, positions))
    if "steps" in options.parts:
        for key, step in steps.items():
            if float(key) in options.positions:
                yield from step_rows(name, float(key), step)
    longest = steps.get(str(LENGTHS_POSITION))
    if "lengths" not in options.parts or longest is None or not has_length(build(name).inputs):
        return
    parts = list(dict.fromkeys((1.0, *LENGTHS, *SMALLER)))
    path = folder / f"{name}_changing.json"
    found = stored(path, lambda: steps_of_lengths(name, parts, longest.budget_bytes))
    row, smaller = (tuple(found[str(part)] for part in chosen) for chosen in (LENGTHS, SMALLER))
    yield from lengths_rows(name, Lengths(row, found["1.0"], smaller), LENGTHS)


def run(options: argparse.Namespace, folder: Path) -> Iterator[StepRow | LengthsRow]:
    """The rows of all chosen models."""
    for name in options.models:
        start = time.perf_counter()
        try:
            yield from rows_of(name, options, folder)
        except (RematError, RuntimeError) as error:
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
