"""DELTA's tables: memory at equal batch, the largest batch, its three heuristics, and overlap, on an A100.

    python -m studies.moving.delta_tables [--models ResNet-50 ...] [--json OUT.json]

Costs and link are by the data sheet's rates, as in eager PyTorch, copies at four fifths of PCI Express 4; optimizers
keep two values for each parameter, as Adam does.  The paper's figures are measured ones; its baseline is PyTorch, and
"growth" is the largest batch over that of PyTorch.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertForQuestionAnswering

from instruments.cnns import IMAGENET, IMAGENET_CLASSES
from instruments.verified import check
from remat_compiler.devices.gpus import GPUS
from remat_compiler.ir.planner import Planner
from remat_passes.planning.auto import Auto
from remat_passes.planning.capuchin import Capuchin
from remat_passes.planning.delta import Delta
from remat_passes.planning.dtr import Dtr
from remat_passes.planning.save_all import SaveAll
from studies.moving.growing_batch import GrowingBatch, growing, image_step, largest_batch

MODELS = (*IMAGENET, "BERT")
EQUAL_BATCH = {"ResNet-50": 256, "ResNet-101": 128, "ResNeXt-50": 128, "BERT": 32}
"""Batch at which memory is compared; the paper names it for ResNet-50 and BERT."""
PAPER_MEMORY = {
    "ResNet-50": (21.3, 8.4),
    "ResNet-101": (16.6, 4.6),
    "ResNeXt-50": (14.7, 5.4),
    "BERT": (19.8, 19.0),
}
"""GB of PyTorch and of DELTA (Figure 3 and Table II)."""
PAPER_GROWTH = {"ResNet-50": 2.04, "ResNet-101": 2.25}
"""Growth of the largest batch (section 5.3)."""
HEURISTICS = ("base", "lru", "greedy")
TIGHT = 1.5
"""Batch, as a multiple of PyTorch's largest, at which heuristics and overlap are compared."""


class Answers(nn.Module):
    """BERT under the loss of SQuAD, where an answer begins and ends."""

    def __init__(self) -> None:
        super().__init__()
        config = BertConfig(attn_implementation="eager")
        self.network = BertForQuestionAnswering(config)

    def forward(self, input_ids: Tensor, begins: Tensor, ends: Tensor) -> Tensor:
        """Mean cross entropy of both."""
        out = self.network(input_ids)
        entropy = nn.functional.cross_entropy
        loss: Tensor = entropy(out.start_logits, begins) + entropy(out.end_logits, ends)
        return loss


def bert(batch: int) -> tuple[nn.Module, dict[str, Tensor]]:
    """BERT-base at 384 tokens."""
    tokens = torch.zeros(batch, 384, dtype=torch.long)
    return Answers().train(), {"input_ids": tokens, "begins": tokens[:, 0].clone(), "ends": tokens[:, 0].clone()}


def step_of(name: str) -> GrowingBatch:
    """The training step of a network by its batch."""
    gpu = GPUS["a100"]
    if name == "BERT":
        return growing(name, bert, gpu, states=2)
    return image_step(name, IMAGENET[name], 224, IMAGENET_CLASSES, gpu, states=2)


@dataclass(frozen=True, slots=True)
class Row:
    """One planner on one network.

    Attributes:
        model: Name of the network.
        what: The question: ``"memory"``, ``"largest"`` or ``"tight"``.
        planner: The planner, with its options.
        batch: The batch.
        memory_gb: What the device holds at the peak.
        added_percent: Added time in percent of the step.
        fits: Whether it is within the budget.
    """

    model: str
    what: str
    planner: str
    batch: int
    memory_gb: float
    added_percent: float
    fits: bool


def planned(step: GrowingBatch, model: str, what: str, label: str, planner: Planner, batch: int, budget: int) -> Row:
    """The planner's answer at a batch, the device having `budget` bytes."""
    problem = step.at(batch, budget)
    result = planner.plan(problem)
    check(problem, result)
    memory = step.taken_bytes(batch, result) / 1e9
    fits = result.peak_bytes <= problem.budget_bytes
    return Row(model, what, label, batch, memory, 100 * result.added_ns / problem.costs.step_ns, fits)


