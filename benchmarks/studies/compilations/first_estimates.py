"""The first estimate of a step's peak, and what compiling under a budget takes beside stock Inductor.

    python -m studies.compilations.first_estimates       # 20 architectures and models of the zoo
    python -m studies.compilations.first_estimates --models bert mamba zoo/gpt2 --budget 0.5 --json OUT.json

Each model is compiled in two processes, by stock Inductor and under the budget, with empty caches, and its first step
is run.  Architectures of `transformers` are those of `instruments.architectures`; a name that begins with ``zoo/`` is a
model of `zoo`.  Seconds are CPU seconds of the process and of the compilers that it starts, of which there is one at a
time.  A row gives:

- tries: compilations under the budget, and how many of them only generated code;
- whole: how far the peak that is simulated for the step without a budget is from the one of the emitted code;
- planned: the same for the first plan.

A fraction needs the code of the step without a budget, of whose peak it is a part.  With ``--in-bytes`` a third process
compiles for the same limit in bytes: its CPU seconds, their ratio to stock, and its tries.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from instruments.architectures import WithLoss, built
from instruments.measure import train_step
from instruments.row_process import row_of_process
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.observer import Observer, observed_by
from zoo import build

TWENTY = (
    *("albert", "bart", "bert", "bloom", "distilbert", "electra", "falcon", "gemma2", "gpt2", "gpt_neox"),
    *("llama", "mamba", "mixtral", "mobilebert", "modernbert", "opt", "phi3", "qwen3", "t5", "vit"),
)
ZOO = ("gpt2", "bert", "vit", "resnet50", "unet", "lstm", "nerf", "convnext", "gnn", "diffusion")
SECONDS = 900


@dataclass(frozen=True, slots=True)
class Row:
    """One model; bytes of the simulated and of the emitted step, CPU seconds."""

    model: str
    stock_s: float = 0.0
    remat_s: float = 0.0
    tries: int = 0
    generated_only: int = 0
    whole_estimate_bytes: int = 0
    whole_emitted_bytes: int = 0
    planned_estimate_bytes: int = 0
    planned_emitted_bytes: int = 0
    note: str = ""
    bytes_s: float = 0.0
    bytes_tries: int = 0
    bytes_generated_only: int = 0

    @property
    def ratio(self) -> float:
        """Compilation under the budget, as a multiple of the stock one."""
        return self.remat_s / self.stock_s if self.stock_s else 0.0

    @property
    def bytes_ratio(self) -> float:
        """The same for the limit in bytes."""
        return self.bytes_s / self.stock_s if self.stock_s else 0.0

    @property
    def whole_percent(self) -> float:
        """Emitted above simulated, of the step without a budget."""
        return _percent(self.whole_estimate_bytes, self.whole_emitted_bytes)

    @property
    def planned_percent(self) -> float:
        """Emitted above simulated, of the first plan."""
        return _percent(self.planned_estimate_bytes, self.planned_emitted_bytes)


class _Attempts(Observer):
    """Keeps the figures of each try of the first graph that trains."""

    def __init__(self) -> None:
        self.found: list[tuple[bool, bool, int, int]] = []

    def attempt_ends(self, attempt: Any) -> None:
        whole = attempt.request.budget_bytes is None and attempt.request.fraction is None
        self.found.append((whole, attempt.real, attempt.planned_bytes, attempt.check.needed_bytes))


def first_step(name: str, budget: float | str | None) -> Row:
    """Compile and run one step, in this process."""
    torch.set_num_threads(1)
    step = _step(name, "inductor" if budget is None else partial(remat, options={"memory_budget": budget}))
    attempts = _Attempts()
    note = ""
    before = _cpu_seconds()
    with observed_by(attempts):
        try:
            step()
        except InfeasibleBudget as refused:
            note = f"refused, smallest {refused.smallest_peak_bytes}"
    seconds = _cpu_seconds() - before
    if budget is None:
        return Row(name, stock_s=seconds, note=note)
    whole = next((one[2:] for one in attempts.found if one[0]), (0, 0))
    planned = next((one[2:] for one in attempts.found if not one[0]), (0, 0))
    only = sum(not one[1] for one in attempts.found)
    return Row(name, 0.0, seconds, len(attempts.found), only, *whole, *planned, note)


def _step(name: str, backend: Callable[..., Any] | str) -> Callable[[], object]:
    if name.startswith("zoo/"):
        model = build(name.removeprefix("zoo/"))
        return train_step(torch.compile(model.module, backend=backend, dynamic=False), model.inputs)
    module, inputs = built(name)
    compiled = torch.compile(WithLoss(module), backend=backend, dynamic=False)
    return lambda: compiled(**inputs).backward()


def _cpu_seconds() -> float:
    own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def apart(name: str, budget: str) -> Row:
    """The same in a process of its own, with empty caches."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {
            "TORCHINDUCTOR_CACHE_DIR": folder,
            "REMAT_CACHE_DIR": f"{folder}/remat",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
        }
        command = ["-m", "studies.compilations.first_estimates", "--row", name, "--budget", budget]
        try:
            found, why = row_of_process(command, environment, SECONDS)
        except subprocess.TimeoutExpired:
            return Row(name, note=f"took over {SECONDS} s")
    return Row(name, note=why) if found is None else Row(**found)


