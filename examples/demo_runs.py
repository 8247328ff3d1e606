"""The runs of the demo: one model, compiled in several ways, trained from the same weights on the same batches."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch.nn import functional
from transformers import BertConfig, BertForMaskedLM

import remat_compiler
from demo_table import Outcome, relative_difference
from instruments.measure import StepTimes, TrainStep, measure_step, step_times
from masked_text import NOT_ASKED, TEXT, Vocabulary, batches, words_of
from remat_compiler.memory_budget import MemoryBudget
from remat_compiler.options import INNER_COMPILERS
from remat_compiler.units import format_bytes


@dataclass(frozen=True, slots=True)
class Size:
    """How much the demo does: the model, the batches, training steps, and rounds of timing."""

    layers: int
    hidden: int
    batch: int
    length: int
    steps: int
    rounds: int


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to train.

    Attributes:
        name: What it is called in the table.
        budget: remat's `memory_budget`, or `None` for none.
        inner: What compiles remat's graphs.
        knob: PyTorch's `activation_memory_budget`; where it is given, Inductor alone compiles, without remat.
    """

    name: str
    budget: float | str | None = None
    inner: str = "inductor"
    knob: float | None = None

    @property
    def unlimited(self) -> bool:
        """Whether nothing limits its memory."""
        return self.budget is None and self.knob is None

    @property
    def folder(self) -> str:
        """Name of the folder of its dumps."""
        words = "".join(c if c.isalnum() or c == "." else " " for c in self.name).split()
        return "_".join(words)


@dataclass(frozen=True, slots=True)
class Run:
    """A variant that was compiled and trained; `limit_bytes` is its budget, where it has one in bytes."""

    variant: Variant
    step: TrainStep
    losses: tuple[float, ...]
    limit_bytes: int | None
    predicted_bytes: int | None
    measured_bytes: int


class MaskedWords(nn.Module):
    """BERT, and the cross entropy of the words that it has to guess."""

    def __init__(self, size: Size, num_words: int) -> None:
        super().__init__()
        config = BertConfig(
            vocab_size=num_words,
            hidden_size=size.hidden,
            num_hidden_layers=size.layers,
            num_attention_heads=4,
            intermediate_size=4 * size.hidden,
            max_position_embeddings=size.length,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
        self.network = BertForMaskedLM(config)
        self.network.set_attn_implementation("sdpa")

    def forward(self, input_ids: Tensor, labels: Tensor) -> Tensor:
        """Mean loss over the hidden words."""
        logits: Tensor = self.network(input_ids).logits
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=NOT_ASKED)


class Runs:
    """Runs variants one after another, says so, and compares them.

    The first variant of each inner compiler must be the unlimited one, which the others are compared with.
    """

    def __init__(self, size: Size, output: Path, num_variants: int) -> None:
        words = words_of(TEXT.read_text(encoding="utf-8"))
        vocabulary = Vocabulary.of(words)
        drawn = batches(vocabulary.encode(words), size=size.batch, length=size.length)
        self.size, self.output, self.num_variants = size, output, num_variants
        self.num_words = len(vocabulary)
        self.batches = tuple(islice(drawn, size.steps))
        self.done: list[Run] = []
        parameters = sum(p.numel() for p in self.model().parameters())
        say(f"text: {TEXT.name}, {len(words)} words and marks, {self.num_words} different")
        say(
            f"model: BERT, {size.layers} layers, {size.hidden} wide, {parameters / 1e6:.1f} million parameters; "
            f"batches of {size.batch} x {size.length}; {torch.get_num_threads()} threads\n"
        )

    def model(self) -> MaskedWords:
        """The model with the weights that every run starts from."""
        torch.manual_seed(0)
        return MaskedWords(self.size, self.num_words).train()

    def run(self, variant: Variant) -> Run:
        """Compile `variant`, train with it, and measure its peak."""
        say(f"[{len(self.done) + 1}/{self.num_variants}] {variant.name}: compiling ...")
        # Graphs are numbered anew in each process: those of an earlier demo would stay beside the new ones.
        shutil.rmtree(self.output / variant.folder, ignore_errors=True)
        remat_compiler.clear_reports()
        model, start = self.model(), time.perf_counter()
        step = TrainStep(self.compiled(model, variant), self.batches[0], tuple(model.parameters()))
        # The knob is read while the first step compiles.
        knob = nullcontext() if variant.knob is None else functorch_config.patch(activation_memory_budget=variant.knob)
        with knob:
            step()
        seconds = time.perf_counter() - start
        losses = train(step, self.batches)
        reports = remat_compiler.reports()
        measured = measure_step(step, warmup=1).peak_bytes
        step.release()
        predicted = reports[0].peak_bytes if len(reports) == 1 else None
        run = Run(variant, step, losses, self.limit_bytes(variant), predicted, measured)
        self.done.append(run)
        say(
            f"      {seconds:.0f} s; peak {format_bytes(measured)}; "
            f"loss {losses[0]:.3f} -> {losses[-1]:.3f} in {len(losses)} steps"
        )
        return run

    def compiled(self, model: nn.Module, variant: Variant) -> Callable[..., Tensor]:
        """`model` as `variant` compiles it, which happens at the first call."""
        if variant.knob is not None:
            return torch.compile(model, backend="inductor")
        options: dict[str, Any] = {"inner": variant.inner, "dump": str(self.output / variant.folder)}
        if variant.budget is not None:
            options["memory_budget"] = variant.budget
        return torch.compile(model, backend="remat", options=options)

    def limit_bytes(self, variant: Variant) -> int | None:
        """The budget in bytes; a fraction is one of the peak that the same step has without a budget."""
        if variant.budget is None:
            return None
        unlimited = next(run for run in self.done if run.variant.unlimited and run.variant.inner == variant.inner)
        return MemoryBudget.parse(variant.budget).of_reference(unlimited.measured_bytes)

    def outcomes(self) -> list[Outcome]:
        """What all runs showed, with the steps of one inner compiler timed side by side."""
        say(f"timing the steps side by side, {self.size.rounds} rounds ...\n")
        times: dict[str, StepTimes] = {}
        for inner in INNER_COMPILERS:
            steps = {run.variant.name: run.step for run in self.done if run.variant.inner == inner}
            times.update(step_times(steps, self.size.rounds, warmup=1) if steps else {})
        return [self._outcome(run, times[run.variant.name]) for run in self.done]

    def _outcome(self, run: Run, times: StepTimes) -> Outcome:
        return Outcome(
            name=run.variant.name,
            compiler="remat" if run.variant.knob is None else "torch",
            limit_bytes=run.limit_bytes,
            predicted_bytes=run.predicted_bytes,
            measured_bytes=run.measured_bytes,
            step_ns=times.wall_ns,
            ratio=times.wall_ratio,
            losses=run.losses,
            loss_error=relative_difference(run.losses, self.done[0].losses),
        )


def train(step: TrainStep, training: Sequence[Mapping[str, Tensor]]) -> tuple[float, ...]:
    """Loss of each step of gradient descent over the batches."""
    optimizer = torch.optim.SGD(step.parameters, lr=0.1)
    losses = []
    for batch in training:
        losses.append(float(replace(step, inputs=batch)()))
        optimizer.step()
    return tuple(losses)


def say(words: str) -> None:
    """Print at once, also into a pipe."""
    print(words, flush=True)
