"""Train a BERT-like model under byte budgets, beside PyTorch's own knob, and check that each promise is kept.

Every run starts from the same weights and sees the same batches, without dropout, so the losses must be equal.
For each it prints the budget, the peak that remat predicted before the first step, the peak that the allocator saw,
the time of a step and the last loss.  Dumps and pictures are left in demo-output/.

    python examples/demo.py            a 4-layer model, five runs, all compiled by Inductor
    python examples/demo.py --short    a 2-layer model, four runs, two of them without Inductor
    python examples/demo.py --json benchmarks/results/demo.json    the rows that README.md shows
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

# Read when torch starts: its profiler, which measures the peaks, would announce itself at each start and stop.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import torch
from torch._functorch import config as functorch_config
from torch._inductor import config as inductor_config

from demo_runs import Runs, Size, Variant, say
from demo_table import Outcome, failures, picture, rows, table

FULL = Size(layers=4, hidden=256, batch=8, length=128, steps=5, rounds=7)
SHORT = Size(layers=2, hidden=128, batch=8, length=64, steps=3, rounds=9)


def run_full(size: Size, output: Path) -> Runs:
    """No budget, PyTorch's knob, and the three ways to give a budget; the first takes what the knob took."""
    runs = Runs(size, output, 5)
    runs.run(Variant("no budget"))
    knob = runs.run(Variant("PyTorch's knob at 0.5", knob=0.5))
    as_much = mebibytes(knob.measured_bytes)
    runs.run(Variant(f'budget "{as_much}"', budget=as_much))
    runs.run(Variant("budget 0.5", budget=0.5))
    runs.run(Variant('budget "min"', budget="min"))
    return runs


def run_short(size: Size, output: Path) -> Runs:
    """A budget under each inner compiler."""
    runs = Runs(size, output, 4)
    runs.run(Variant("eager, no budget", inner="eager"))
    runs.run(Variant("eager, budget 0.5", inner="eager", budget=0.5))
    unlimited = runs.run(Variant("no budget"))
    less = mebibytes(unlimited.measured_bytes * 6 // 10)
    runs.run(Variant(f'budget "{less}"', budget=less))
    return runs


def mebibytes(num_bytes: int) -> str:
    """`num_bytes` as a person would write a budget, rounded down to a tenth of a MiB."""
    return f"{num_bytes * 10 // 2**20 / 10}MiB"


def prepare(output: Path) -> None:
    """Settings of this process: each run is planned anew, so that it leaves its dump; compiled kernels stay cached."""
    os.environ["REMAT_DISABLE_CACHE"] = "1"
    inductor_config.fx_graph_cache = False
    functorch_config.enable_autograd_cache = False
    inductor_config.compile_threads = os.cpu_count() or 1
    output.mkdir(parents=True, exist_ok=True)


def show(runs: Runs, outcomes: Sequence[Outcome]) -> int:
    """Print the table, leave the picture, say where all pictures are; the number of promises that were not kept."""
    output = runs.output
    say(table(outcomes))
    title = f"BERT with {runs.size.layers} layers, torch {torch.__version__}, {torch.get_num_threads()} threads"
    (output / "runs.svg").write_text(picture(outcomes, title), encoding="utf-8")
    say(f"\nall runs side by side:  {output / 'runs.svg'}")
    for run in runs.done:
        for drawn in sorted((output / run.variant.folder).glob("*/memory.svg")):
            say(f"memory over the step:   {drawn}")
    say(f"what was decided, why:  remat show {output / runs.done[-1].variant.folder}\n")
    broken = failures(outcomes)
    for sentence in broken:
        say(f"NOT KEPT: {sentence}")
    return len(broken)


def write_rows(size: Size, outcomes: Sequence[Outcome], path: Path) -> None:
    """Write the table to `path` for programs, with what it was measured on."""
    setting = {"torch": torch.__version__, "threads": torch.get_num_threads(), "model": asdict(size)}
    path.write_text(json.dumps(setting | {"rows": rows(outcomes)}, indent=1) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> int:
    """Run the demo; 0 when every promise was kept, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--short", action="store_true", help="a smaller model and fewer runs")
    parser.add_argument("--output", type=Path, default=Path("demo-output"), help="folder of dumps and pictures")
    parser.add_argument("--json", type=Path, help="file for the rows of the table")
    parsed = parser.parse_args(arguments)
    start = time.perf_counter()
    prepare(parsed.output)
    runs = run_short(SHORT, parsed.output) if parsed.short else run_full(FULL, parsed.output)
    outcomes = runs.outcomes()
    broken = show(runs, outcomes)
    if parsed.json is not None:
        write_rows(runs.size, outcomes, parsed.json)
    verdict = f"{broken} not kept" if broken else "every budget kept, every peak predicted, every loss the same"
    say(f"{verdict}; {time.perf_counter() - start:.0f} s in all")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