def side_by_side(name: str, budget: str, stock: bool, in_bytes: bool) -> Row:
    """The budget, stock Inductor, and the budget in bytes, one after the other."""
    found = apart(name, budget)
    if stock:
        found = replace(found, stock_s=apart(name, "stock").stock_s)
    if in_bytes and found.whole_emitted_bytes and "." in budget:
        other = apart(name, str(int(float(budget) * found.whole_emitted_bytes)))
        found = replace(
            found,
            bytes_s=other.remat_s,
            bytes_tries=other.tries,
            bytes_generated_only=other.generated_only,
            note=found.note or other.note,
        )
    return found


def line(row: Row) -> str:
    """The row as text."""
    times = f"{row.stock_s:7.1f} {row.remat_s:7.1f} {row.ratio:6.2f}"
    tries = f"{row.tries:3} ({row.generated_only})"
    sizes = f"{row.whole_percent:+8.1f} % {row.planned_percent:+8.1f} %"
    in_bytes = f"{row.bytes_s:7.1f} {row.bytes_ratio:6.2f} {row.bytes_tries:3} ({row.bytes_generated_only})"
    return f"{row.model:18} {times}  {tries}  {sizes}  {in_bytes if row.bytes_s else ''}  {row.note}"


def summary(rows: list[Row]) -> str:
    """Medians and worst, over the rows that have the figures."""
    planned = [abs(row.planned_percent) for row in rows if row.planned_emitted_bytes]
    whole = [abs(row.whole_percent) for row in rows if row.whole_emitted_bytes]
    ratios = [row.ratio for row in rows if row.stock_s and row.remat_s]
    in_bytes = [row.bytes_ratio for row in rows if row.stock_s and row.bytes_s]
    parts = [
        f"{name}: median {statistics.median(found):.2f}, worst {max(found):.2f}"
        for name, found in (("ratio", ratios), ("ratio in bytes", in_bytes), ("whole %", whole), ("planned %", planned))
        if found
    ]
    return "; ".join(parts)


def _percent(simulated: int, emitted: int) -> float:
    return 100 * (emitted / simulated - 1) if simulated and emitted else 0.0


def main() -> None:
    """Print the table, row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=[*TWENTY, *(f"zoo/{name}" for name in ZOO)])
    parser.add_argument("--budget", default="0.5", help='a fraction, bytes, or "min"')
    parser.add_argument("--no-stock", action="store_true", help="leave the stock compilations out")
    parser.add_argument("--in-bytes", action="store_true", help="compile for a fraction's limit in bytes, too")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--row", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    budget = arguments.budget
    if arguments.row:
        asked = None if budget == "stock" else float(budget) if "." in budget else budget
        print(json.dumps(asdict(first_step(arguments.row, asked))), flush=True)
        return
    print(f"{'model':18} {'stock s':>7} {'remat s':>7} {'ratio':>6}  tries (only generated)  whole, planned  in bytes")
    rows: list[Row] = []
    for name in arguments.models:
        rows.append(side_by_side(name, budget, not arguments.no_stock, arguments.in_bytes))
        print(line(rows[-1]), flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(summary(rows))


if __name__ == "__main__":
    main()
