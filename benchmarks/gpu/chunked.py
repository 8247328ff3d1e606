"""Questions of losses and layers in chunks."""

from __future__ import annotations

import importlib.util
import time
from typing import Any

import torch
from torch import Tensor, nn

import remat_compiler
from gpu.asked import NEAR, Asked, Step, distance, held, planned, stock
from gpu.models import Model, build
from instruments.measure import gradients, step_times


def chunks(asked: Asked, name: str, *parts: float | str) -> None:
    """Stock, the loss by Liger's kernel, and chunks as chosen for the peak of that and for parts of stock's.

    Args:
        asked: What is asked.
        name: The model.
        parts: Budgets: parts of the stock compiler's peak, or "min".
    """
    steps, peaks = dict[str, Step](), dict[str, int]()
    right = list[Tensor]()

    def add(way: str, model: Model, call: Any, budget: Any = None) -> None:
        nonlocal right
        with asked.row(way) as row:
            began = time.monotonic()
            step = asked.step(model, call)
            found = [step(), *gradients(model.module)]
            row.figures["compiled_s"] = round(time.monotonic() - began, 1)
            right = right or found
            row.figures["apart"] = apart = distance(found, right)
            row.expect(apart <= NEAR, f"{apart:.1e} off stock")
            del found
            if budget is None:
                row.figures["measured"] = asked.peak_bytes(step)
                row.status = "told"
            else:
                held(asked, row, step, budget)
                row.figures["chunks"] = list(map(str, remat_compiler.reports()[-1].chunked))
            peaks[way], steps[way] = int(row.figures["measured"]), step

    model = build(name, asked.device)
    add("whole", model, stock(model.module))
    if importlib.util.find_spec("liger_kernel") is not None and asked.cuda and hasattr(model.module, "network"):
        fused = Model(LigerLoss(model.module.network), model.inputs, model.autocast, model.blocks)
        add("liger", fused, stock(fused.module))
        add("remat at liger", model, planned(model.module, peaks["liger"], max_slowdown=None), peaks["liger"])
    for part in parts:
        budget = part if isinstance(part, str) else int(part * peaks["whole"])
        add(f"remat at {part}", model, planned(model.module, budget, max_slowdown=None), budget)
    asked.quiet()
    with asked.row("times") as row:
        times = step_times(steps, 15)
        row.figures |= {way: [round(one.wall_ns / 1e6, 3), peaks[way]] for way, one in times.items()}
        if "liger" in times and "remat at liger" in times:
            ratio = times["remat at liger"].wall_ns / times["liger"].wall_ns
            row.expect(ratio <= 1.02, f"{ratio:.3f} times as long as liger")


class LigerLoss(nn.Module):
    """`TokenLoss` by Liger's kernel, which never makes all logits."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

        # As Liger's own models have it: Dynamo cannot follow it under autocast.
        self.network, self.loss = network, torch.compiler.disable(LigerFusedLinearCrossEntropyLoss())

    def forward(self, labels: Tensor, **tokens: Tensor) -> Tensor:
        """Mean cross entropy of the logits for `tokens` against `labels`, which are not shifted."""
        hidden = self.network.base_model(**tokens).last_hidden_state
        weight = self.network.get_output_embeddings().weight.to(hidden.dtype)
        loss: Tensor = self.loss(weight, hidden.reshape(-1, hidden.shape[-1]), labels.reshape(-1))
        return loss


def chunked_lengths(asked: Asked, name: str, part: float) -> None:
    """A loss in chunks at lengths that change, down to fewer rows than chunks, under one budget in bytes."""
    longest = 1024 if asked.cuda else 64
    whole = build(name, asked.device)
    for one in whole.module.modules():
        if isinstance(one, nn.Dropout):
            # Which elements are dropped hangs on the compiler.
            one.p = 0.0
    reference = asked.step(whole, stock(whole.module))
    reference()
    budget = int(part * asked.peak_bytes(reference))
    call = planned(whole.module, budget, dynamic=True, max_slowdown=None)
    for length in (longest, longest // 2 + 1, 7, longest // 3, 2):
        with asked.row(f"length {length}") as row:
            inputs = {key: value[:, :length].contiguous() for key, value in whole.inputs.items()}
            model = Model(whole.module, inputs, whole.autocast)
            # Beside eager, which compiles nothing for a length.
            right = [asked.step(model, whole.module)(), *gradients(whole.module)]
            step = asked.step(model, call)
            row.figures["apart"] = apart = distance([step(), *gradients(whole.module)], right)
            row.expect(apart <= NEAR, f"{apart:.1e} off eager")
            del right
            measured = asked.peak_bytes(step)
            row.figures |= {"measured": measured, "budget": budget, "compiled": remat_compiler.stats().compilations}
            row.figures["chunks"] = [one.chunks for one in remat_compiler.reports()[-1].chunked]
            row.expect(measured <= budget, f"{measured - budget:+,} B beside the budget")
