"""What a user waits for: the first steps of a small GPT-2 in new processes, beside torch's own backends.

    python benchmarks/first_compilation.py --rounds 3

Two layers of width 32, random weights, one thread.  Each round runs each backend in two new processes, in turns:
the first with empty caches of Inductor and of remat, the second with what the first left in them.  A process compiles
with its first step; `remat` does so again with its second one where the first was not to be trusted with all of the
budget.  Seconds are medians over the rounds, from `torch.compile` on, imports not counted.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

BACKENDS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "aot_eager": ("aot_eager", {}),
    "remat, interpreter, 1GiB": ("remat", {"inner": "eager", "memory_budget": "1GiB"}),
    "remat, interpreter, 0.7": ("remat", {"inner": "eager", "memory_budget": 0.7}),
    "inductor": ("inductor", {}),
    "remat, 1GiB": ("remat", {"memory_budget": "1GiB"}),
    "remat, 0.7": ("remat", {"memory_budget": 0.7}),
}
STEPS = 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--backends", nargs="+", choices=BACKENDS, default=list(BACKENDS), metavar="NAME")
    parser.add_argument("--worker", choices=BACKENDS, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        print(json.dumps(steps(*BACKENDS[options.worker])))
        return
    found: dict[str, list[list[list[float]]]] = {name: [] for name in options.backends}
    for turn in range(options.rounds):
        for name, rounds in found.items():
            with tempfile.TemporaryDirectory() as folder:
                rounds.append([in_a_process(name, Path(folder)) for _ in range(2)])
            print(f"round {turn + 1}, {name}: {rounds[-1]}", file=sys.stderr, flush=True)
    print("| backend | new: first step | second | all | again: first step | second | all |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, rounds in found.items():
        cells = []
        for process in zip(*rounds):
            first, second = (statistics.median(times[i] for times in process) for i in (0, 1))
            cells += [first, second, statistics.median(sum(times) for times in process)]
        print(f"| {name} | " + " | ".join(f"{cell:.1f} s" for cell in cells) + " |")


def in_a_process(name: str, folder: Path) -> list[float]:
    """Seconds of each step, with caches in `folder`."""
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "inductor"), "REMAT_CACHE_DIR": str(folder / "remat")}
    command = [sys.executable, __file__, "--worker", name]
    environment = {**os.environ, **caches, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    times: list[float] = json.loads(done.stdout.splitlines()[-1])
    return times


def steps(backend: str, options: Mapping[str, Any]) -> list[float]:
    """Seconds of each training step."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=128, n_positions=64, bos_token_id=0, eos_token_id=0)
    model, tokens = GPT2LMHeadModel(config), torch.randint(0, 128, (2, 32))
    times = []
    began = time.monotonic()
    compiled: Any = torch.compile(model, backend=backend, **({"options": dict(options)} if options else {}))
    for _ in range(STEPS):
        # Gradients from before would be another step, planned anew.
        model.zero_grad(set_to_none=True)
        compiled(input_ids=tokens, labels=tokens).loss.backward()
        times.append(time.monotonic() - began)
        began = time.monotonic()
    return times


if __name__ == "__main__":
    main()
