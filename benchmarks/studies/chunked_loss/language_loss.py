"""A language model whose logits outweigh all else: its loss whole, in chunks by hand, and in chunks as planned.

    python -m studies.chunked_loss.language_loss [--vocabulary 16384] [--budgets 80MB min] [--inners eager inductor]

Every way trains the same model on the same tokens.  Peaks are the allocator's, of a step after the first two; times are
CPU seconds of a step, the least of several rounds in which the ways take turns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import remat_compiler
from instruments.measure import TrainStep, measure_step, train_step
from remat_compiler.progress import progress

WIDTH, HEADS, LAYERS, BATCH, LENGTH, ROUNDS = 128, 4, 4, 8, 256, 9
BY_HAND = 8
"""Chunks of the loss that is written in parts."""


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Values of the shape of `x`: batch, length, width."""
        parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.norms[1](x))))


class Language(nn.Module):
    """Blocks under a tied head; each token predicts the next."""

    def __init__(self, vocabulary: int, chunks: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.chunks = nn.Embedding(vocabulary, WIDTH), chunks
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(LAYERS))), nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        """Mean cross entropy of all tokens but the first."""
        x = self.norm(self.blocks(self.embedding(tokens))).flatten(0, 1)[:-1]
        targets, head = tokens.flatten()[1:], self.embedding.weight.T
        if self.chunks == 1:
            return F.cross_entropy(x @ head, targets)
        parts = zip(x.chunk(self.chunks), targets.chunk(self.chunks))
        losses = [F.cross_entropy(rows @ head, of, reduction="sum") for rows, of in parts]
        return torch.stack(losses).sum() / len(x)


@dataclass(slots=True)
class Way:
    """One way to train, and what came of it."""

    name: str
    step: TrainStep
    compile_s: float
    said: str
    peak_bytes: int = 0
    cpu_s: float = float("inf")


def way(name: str, vocabulary: int, by_hand: int, inner: str, budget: Any, chunks: Any) -> Way:
    """A way, compiled."""
    remat_compiler.clear_reports()
    tokens = torch.randint(0, vocabulary, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    given = {"memory_budget": budget, "inner": inner, "chunks": chunks, "max_slowdown": None}
    compiled: Any = torch.compile(Language(vocabulary, by_hand), backend="remat", options=given)
    step, start = train_step(compiled, {"tokens": tokens}), time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    notes = [note for note in remat_compiler.reports()[-1].notes if note.startswith("loss in")]
    return Way(name, step, seconds, notes[0] if notes else "")


def ways(vocabulary: int, inner: str, budgets: Sequence[str]) -> list[Way]:
    """All ways, measured."""
    asked = [("whole, without a budget", 1, 1.0, "never"), ('whole, "min"', 1, "min", "never")]
    for budget in budgets:
        asked += [(f"{BY_HAND} chunks by hand, {budget}", BY_HAND, budget, "never")]
        asked += [(f'chunks="auto", {budget}', 1, budget, "auto")]
    # All ways of one inner compiler stay compiled, since they take turns; more would be beyond Dynamo's limit.
    torch._dynamo.reset()
    made = []
    with progress(f"compiling for {inner}", len(asked)) as shown:
        for name, by_hand, budget, chunks in asked:
            one = way(name, vocabulary, by_hand, inner, budget, chunks)
            one.peak_bytes = measure_step(one.step).peak_bytes
            made.append(one)
            shown.advance()
    for _ in range(ROUNDS):
        for one in made:
            start = time.process_time()
            one.step()
            one.cpu_s = min(one.cpu_s, time.process_time() - start)
    return made


def main() -> None:
    """Print a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=16_384)
    parser.add_argument("--budgets", nargs="*", default=["80MB", "min"])
    parser.add_argument("--inners", nargs="*", default=["eager", "inductor"])
    given = parser.parse_args()
    os.environ["REMAT_DISABLE_CACHE"] = "1"
    torch.set_num_threads(1)
    print("| inner | loss | peak, measured | CPU time of a step | compiled in | |\n|---|---|--:|--:|--:|---|")
    for inner in given.inners:
        for one in ways(given.vocabulary, inner, given.budgets):
            figures = f"{one.peak_bytes / 1e6:.1f} MB | {one.cpu_s * 1e3:.0f} ms | {one.compile_s:.0f} s"
            print(f"| {inner} | {one.name} | {figures} | {one.said} |", flush=True)


if __name__ == "__main__":
    main()
