"""Models of the Llama family on cards that are not there: does all of one train, updated within the backward or after?

    python -m studies.gradients_leave.llamas 3b@4090 8b@h100 13b@h100 [--length 8192] [--budget min] [--after]

Weights, gradients and AdamW's state are bfloat16; a step is one batch of sequences, at its smallest peak.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import remat_compiler
from remat_compiler.units import format_bytes
from zoo.llamas import SIZES
from zoo.loss import TokenLoss


def maker(size: str, length: int) -> Callable[[], nn.Module]:
    """What makes the model and its loss."""

    def make() -> nn.Module:
        config = LlamaConfig(max_position_embeddings=length, use_cache=False, **SIZES[size])
        return TokenLoss(LlamaForCausalLM(config)).to(torch.bfloat16)

    return make


def row(asked: str, given: argparse.Namespace) -> str:
    """The line of one model on one card."""
    size, card = asked.split("@")

    def inputs(batch: int) -> dict[str, torch.Tensor]:
        return {name: torch.zeros(batch, given.length, dtype=torch.long) for name in ("input_ids", "labels")}

    report = remat_compiler.fit(
        maker(size, given.length),
        inputs,
        device=card,
        budget=given.budget,
        batches=[given.batch],
        optimizer=partial(torch.optim.AdamW, fused=given.fused or None),
        step_in_backward=not given.after,
        options={"max_slowdown": None, "chunks": given.chunks},
    )
    (point,) = report.points
    updates = "after" if given.after else "within"
    head = f"| {size} | {card} | {given.batch} x {given.length:,} | {updates} |"
    if point.problem:
        return f"{head} refused: {' '.join(point.problem.split())[:150]} |"
    added = f"{point.added_ns / 1e6:,.0f} of {point.step_ns / 1e6:,.0f} ms"
    sizes = (point.parameter_bytes + point.optimizer_bytes, point.step_bytes, point.peak_bytes, point.reserved_bytes)
    shown = " | ".join(map(format_bytes, (*sizes, report.device.usable_bytes)))
    return f"{head} {shown} | {'yes' if report.fits(point) else 'no'} | {added} |"


def main() -> None:
    """Print a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", help="SIZE@CARD, such as 8b@h100")
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--budget", default="min")
    parser.add_argument("--chunks", default="never")
    parser.add_argument("--after", action="store_true", help="the optimizer steps after the backward")
    parser.add_argument("--fused", action="store_true", help="AdamW in one kernel: it makes nothing but its state")
    given = parser.parse_args()
    columns = "parameters and state | step | allocated | reserved | left to torch | fits | added |"
    print(f"| model | card | tokens | updates | {columns}")
    print("|---|---|---|---|--:|--:|--:|--:|--:|---|--:|", flush=True)
    for asked in given.models:
        print(row(asked, given), flush=True)


if __name__ == "__main__":
    main()
