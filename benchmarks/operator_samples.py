"""Every operator trained under three budgets, over torch's own samples: results as eager's, and peaks as foreseen.

    python benchmarks/operator_samples.py --results samples.txt     # all; goes on where it ended
    python benchmarks/operator_samples.py --operators 0 60 --samples 3 --layouts plain transposed

Each operator of torch's database runs on its samples within a small program that is trained in eager, compiled by
``aot_eager``, and compiled by this project with an interpreter under the budgets 1.0, 0.6 and "min".  Where
``aot_eager`` trains as eager does, outputs, gradients and changed inputs must be those of eager, and the peak of a step
that is one graph no higher than foreseen.  A line for each operator says what came of it:

    ok         all samples were as in eager
    skipped    nothing to compare: no gradients, or ``aot_eager`` fails or differs from eager itself
    WRONG      other results than eager's
    CRASH      an error, where ``aot_eager`` has none
    OVER       a higher peak than was foreseen, of which no warning was given

The database needs ``expecttest``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._functorch import config as functorch_config
from torch.utils._pytree import tree_leaves, tree_map_only

sys.path.append(str(Path(__file__).parents[1] / "tests"))

import remat_compiler
from heard import warnings_heard
from instruments.measure import allocator_events, live_bytes
from instruments.operator_database import LAYOUTS, REFUSALS
from remat_compiler.backend import remat

BUDGETS: tuple[float | str, ...] = (1.0, 0.6, "min")
DRAWN = 12
"""Samples of an operator, of which the largest are taken."""
ERRORS: tuple[type[Exception], ...] = (
    *REFUSALS,
    *(KeyError, AttributeError, ArithmeticError),
    *(remat_compiler.RematError, torch._dynamo.exc.TorchDynamoException),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a program leaves: its outputs, the gradients of its inputs, and the inputs themselves."""

    values: tuple[Tensor, ...]

    def equals(self, other: Outcome, tolerance: float = 0.0) -> bool:
        """Whether all values are alike, within a tolerance that is relative and absolute."""
        return len(self.values) == len(other.values) and all(
            _alike(one, two, tolerance) for one, two in zip(self.values, other.values)
        )


def _alike(one: Tensor, other: Tensor, tolerance: float) -> bool:
    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return False
    if one.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return torch.allclose(one, other, rtol=tolerance, atol=tolerance, equal_nan=True)


@dataclass(frozen=True, slots=True)
class Sample:
    """A small program around one operator, and its inputs.

    Attributes:
        operator: What is called.
        given: Its arguments and keyword arguments, with tensors that nothing changes.
        in_place: Whether the operator changes its first argument.
    """

    operator: Callable[..., Any]
    given: tuple[Any, ...]
    in_place: bool = False

    def inputs(self) -> list[Tensor]:
        """Fresh copies of the tensors."""
        return [_copied(one) for one in tree_leaves(self.given) if isinstance(one, Tensor)]

    def program(self) -> Callable[..., tuple[Tensor, ...]]:
        """From the tensors to a loss and the results, with pointwise operators around, which a plan may repeat."""
        operator, given, in_place = self.operator, self.given, self.in_place

        def run(*tensors: Tensor) -> tuple[Tensor, ...]:
            rest = iter(tensors)

            def prepared(_: Tensor) -> Tensor:
                one = next(rest)
                return one * 1.0 if one.requires_grad else one.clone() if in_place else one

            arguments, keywords = tree_map_only(Tensor, prepared, given)
            made = [one for one in tree_leaves(operator(*arguments, **keywords)) if isinstance(one, Tensor)]
            smooth = [_smooth(one) for one in made]
            # A step that ends with one number is foreseen to the byte.
            ends = [one.abs().sum() if one.is_complex() else one.sum() for one in smooth if one.requires_grad]
            return torch.stack(ends).sum(), *smooth

        return run

    def trained(self, compiled: Callable[..., Any]) -> Outcome:
        """One step of a compiled form of the program."""
        inputs = self.inputs()
        torch.manual_seed(0)
        outputs = compiled(*inputs)
        outputs[0].backward()
        gradients = [one.grad for one in inputs if one.grad is not None]
        return Outcome(tuple(one.detach() for one in (*outputs, *gradients, *inputs)))


def _copied(tensor: Tensor) -> Tensor:
    copy = tensor.detach().clone()
    return copy.requires_grad_(tensor.requires_grad)


def _smooth(result: Tensor) -> Tensor:
    if not (result.is_floating_point() or result.is_complex()) or result.layout is not torch.strided:
        return result
    return result.sin()


def samples_of(operator: Any, layout: Callable[[Any], Any], most: int) -> Iterator[Sample]:
    """The largest samples of an operator that has gradients, each for every form of it."""
    drawn: list[Any] = []
    # Some samples are for devices that are not there.
    with suppress(*REFUSALS):
        for sample, _ in zip(operator.sample_inputs("cpu", torch.float32, requires_grad=True), range(DRAWN)):
            drawn.append(sample.transform(layout))
    sizes = [sum(one.numel() for one in tree_leaves(_given(s)) if isinstance(one, Tensor)) for s in drawn]
    order = sorted(range(len(drawn)), key=lambda i: (-sizes[i], i))
    for i in order[:most]:
        yield Sample(operator.op, _given(drawn[i]))
        if operator.inplace_variant is not None and not drawn[i].broadcasts_input:
            yield Sample(operator.inplace_variant, _given(drawn[i]), in_place=True)


