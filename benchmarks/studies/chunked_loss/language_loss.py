"""A language model whose logits outweigh all else: its loss whole, in chunks by hand, and in chunks as planned.

    python -m studies.chunked_loss.language_loss [--vocabulary 16384] [--budgets 80MB min] [--inners eager inductor]

Every way trains the same model on the same tokens.  Peaks are the allocator's, of a step after the first two; times are
CPU seconds of a step, the least of several rounds in which the ways take turns.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
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


@dataclass(frozen=True, slots=True)
class Asked:
    """A way that is asked for: its name, what makes the model, and two options."""

    name: str
    model: Callable[[], nn.Module]
    budget: Any
    chunks: Any


def way(asked: Asked, inputs: Mapping[str, Tensor], inner: str) -> Way:
    """A way, compiled."""
    remat_compiler.clear_reports()
    given = {"memory_budget": asked.budget, "inner": inner, "chunks": asked.chunks, "max_slowdown": None}
    compiled: Any = torch.compile(asked.model(), backend="remat", options=given)
    step, start = train_step(compiled, inputs), time.perf_counter()
    step()
    seconds = time.perf_counter() - start
    return Way(asked.name, step, seconds, ", ".join(map(str, remat_compiler.reports()[-1].chunked)))


def measured(ways: Sequence[Asked], inputs: Mapping[str, Tensor], inner: str) -> list[Way]:
    """All ways, compiled and measured."""
    # All ways of one inner compiler stay compiled, since they take turns; more would be beyond Dynamo's limit.
    torch._dynamo.reset()
    made = []
    with progress(f"compiling for {inner}", len(ways)) as shown:
        for asked in ways:
            one = way(asked, inputs, inner)
            one.peak_bytes = measure_step(one.step).peak_bytes
            made.append(one)
            shown.advance()
    for _ in range(ROUNDS):
        for one in made:
            start = time.process_time()
            one.step()
            one.cpu_s = min(one.cpu_s, time.process_time() - start)
    return made


def of_language(vocabulary: int, budgets: Sequence[str]) -> list[Asked]:
    """The ways of the model of this file."""
    whole, by_hand = (partial(Language, vocabulary, chunks) for chunks in (1, BY_HAND))
    ways = [Asked("whole, without a budget", whole, 1.0, "never"), Asked('whole, "min"', whole, "min", "never")]
    for budget in budgets:
        ways.append(Asked(f"{BY_HAND} chunks by hand, {budget}", by_hand, budget, "never"))
        ways.append(Asked(f'chunks="auto", {budget}', whole, budget, "auto"))
    return ways


def print_table(ways: Sequence[Asked], inputs: Mapping[str, Tensor], inners: Sequence[str]) -> None:
    """Measure all ways under these inner compilers, and print a table of Markdown."""
    os.environ["REMAT_DISABLE_CACHE"] = "1"
    torch.set_num_threads(1)
    print("| inner | loss | peak, measured | CPU time of a step | compiled in | |\n|---|---|--:|--:|--:|---|")
    for inner in inners:
        for one in measured(ways, inputs, inner):
            figures = f"{one.peak_bytes / 1e6:.1f} MB | {one.cpu_s * 1e3:.0f} ms | {one.compile_s:.0f} s"
            print(f"| {inner} | {one.name} | {figures} | {one.said} |", flush=True)


def main() -> None:
    """Print the table of the language model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=16_384)
    parser.add_argument("--budgets", nargs="*", default=["80MB", "min"])
    parser.add_argument("--inners", nargs="*", default=["eager", "inductor"])
    given = parser.parse_args()
    tokens = torch.randint(0, given.vocabulary, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    print_table(of_language(given.vocabulary, given.budgets), {"tokens": tokens}, given.inners)


if __name__ == "__main__":
    main()