def smallest(step: GrowingBatch, model: str, batch: int) -> list[Row]:
    """The least memory that DELTA can do with at a batch, and what others add at that memory."""
    kept = planned(step, model, "memory", "PyTorch", SaveAll(), batch, step.memory_bytes)
    low, high = 0, int(kept.memory_gb * 1e9)
    while high - low > high // 100:
        middle = (low + high) // 2
        if planned(step, model, "memory", "delta", Delta(), batch, middle).fits:
            high = middle
        else:
            low = middle
    others: Sequence[tuple[str, Planner]] = (
        ("delta", Delta()),
        ("dtr", Dtr()),
        ("capuchin", Capuchin()),
        ("auto", Auto()),
    )
    return [kept, *(planned(step, model, "memory", label, planner, batch, high) for label, planner in others)]


def rows_of(model: str) -> list[Row]:
    """All rows of a network."""
    step = step_of(model)
    rows = smallest(step, model, EQUAL_BATCH[model])
    least = 1
    kept = 0
    for label, planner in (
        ("PyTorch", SaveAll()),
        ("dtr", Dtr()),
        ("delta", Delta()),
        ("capuchin", Capuchin()),
        ("auto", Auto(effort=2_000)),
    ):
        batch, result = largest_batch(step, planner, least)
        if result is None:
            batch, result = largest_batch(step, planner)
        kept = kept or batch
        least = max(least, batch)
        if result is not None:
            added = 100 * result.added_ns / step.at(batch).costs.step_ns
            rows.append(Row(model, "largest", label, batch, step.taken_bytes(batch, result) / 1e9, added, True))
        print(f"{model} {label}: {batch}", flush=True)
    batch = int(TIGHT * kept)
    tight: list[tuple[str, Planner]] = [(f"delta {h}", Delta(heuristic=h)) for h in HEURISTICS]
    tight += [("delta base, no overlap", replace(Delta(), overlaps=False)), ("dtr", Dtr()), ("auto", Auto())]
    return rows + [planned(step, model, "tight", label, planner, batch, step.memory_bytes) for label, planner in tight]


def table(rows: Sequence[Row]) -> str:
    """The tables as Markdown."""
    lines = ["| memory at equal batch | batch | planner | GB | added | paper, GB |", "|---|--:|---|--:|--:|--:|"]
    for row in (row for row in rows if row.what == "memory"):
        paper = dict(zip(("PyTorch", "delta"), PAPER_MEMORY[row.model])).get(row.planner, "")
        fits = f"{row.added_percent:.1f} %" if row.fits else "over"
        lines.append(f"| {row.model} | {row.batch} | {row.planner} | {row.memory_gb:.2f} | {fits} | {paper} |")
    lines += ["", "| largest batch | planner | batch | growth | added | paper, growth |", "|---|---|--:|--:|--:|--:|"]
    kept = {row.model: row.batch for row in rows if row.what == "largest" and row.planner == "PyTorch"}
    for row in (row for row in rows if row.what == "largest"):
        paper = PAPER_GROWTH.get(row.model, "") if row.planner == "delta" else ""
        growth = f"{row.batch / kept[row.model]:.2f}"
        lines.append(f"| {row.model} | {row.planner} | {row.batch} | {growth} | {row.added_percent:.1f} % | {paper} |")
    lines += ["", f"| at {TIGHT} times PyTorch's largest batch | planner | added |", "|---|---|--:|"]
    for row in (row for row in rows if row.what == "tight"):
        fits = f"{row.added_percent:.1f} %" if row.fits else "over"
        lines.append(f"| {row.model}, {row.batch} | {row.planner} | {fits} |")
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = [row for name in options.models for row in rows_of(name)]
    print(table(rows))
    if options.json:
        options.json.write_text(json.dumps([asdict(row) for row in rows], indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
