"""Lengths that change from step to step under one budget: remat, one plan for the longest, PyTorch's knob, no budget.

    python -m studies.changing_lengths.changing_sizes --dataset qqp --position 0.4 --json OUT.json --plot OUT.png

A BERT-like model is trained on lengths drawn as the paper of Mimose describes three data sets: SWAG (35 to 141,
normal), SQuAD (153 to 512, normal), GLUE-QQP (30 to 332, a power law).  The budget lies at `--position` between the
smallest peak of the longest length (0) and its peak without a budget (1).  First remat runs each length once, in the
order drawn, while the allocator is watched, and the others some of them; then the same batches run in all systems in
turn, and are timed.  By default remat compiles a better variant where that pays; "every better variant" compiles all
that are foreseen to be faster, whatever that takes, and shows what there is to gain.

The time of an epoch is, for each length, the median step times how often the length was drawn; steps in which a
system compiled are not in it, and its compilations are printed beside.
"""

from __future__ import annotations

import argparse
import collections
import gc
import json
import math
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch._inductor.compile_fx import compile_fx
from transformers import BertConfig, BertForSequenceClassification

from instruments.measure import measure_step
from remat_compiler.backend import remat
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.variant_maker import VariantMaker
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.observer import Observer, observed_by
from studies.changing_lengths.lengths import DATASETS

REMAT = "remat"
"""What the systems that it is about are called, at the beginning of their names."""
DRAWN = f"{REMAT}, every better variant"
"""Whose variants are told apart in the picture."""
AT_ONCE = 1e-6
"""How many times over a better variant must save its compilation where all are compiled."""
KNOB = (0.7, 0.5, 0.3, 0.1)
"""Settings of PyTorch's knob that are tried until its measured peak fits at the longest length."""
WATCHED = 12
"""Lengths at which the peak of others than remat is measured, about."""
MOST_WAYS = 256
"""How often Dynamo may compile one model."""