def _given(sample: Any) -> tuple[Any, ...]:
    return (sample.input, *sample.args), dict(sample.kwargs)


def verdict(sample: Sample) -> str:
    """What comes of one sample: a word of the module's docstring, and what failed."""
    program = sample.program()
    try:
        expected = sample.trained(program)
        again = sample.trained(program)
    except ERRORS as error:
        return f"skipped eager: {type(error).__name__}"
    try:
        stock = sample.trained(_compiled(program, "aot_eager"))
    except ERRORS as error:
        return f"skipped aot_eager: {type(error).__name__}"
    if not stock.equals(expected, 1e-4) or not again.equals(expected):
        return "skipped aot_eager differs from eager, or eager from itself"
    over = ""
    for budget in BUDGETS:
        remat_compiler.clear_reports()
        options = {"memory_budget": budget, "inner": "eager", "on_infeasible": "min", "max_slowdown": None}
        compiled = _compiled(program, partial(remat, options={**options, "cost_model": "nominal"}))
        with warnings_heard() as told:
            try:
                # The first call is watched.
                found = [sample.trained(compiled) for _ in range(2)]
            except ERRORS as error:
                return f"CRASH under {budget}: {type(error).__name__}: {str(error).strip().splitlines()[0][:150]}"
            if not all(one.equals(stock) or one.equals(expected, 1e-5) for one in found):
                return f"WRONG under {budget}"
            excess = _excess(sample, compiled, budget)
        over = over or ("" if told else excess)
    return over or "ok"


def _compiled(program: Callable[..., Any], backend: Any) -> Callable[..., Any]:
    torch._dynamo.reset()
    compiled: Callable[..., Any] = torch.compile(program, backend=backend, dynamic=False)
    return compiled


def _excess(sample: Sample, compiled: Callable[..., Any], budget: object) -> str:
    """How far the peak of a step is above what was foreseen, if it is one graph."""
    reports = remat_compiler.reports()
    if len(reports) != 1 or reports[0].checked_peak_bytes is None:
        return ""
    if budget == 1.0 and any(counters[reason] for reason in ("graph_break", "unimplemented")):
        return ""  # the whole step, however much of it is left to eager
    inputs = sample.inputs()

    def step() -> object:
        outputs = compiled(*inputs)
        outputs[0].backward()
        return outputs

    step()
    for one in inputs:
        one.grad = None
    measured = max(live_bytes(allocator_events(step)), default=0)
    foreseen = reports[0].peak_bytes
    return f"OVER under {budget}: {measured} for {foreseen}" if measured > foreseen else ""


def judged(operators: Iterable[Any], layouts: Sequence[str], most: int) -> Iterator[tuple[str, str]]:
    """The name of each operator in each layout, and the worst verdict on its samples."""
    for operator in operators:
        for layout in layouts:
            name = f"{operator.name}{'.' if operator.variant_test_name else ''}{operator.variant_test_name} {layout}"
            if not operator.supports_autograd or not operator.supports_dtype(torch.float32, "cpu"):
                yield name, "skipped no gradients"
                continue
            found = [
                verdict(sample) + (" (in place)" if sample.in_place else "")
                for sample in samples_of(operator, LAYOUTS[layout], most)
            ]
            rank = ("WRONG", "CRASH", "OVER", "ok", "skipped")
            yield name, min(found, key=lambda text: rank.index(text.split()[0]), default="skipped no samples")


def main() -> None:
    """Train, and print the verdicts."""
    from torch.testing._internal.common_methods_invocations import op_db

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=["plain"])
    parser.add_argument("--operators", nargs=2, type=int, default=(0, len(op_db)), metavar=("FROM", "TO"))
    parser.add_argument("--only", nargs="+", default=[], help="names of operators")
    parser.add_argument("--samples", type=int, default=1, help="of each operator, the largest")
    parser.add_argument("--minutes", type=float, default=float("inf"))
    parser.add_argument("--results", type=Path, help="a file of verdicts that is gone on with")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torch").setLevel(logging.CRITICAL)
    logging.getLogger("remat_compiler").propagate = False
    torch.set_num_threads(1)
    done: dict[str, str] = {}
    if arguments.results is not None and arguments.results.exists():
        done = dict(line.split(": ", 1) for line in arguments.results.read_text().splitlines())
    until = time.monotonic() + 60 * arguments.minutes
    first, last = arguments.operators
    wanted = [one for one in op_db[first:last] if not arguments.only or one.name in arguments.only]
    with functorch_config.patch(enable_autograd_cache=False):
        for name, text in judged(_undone(wanted, arguments.layouts, done, until), arguments.layouts, arguments.samples):
            done[name] = text
            print(f"{name}: {text}", flush=True)
            if arguments.results is not None:
                with arguments.results.open("a") as file:
                    file.write(f"{name}: {text}\n")
    print(dict(Counter(text.split()[0] for text in done.values())))


def _undone(operators: Iterable[Any], layouts: Sequence[str], done: dict[str, str], until: float) -> Iterator[Any]:
    for one in operators:
        name = f"{one.name}{'.' if one.variant_test_name else ''}{one.variant_test_name}"
        if time.monotonic() < until and not all(f"{name} {layout}" in done for layout in layouts):
            yield one


if __name__ == "__main__":
    main()
