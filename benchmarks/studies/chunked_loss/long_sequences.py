"""Llamas with a frozen base and trained products of small matrices beside it, on cards that are not there.

    python -m studies.chunked_loss.long_sequences 8b@4090 --lengths 8192,32768 [--layers 4] [--budget min] \
        [--chunks never,auto]

Weights are bfloat16; a step is one sequence.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import remat_compiler
from remat_compiler.units import format_bytes
from zoo.adapted_llamas import Llama
from zoo.llamas import SIZES


def maker(size: str, layers: int | None) -> Callable[[], nn.Module]:
    """What makes the model; with fewer layers than it has, if they are given."""
    return lambda: Llama(SIZES[size] | ({} if layers is None else {"num_hidden_layers": layers})).to(torch.bfloat16)


def row(asked: str, length: int, chunks: str, given: argparse.Namespace) -> str:
    """The line of one model on one card at one length."""
    size, card = asked.split("@")

    def inputs(batch: int) -> dict[str, Tensor]:
        return {name: torch.zeros(batch, length, dtype=torch.long) for name in ("tokens", "targets")}

    start = time.monotonic()
    report = remat_compiler.fit(
        maker(size, given.layers),
        inputs,
        device=card,
        budget=given.budget,
        batches=[1],
        options={"max_slowdown": None, "chunks": chunks, "offload_budget": given.offload},
    )
    (point,) = report.points
    head = f"| {size} | {card} | {length:,} | {chunks} |"
    took = f"{time.monotonic() - start:.0f} s"
    if point.problem:
        return f"{head} refused: {' '.join(point.problem.split())[:200]} | {took} |"
    added = f"{point.added_ns / 1e6:,.0f} of {point.step_ns / 1e6:,.0f} ms"
    sizes = " | ".join(map(format_bytes, (point.step_bytes, point.peak_bytes, point.reserved_bytes)))
    fits = "yes" if report.fits(point) else "no"
    return f"{head} {sizes} | {fits} | {added} | {took} | {'; '.join(map(str, point.chunked))} |"


def main() -> None:
    """Print a line for each model and length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="SIZE@CARD, such as 8b@h100")
    parser.add_argument("--lengths", default="8192")
    parser.add_argument("--layers", type=int)
    parser.add_argument("--budget", default="min")
    parser.add_argument("--chunks", default="never,auto")
    parser.add_argument("--offload", default=0, help="bytes that may lie in the host's memory, such as 100GiB")
    given = parser.parse_args()
    print("| model | card | length | chunks | step | allocated | reserved | fits | added | answered in | in chunks |")
    print("|---|---|--:|---|--:|--:|--:|---|---|--:|---|")
    for asked in given.models:
        for length in map(int, given.lengths.split(",")):
            for chunks in given.chunks.split(","):
                print(row(asked, length, chunks, given), flush=True)


if __name__ == "__main__":
    main()
