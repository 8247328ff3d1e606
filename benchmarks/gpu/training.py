"""Questions of whole training steps: updates in the backward, gradients that add up, and losses in chunks."""

from __future__ import annotations

import importlib.util
import time
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import remat_compiler
from gpu.asked import NEAR, Asked, Step, distance, held, planned, stock
from gpu.models import Model, build, large_llama
from instruments.measure import gradients, step_times


class TrainingStep(Step):
    """A step with the updates of AdamW, after the backward or within it."""

    def __init__(self, asked: Asked, model: Model, call: Any, *, within: bool) -> None:
        super().__init__(model, call, asked.device)
        make = partial(torch.optim.AdamW, lr=1e-4, fused=asked.cuda)
        if within:
            self.optimizer = remat_compiler.step_in_backward(model.module, make)
        else:
            self.optimizer = make(model.module.parameters())

    def __call__(self) -> Tensor:
        """One step; its loss."""
        loss = super().__call__()
        self.optimizer.step()
        self.release()
        return loss


def updates(asked: Asked, name: str) -> None:
    """AdamW after the backward and within it, stock and planned: losses and parameters, peaks, times."""
    steps = dict[str, TrainingStep]()
    right, noise = list[Tensor](), 0.0

    def add(way: str, budget: Any, *, within: bool) -> int:
        nonlocal right, noise
        with asked.row(way) as row:
            model, began = build(name, asked.device), time.monotonic()
            initial = [one.detach().clone() for one in model.module.parameters()]
            call = stock(model.module) if budget is None else planned(model.module, budget, max_slowdown=None)
            step = TrainingStep(asked, model, call, within=within)
            losses = torch.stack([step() for _ in range(4)])
            row.figures["compiled_s"] = round(time.monotonic() - began, 1)
            found = [losses, *(new.detach() - old for new, old in zip(model.module.parameters(), initial, strict=True))]
            right = right or found
            row.figures["apart"] = apart = distance(found, right)
            # Adam steps by signs at first, which noise decides for many elements.
            noise = noise or apart
            row.expect(apart <= max(NEAR, 2 * noise), f"{apart:.1e} off stock")
            if budget is None:
                row.figures["measured"] = asked.peak_bytes(step)
            else:
                held(asked, row, step, budget)
            steps[way] = step
            return int(row.figures["measured"])
        return 0

    half = add("stock, after", None, within=False) // 2
    add("stock, within", None, within=True)
    add("within, 1.0", 1.0, within=True)
    add("within, half of stock's", half, within=True)
    add("after, half of stock's", half, within=False)
    asked.quiet()
    with asked.row("times") as row:
        row.status = "told"
        row.figures |= {way: round(one.wall_ns / 1e6, 3) for way, one in step_times(steps, 10).items()}
    asked.trace(steps)


def accumulated(asked: Asked, name: str) -> None:
    """Micro-batches whose gradients add up: is each of three steps of four within a budget that counts them."""
    model = build(name, asked.device)
    call = stock(model.module)
    step = asked.step(model, call)
    step()
    parameters = sum(one.nbytes for one in model.module.parameters())
    budget = int(0.8 * asked.peak_bytes(step)) + parameters
    call = planned(model.module, budget, max_slowdown=None)
    step = asked.step(model, call)
    for number in range(3):
        step.release()
        for micro in range(4):
            with asked.row(f"step {number}, micro-batch {micro}") as row:
                if asked.cuda:
                    torch.cuda.synchronize()
                    torch.cuda.reset_peak_memory_stats()
                    gradients_bytes = sum(p.grad.nbytes for p in model.module.parameters() if p.grad is not None)
                    before = torch.cuda.memory_allocated() - gradients_bytes
                loss = step.forward()
                loss.backward()  # type: ignore[no-untyped-call]
                if asked.cuda:
                    measured = torch.cuda.max_memory_allocated() - before
                    row.figures |= {"measured": measured, "budget": budget}
                    # The first two are planned without gradients from before.
                    row.status = "told" if number == 0 else "ok"
                    if number:
                        row.expect(measured <= budget, f"{measured - budget:+,} B beside the budget")
                del loss


def chunks(asked: Asked, name: str) -> None:
    """The loss whole, by Liger's kernel, and in chunks chosen by the compiler with the peak of that as its budget."""
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
                row.figures["chunks"] = [one.chunks for one in remat_compiler.reports()[-1].chunked]
            peaks[way], steps[way] = int(row.figures["measured"]), step

    model = build(name, asked.device)
    add("whole", model, stock(model.module))
    if importlib.util.find_spec("liger_kernel") is not None and asked.cuda:
        fused = Model(LigerLoss(model.module.network), model.inputs, model.autocast, model.blocks)
        add("liger", fused, stock(fused.module))
    budget = peaks.get("liger", int(0.8 * peaks["whole"]))
    add("remat at liger", model, planned(model.module, budget, chunks="auto", max_slowdown=None), budget)
    quarter = int(0.25 * peaks["whole"])
    add("remat at a quarter", model, planned(model.module, quarter, chunks="auto", max_slowdown=None), quarter)
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


def large(asked: Asked, size: str, layers: int, budget: int) -> None:
    """A Llama of a published size, all of its parameters trained by AdamW in bfloat16."""
    with asked.row(f"{size}, {layers} layers") as row:
        model, began = large_llama(asked.device, size, layers), time.monotonic()
        call = planned(model.module, budget, max_slowdown=None)
        step = TrainingStep(asked, model, call, within=True)
        row.figures["losses"] = losses = [round(float(step()), 4)]
        row.figures["first_step_s"] = round(time.monotonic() - began, 1)
        losses += [round(float(step()), 4) for _ in range(2)]
        row.expect(losses == sorted(losses, reverse=True), "the loss does not fall")
        held(asked, row, step, budget)
        row.figures["step_ms"] = times = list[float]()
        for _ in range(3):
            began = time.monotonic()
            float(step())
            times.append(round(1e3 * (time.monotonic() - began), 1))
        if asked.cuda:
            row.figures["whole_peak"] = torch.cuda.max_memory_allocated()
            row.figures["reserved"] = torch.cuda.max_memory_reserved()
