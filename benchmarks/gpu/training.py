"""Questions of whole training steps: updates in the backward, and gradients that add up."""

from __future__ import annotations

import time
from functools import partial
from typing import Any

import torch
from torch import Tensor

import remat_compiler
from gpu.asked import NEAR, Asked, Step, distance, held, planned, stock
from gpu.models import Model, build, large_llama
from instruments.measure import step_times


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