class Classifier(nn.Module):
    """BERT-base in small: the same shape of step, fewer and narrower layers."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        config = BertConfig(
            num_hidden_layers=layers,
            hidden_size=width,
            num_attention_heads=max(width // 64, 1),
            intermediate_size=4 * width,
            vocab_size=2_000,
            problem_type="single_label_classification",
        )
        self.bert = BertForSequenceClassification(config)

    def forward(self, ids: Tensor, labels: Tensor) -> Tensor:
        """The loss."""
        loss: Tensor = self.bert(input_ids=ids, labels=labels).loss
        return loss


@dataclass
class System:
    """One way to train.

    Attributes:
        name: What it is.
        model: Its own copy of the model.
        compiled: What is called.
        pays: How many times over a better variant must save its compilation, where it is remat.
        dispatches: What picks its variants, where it is remat.
        compilations: How often Dynamo called the backend.
        compile_s: Seconds of whatever compiled something.
        peaks: Measured peak at each length, the first step of it included.
        watched: What ran each length when its peak was measured.
        times: Seconds of the steps at each length.
    """

    name: str
    model: nn.Module
    compiled: Callable[..., Tensor]
    pays: float = 1.0
    dispatches: list[Dispatch] = field(default_factory=list)
    compilations: int = 0
    compile_s: float = 0.0
    peaks: dict[int, int] = field(default_factory=dict)
    watched: dict[int, str] = field(default_factory=dict)
    times: dict[int, list[float]] = field(default_factory=lambda: collections.defaultdict(list))

    def step(self, ids: Tensor, labels: Tensor) -> None:
        """One step without an optimizer."""
        for parameter in self.model.parameters():
            parameter.grad = None
        torch.autograd.backward(self.compiled(ids, labels))

    def timed_step(self, ids: Tensor, labels: Tensor) -> None:
        """One step, its time noted unless something was compiled in it."""
        seconds = self.without_compiling(lambda: self.step(ids, labels))
        if seconds is not None:
            self.times[ids.shape[1]].append(seconds)

    def without_compiling(self, action: Callable[[], object]) -> float | None:
        """Seconds that it took; `None` where something was compiled, which is noted."""
        before = self.state()
        start = time.perf_counter()
        action()
        seconds = time.perf_counter() - start
        if self.state() == before:
            return seconds
        self.compile_s += seconds
        return None

    def state(self) -> tuple[int, int]:
        """Changes when something was compiled."""
        return self.compilations, sum(one.made for one in self.dispatches)

    def epoch_s(self, lengths: Sequence[int]) -> float:
        """Seconds of all steps at these lengths."""
        return sum(statistics.median(self.times[length]) for length in lengths)


class Setting:
    """One data set, one model and the batches."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.dataset = DATASETS[arguments.dataset]
        self.lengths = self.dataset.draw(arguments.iterations, arguments.seed)
        self.arguments = arguments

    def batch(self, length: int, seed: int = 0) -> tuple[Tensor, Tensor]:
        """Inputs of one length, which Dynamo is told to change."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, 2_000, (self.arguments.batch, length), generator=generator)
        torch._dynamo.mark_dynamic(ids, 1)
        return ids, torch.zeros(self.arguments.batch, dtype=torch.long)

    def system(self, name: str, backend: Callable[..., Any], patch: Mapping[str, Any] | None = None) -> System:
        """A fresh copy of the model, compiled by `backend`."""
        torch.manual_seed(0)
        model = Classifier(self.arguments.layers, self.arguments.width)
        system = System(name, model, model)

        def counted(gm: Any, inputs: Any) -> Any:
            system.compilations += 1
            with functorch_config.patch(dict(patch or {})), observed_by(_Noted(system)):
                return backend(gm, inputs)

        system.compiled = torch.compile(model, backend=counted)
        return system

    def remat(self, name: str, budget: object, pays: float = 1.0, **options: object) -> System:
        """The model under a budget."""
        system = self.system(name, partial(remat, options={"memory_budget": budget, **options}))
        system.pays = pays
        return system

    def remat_for_all(self, name: str, budget: int, pays: float = 1.0) -> System:
        """The model under a budget for every length, with what the first batch needs compiled."""
        system = self.remat(name, budget, pays)
        system.without_compiling(lambda: system.step(*self.batch(self.lengths[0])))
        return system

    def peak(self, system: System, length: int) -> int:
        """Measured peak of one step, for which what it needs is compiled before."""
        batch = self.batch(length)
        for one in system.dispatches:
            system.without_compiling(partial(one.prepare, (length,)))
            variant = one.prepare((length,))
            system.watched[length] = f"{variant.label} {variant.sizes[0]}"
        gc.collect()
        return measure_step(lambda: system.step(*batch), warmup=0).peak_bytes


class _Noted(Observer):
    """Notes what picks variants with the system that is compiled."""

    def __init__(self, system: System) -> None:
        self.system = system

    def dispatch_made(self, dispatch: Dispatch) -> None:
        """Keep it, and have it compile what pays."""
        self.system.dispatches.append(dispatch)
        maker = dispatch.provider
        assert isinstance(maker, VariantMaker)
        maker.pays = self.system.pays
        maker.threshold_s = maker.pays * maker.compile_s


def systems_of(setting: Setting) -> tuple[int, list[System]]:
    """The budget in bytes, and every system at it."""
    longest = setting.dataset.longest
    free = setting.system("no budget", compile_fx)
    free.step(*setting.batch(longest))
    unbudgeted = setting.peak(free, longest)
    least = setting.remat("smallest peak", "min", max_slowdown=None)
    least.step(*setting.batch(longest))
    lowest = setting.peak(least, longest)
    budget = int(lowest + setting.arguments.position * (unbudgeted - lowest))
    print(
        f"longest {longest}: {unbudgeted:,} B without a budget, {lowest:,} B at least; budget {budget:,} B", flush=True
    )
    systems = [
        setting.remat_for_all(REMAT, budget),
        setting.remat_for_all(DRAWN, budget, AT_ONCE),
        *(_static(setting, budget, planner) for planner in setting.arguments.static),
        *(_knob(setting, budget) if setting.arguments.knob else ()),
        free,
    ]
    return budget, [system for system in systems if system is not None]


def _static(setting: Setting, budget: int, planner: str) -> System | None:
    """One plan for the longest length, used for all."""
    system = setting.remat(f"one plan ({planner})", budget, math.inf, planner=planner, max_slowdown=None)
    try:
        system.step(*setting.batch(setting.dataset.longest))
    except InfeasibleBudget as error:
        print(f"{system.name}: {error}", flush=True)
        return None
    return system


def _knob(setting: Setting, budget: int) -> list[System]:
    """PyTorch's knob at the largest setting whose measured peak fits at the longest length, else at its smallest peak.

    Beside it remat with that peak as its budget.
    """
    longest = setting.dataset.longest
    peaks: dict[int, System] = {}
    for ratio in KNOB:
        system = setting.system(f"knob {ratio}", compile_fx, {"activation_memory_budget": ratio})
        system.step(*setting.batch(longest))
        peak = setting.peak(system, longest)
        print(f"{system.name}: {peak:,} B at the longest length", flush=True)
        peaks.setdefault(peak, system)
        if peak <= budget:
            break
    least = min(peaks)
    same = setting.remat_for_all(f"{REMAT} at the peak of {peaks[least].name}", least, AT_ONCE)
    return [peaks[least], same]


def run(setting: Setting) -> dict[str, Any]:
    """Everything; prints as it goes."""
    budget, systems = systems_of(setting)
    distinct = list(dict.fromkeys(setting.lengths))
    some = set(sorted(distinct)[:: max(len(distinct) // WATCHED, 1)]) | {max(distinct)}
    for i, length in enumerate(distinct):
        for system in systems:
            if system.name == DRAWN or length in some:
                system.peaks[length] = setting.peak(system, length)
        if i % 20 == 19:
            print(f"peaks of {i + 1} of {len(distinct)} lengths", flush=True)
    start = time.perf_counter()
    for i, length in enumerate(setting.lengths):
        batch = setting.batch(length, seed=i)
        for k in range(len(systems)):
            systems[(i + k) % len(systems)].timed_step(*batch)
        if i % 100 == 99:
            print(f"{i + 1} of {len(setting.lengths)} steps, {time.perf_counter() - start:.0f} s", flush=True)
    return {
        "arguments": {key: str(value) for key, value in vars(setting.arguments).items()},
        "budget_bytes": budget,
        "lengths": setting.lengths,
        "systems": [_result(system, setting, budget) for system in systems],
    }


def _result(system: System, setting: Setting, budget: int) -> dict[str, Any]:
    decisions = sum(one.decisions for one in system.dispatches)
    return {
        "name": system.name,
        "epoch_s": system.epoch_s(setting.lengths),
        "compile_s": system.compile_s,
        "backend_calls": system.compilations,
        "variants": [
            {"label": v.label, "sizes": v.sizes, "added": v.added} for one in system.dispatches for v in one.variants
        ],
        "variant_of_length": system.watched,
        "decision_ms": 1e3 * sum(one.decision_s for one in system.dispatches) / max(decisions, 1),
        "peak_bytes": system.peaks,
        "budget_bytes": _own_budget(system, budget),
        "variants_made": sum(one.made for one in system.dispatches),
        "over_budget": sum(peak > _own_budget(system, budget) for peak in system.peaks.values()),
        "median_s": {length: statistics.median(times) for length, times in system.times.items()},
    }


def _own_budget(system: System, budget: int) -> int:
    return system.dispatches[0].limit_bytes if system.dispatches else budget


def draw(result: dict[str, Any], path: Path) -> None:
    """Peak over length, remat's variants apart, and the time of an epoch relative to no budget."""
    from matplotlib import pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5), width_ratios=(3, 2))
    systems = result["systems"]
    for number, system in enumerate(systems):
        peaks = sorted((int(length), peak / 2**20) for length, peak in system["peak_bytes"].items())
        if system["name"] != DRAWN:
            left.plot(*zip(*peaks), color=f"C{number}", linewidth=1, label=system["name"])
            continue
        of_length = {int(length): label for length, label in system["variant_of_length"].items()}
        for marker, variant in zip("os^vD*PX", sorted(set(of_length.values()))):
            points = [(length, peak) for length, peak in peaks if of_length.get(length) == variant]
            if points:
                left.plot(*zip(*points), marker, color="black", markersize=4, label=f"{REMAT}: {variant}")
    left.axhline(result["budget_bytes"] / 2**20, color="red", linestyle="--", linewidth=1, label="budget")
    left.set(xlabel="length", ylabel="measured peak, MiB", title="Peak of each length, its first step included")
    left.legend(fontsize=7)
    free = next(system["epoch_s"] for system in systems if system["name"] == "no budget")
    right.barh([s["name"] for s in systems], [s["epoch_s"] / free for s in systems], color=[f"C{i}" for i in range(9)])
    for number, system in enumerate(systems):
        right.text(system["epoch_s"] / free, number, f" {system['epoch_s'] / free:.3f}", va="center", fontsize=8)
    right.axvline(1.0, color="grey", linewidth=0.5)
    right.set(title="Time of an epoch, relative to no budget")
    figure.tight_layout()
    figure.savefig(path, dpi=110)


