"""Models whose optimizer updates each parameter within the backward, or after it: smallest peaks and times.

    python -m studies.gradients_leave.within [--models vgg19 gpt2] [--inners eager inductor]

Each way trains the same model from the same weights by SGD, whose updates are part of the step.  Peaks are the
allocator's, of a step after the first two; times are CPU seconds of a step, the least of several rounds in which the
ways take turns.  The losses of the last steps are compared: they are those of eager.
"""

from __future__ import annotations

import argparse
import copy
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import remat_compiler
from instruments.measure import measure_step
from remat_compiler.progress import progress
from zoo.registry import ZooModel, build

MODELS = ("vgg19", "alexnet", "gpt2", "t5", "llama", "mlp200", "lora")
ROUNDS = 4
RATE = 1e-3


@dataclass(slots=True)
class Way:
    """One way to train, and what came of it."""

    name: str
    step: Callable[[], float]
    peak_bytes: int = 0
    predicted_bytes: int | None = None
    cpu_s: float = float("inf")
    loss: float = 0.0


def way(name: str, model: ZooModel, budget: Any, inner: str, *, within: bool) -> Way:
    """A way, compiled; without a budget in eager."""
    module = copy.deepcopy(model.module)

    def make(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
        # One parameter at a time, as within the backward: several at once take temporaries for all of them.
        return torch.optim.SGD(parameters, lr=RATE, foreach=False)

    optimizer = remat_compiler.step_in_backward(module, make) if within else make(list(module.parameters()))
    remat_compiler.clear_reports()
    call: Any = module
    if budget is not None:
        given = {"memory_budget": budget, "inner": inner, "max_slowdown": None}
        call = torch.compile(module, backend="remat", options=given)

    def step() -> float:
        loss = call(**model.inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss)

    made = Way(name, step)
    made.peak_bytes = measure_step(step).peak_bytes
    reports = remat_compiler.reports()
    made.predicted_bytes = reports[-1].checked_peak_bytes if len(reports) == 1 else None
    return made


class Adapted(nn.Module):
    """A linear layer that is not trained, and one of rank 8 beside it."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer, self.down = layer, nn.Linear(layer.in_features, 8, bias=False)
        self.up = nn.Linear(8, layer.out_features, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Both of them, added."""
        added: Tensor = self.layer(x) + self.up(self.down(x))
        return added


def adapted(model: ZooModel) -> ZooModel:
    """The model with adapters of low rank beside its linear layers, which alone are trained."""
    model.module.requires_grad_(False)
    for parent in list(model.module.modules()):
        for name, layer in list(parent.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(parent, name, Adapted(layer))
    return model


def ways(name: str, inner: str) -> list[Way]:
    """All ways of one model, measured."""
    model = adapted(build("llama")) if name == "lora" else build(name)
    torch._dynamo.reset()
    made = [way("eager", model, None, inner, within=False)]
    with progress(f"{name}, {inner}", 5) as shown:
        for title, budget, within in (("after, 1.0", 1.0, False), ('after, "min"', "min", False)):
            made.append(way(title, model, budget, inner, within=within))
            shown.advance()
        smallest = made[-1].peak_bytes
        for title, budget in (
            ("within, 1.0", 1.0),
            ('within, the bytes of that "min"', smallest),
            ('within, "min"', "min"),
        ):
            made.append(way(title, model, budget, inner, within=True))
            shown.advance()
    for _ in range(ROUNDS):
        for one in made:
            start = time.process_time()
            one.loss = one.step()
            one.cpu_s = min(one.cpu_s, time.process_time() - start)
    return made


HEAD = (
    "| model | inner | updates, budget | peak, measured | predicted | CPU time | loss |\n"
    "|---|---|---|--:|--:|--:|--:|\n"
    "| | | | | | of after, 1.0 | of eager's |"
)


def main() -> None:
    """Print a table of Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--inners", nargs="*", default=["eager"])
    given = parser.parse_args()
    os.environ["REMAT_DISABLE_CACHE"] = "1"
    torch.set_num_threads(1)
    print(HEAD, flush=True)
    for name in given.models:
        for inner in given.inners:
            made = ways(name, inner)
            base = next(one for one in made if one.name == "after, 1.0")
            for one in made:
                predicted = "" if one.predicted_bytes is None else f"{one.predicted_bytes / 1e6:.2f} MB"
                figures = f"{one.peak_bytes / 1e6:.2f} MB | {predicted} | {one.cpu_s / base.cpu_s:.2f}"
                print(f"| {name} | {inner} | {one.name} | {figures} | {one.loss / made[0].loss:.8f} |", flush=True)


if __name__ == "__main__":
    main()
