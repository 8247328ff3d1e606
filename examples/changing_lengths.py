"""Train on batches whose length changes from step to step, under one budget in bytes that holds for all of them.

Nothing is told to `torch.compile` but the budget: Dynamo finds by itself that the length changes.  Each line shows the
length, the measured peak of the step, its time, and the loss; at the end, which variants were compiled and for what.

    python examples/changing_lengths.py --budget 24MiB --steps 60
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "99")
sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))

import torch
from transformers import BertConfig, BertForMaskedLM

import remat_compiler
from instruments.measure import measure_step
from masked_text import TEXT, Vocabulary, batches, words_of
from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.units import format_bytes

SHORTEST, LONGEST, BATCH = 24, 160, 8


def train(budget: str, steps: int) -> bool:
    """Train for some steps; whether every one stayed within the budget."""
    words = words_of(TEXT.read_text(encoding="utf-8"))
    vocabulary = Vocabulary.of(words)
    tokens = vocabulary.encode(words)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=512,
    )
    model = BertForMaskedLM(config)
    model.compile(backend="remat", options={"memory_budget": budget})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    limit, kept = MemoryBudget.parse(budget).limit_bytes, True
    lengths = random.Random(0)
    for number in range(steps):
        batch = next(batches(tokens, size=BATCH, length=lengths.randint(SHORTEST, LONGEST), seed=number))
        losses: list[torch.Tensor] = []

        def step(batch: dict[str, torch.Tensor] = batch, losses: list[torch.Tensor] = losses) -> None:
            loss = model(**batch).loss
            loss.backward()
            losses.append(loss.detach())

        start = time.perf_counter()
        # What this length needs is compiled here, since nothing can be measured while the allocator is watched.
        model(**batch)
        peak = measure_step(step, warmup=0).peak_bytes
        seconds = time.perf_counter() - start
        optimizer.step()
        optimizer.zero_grad()
        kept = kept and peak <= limit
        length = batch["input_ids"].shape[1]
        mark = "" if peak <= limit else "  over the budget"
        print(f"{number:4}  length {length:4}  peak {format_bytes(peak):>9}  {seconds:6.2f} s  {losses[0]:.3f}{mark}")
    return kept


def main() -> int:
    """Train, and say what was compiled; 1 when a step took more than the budget."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--budget", default="24MiB", help="the largest peak of a step, in bytes")
    parser.add_argument("--steps", type=int, default=60)
    arguments = parser.parse_args()
    if MemoryBudget.parse(arguments.budget).named_bytes is None:
        parser.error(f"--budget takes bytes, such as 24MiB, got {arguments.budget!r}")
    kept = train(arguments.budget, arguments.steps)
    for report in remat_compiler.reports():
        added = 100 * report.added_ns / report.step_ns
        print(f"{report.graph_name}: +{added:.1f} % time;  {'; '.join(report.notes)}")
    print(remat_compiler.stats())
    print("every step stayed within the budget" if kept else "the budget was exceeded")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