def main() -> None:
    """Run, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=DATASETS, default="qqp")
    parser.add_argument("--position", type=float, default=0.4)
    parser.add_argument("--iterations", type=int, default=1_000)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--static", nargs="*", default=["chen_sqrt", "auto"], metavar="PLANNER")
    parser.add_argument("--knob", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    arguments = parser.parse_args()
    # What an earlier run found to be worth compiling would be compiled at once.
    os.environ["REMAT_DISABLE_CACHE"] = "1"
    torch._dynamo.config.recompile_limit = torch._dynamo.config.accumulated_recompile_limit = MOST_WAYS
    result = run(Setting(arguments))
    free = next(s["epoch_s"] for s in result["systems"] if s["name"] == "no budget")
    print(
        f"{'system':30} {'epoch':>8} {'ratio':>6} {'largest peak':>14} {'over':>5} {'calls':>5} "
        f"{'variants':>8} {'compiling':>9}"
    )
    for s in result["systems"]:
        print(
            f"{s['name']:30} {s['epoch_s']:7.1f}s {s['epoch_s'] / free:6.3f} {max(s['peak_bytes'].values()):14,} "
            f"{s['over_budget']:5} {s['backend_calls']:5} {s['variants_made']:8} "
            f"{s['compile_s']:8.1f}s  decision {s['decision_ms']:.3f} ms"
        )
    if arguments.plot:
        draw(result, arguments.plot)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
