"""A random program compiled under a budget, and what became of it: compared with eager, measured at the allocator.

for trial in judge(draw(17), budgets=(1.0, 0.6, "min")):
    print(trial.verdict, trial.detail)
"""

from __future__ import annotations

import gc
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property, partial
from typing import Any
from zlib import crc32

import torch
from torch import Tensor, nn
from torch._inductor import config as inductor_config

import remat_compiler
from end_to_end.custom_operators import EFFECTS
from end_to_end.random_programs import Loaded, Program
from heard import warnings_heard
from instruments.measure import peak_of_second
from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget

Backend = Callable[..., Any]

SETTLED = 3
"""Steps that are compared; the one after them is measured, when all graphs of the step have their share."""
PREDICTED_HIGHER = 1.15
"""A fraction of several graphs is one of their predicted peak, which bounds the measured one: by how much at most."""
MORE_THAN_ITS_GRAPH = frozenset({"two calls", "twice", "two losses"})
"""Uses whose steps peak otherwise than the graph by itself: it runs, or its backward does, more than once."""
CALLS_BEFORE = frozenset({"a call in vain", "a bad batch first"})
"""Uses that call the module once more before; an input with a gradient that this call changed keeps its graph."""
TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-3, torch.bfloat16: 0.1}
EXACT_TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 1e-2}
"""With the interpreter the same kernels run, in another order at most."""


class Verdict(Enum):
    """What became of a program under a budget; the first five must not happen."""

    WRONG = "wrong numbers"
    CRASH = "crash where eager and stock train"
    SILENT = "over the budget in silence"
    WHOLE_REFUSED = "1.0 refused"
    DIED = "process died or hung"
    KEPT = "kept"
    WARNED = "over, warned"
    REFUSED = "refused"
    AS_STOCK = "as stock: fails or differs alike"
    UNPLANNED = "nothing to plan"


CHANGED_BEHIND = "give it a clone of that input"
"""Of the error for an input that the program changes behind its graph and before its backward: a limit, and told."""
BAD = frozenset({Verdict.WRONG, Verdict.CRASH, Verdict.SILENT, Verdict.WHOLE_REFUSED, Verdict.DIED})


@dataclass(frozen=True, slots=True)
class Trial:
    """One program under one budget.

    Attributes:
        budget: As asked.
        verdict: What became of it.
        detail: What differs, or the error, in one line.
        measured_bytes: Peak of a settled step, or 0.
        allowed_bytes: What the budget means in bytes, or 0 where that is not known.
        predicted_bytes: What the report says, or 0 where several graphs were planned.
        exact: Whether the prediction is what was measured; `None` where that says nothing.
    """

    budget: float | str
    verdict: Verdict
    detail: str = ""
    measured_bytes: int = 0
    allowed_bytes: int = 0
    predicted_bytes: int = 0
    exact: bool | None = None


@dataclass(frozen=True, slots=True)
class Observed:
    """What the steps of a program left behind, by name."""

    steps: tuple[dict[str, Any], ...]


class Stock:
    """What PyTorch's own backend makes of a program; it is only asked where something is wrong."""

    def __init__(self, program: Program, inner: str) -> None:
        self.program, self.backend = program, "aot_eager" if inner == "eager" else "inductor"

    @cached_property
    def steps(self) -> Observed | None:
        """What its steps leave behind, or `None` where it does not train the program."""
        try:
            return observe(self.program, self.backend)[0]
        except Exception:  # whatever it is: remat need not do better
            return None


def judge(program: Program, budgets: Sequence[float | str], inner: str = "eager", **others: object) -> Iterator[Trial]:
    """The trials of a program, budget by budget, with other options.

    ``"bytes"`` is three quarters of the peak without a budget.
    """
    with inductor_config.patch(fallback_random=True):
        expected = observe(program, None)[0]
        whole = 0
        stock = Stock(program, inner)
        for budget in budgets:
            careful = (program.seed + crc32(str(budget).encode())) % 2 == 0
            given = {**others, "on_infeasible": "error" if careful else "min"}
            trial = _try(stock, budget, inner, expected, whole, given)
            whole = whole or (trial.measured_bytes if budget == 1.0 else 0)
            yield trial


def _try(
    stock: Stock, budget: float | str, inner: str, expected: Observed, whole: int, given: Mapping[str, object]
) -> Trial:
    asked = int(0.75 * whole) if budget == "bytes" else budget
    if asked == 0:
        return Trial(budget, Verdict.UNPLANNED, "no peak is known")
    options = {
        "memory_budget": asked,
        "inner": inner,
        "cost_model": "nominal",
        "max_slowdown": None,
        "time_limit": 0.05,
        "chunks": stock.program.chunks,
    }
    remat_compiler.clear_reports()
    program = stock.program
    with _warnings() as heard:
        try:
            found, measured = observe(program, partial(remat, options={**options, **given}))
        except Exception as error:  # whatever it is, it is what the trial is about
            refused = _refusal(error)
            if refused is not None:
                whole_refused = budget == 1.0 and refused.budget_bytes != 0
                return Trial(budget, Verdict.WHOLE_REFUSED if whole_refused else Verdict.REFUSED, _brief(refused))
            if CHANGED_BEHIND in str(error):
                return Trial(budget, Verdict.REFUSED, _brief(error))
            return Trial(budget, Verdict.AS_STOCK if stock.steps is None else Verdict.CRASH, _brief(error))
    tolerance = EXACT_TOLERANCE if inner == "eager" else TOLERANCE
    if "torch.autocast(" in program.source:
        # Sums of gradients of few digits, in another order.
        tolerance = {dtype: max(some, tolerance[torch.bfloat16]) for dtype, some in tolerance.items()}
    wrong = _differences(expected, found, tolerance)
    if wrong:
        # What is updated grows apart from step to step by what the first one rounds, and chunks are added up otherwise.
        may_round = program.chunks != 1 or not any(where.startswith("step 0") for where in wrong)
        differing = [f"{where} {how}" for where, how in wrong.items()]
        off = {} if stock.steps is None else _differences(expected, stock.steps, TOLERANCE)
        like = stock.steps is not None and bool(
            not _differences(stock.steps, found, TOLERANCE)
            # Rounding is all that is left of a gradient that is 0, as that of a bias in front of a normalisation.
            or wrong.keys() <= off.keys()
            or ((off or may_round) and _only_rounds(program, options))
        )
        return Trial(budget, Verdict.AS_STOCK if like else Verdict.WRONG, "; ".join(differing[:3]), measured)
    return _measured(program, budget, asked, inner, measured - _left_by_first(program, found), whole, heard)


def _only_rounds(program: Program, options: dict[str, Any]) -> bool:
    """Whether a program of few digits is right where it has many."""
    # Losses are taken in 32 bits by programs of 64, too.
    if program.dtype == "float64" and "torch.float32" not in program.source:
        return False
    exact, asked = replace(program, dtype="float64"), options["memory_budget"]
    vars(exact)["source"] = exact.source.replace("torch.float32", "torch.float64")
    more = torch.float64.itemsize // getattr(torch, program.dtype).itemsize
    options = {**options, "memory_budget": more * asked if isinstance(asked, int) else asked, "on_infeasible": "min"}
    expected, found = observe(exact, None)[0], observe(exact, partial(remat, options=options))[0]
    later = {torch.float64: 100 * TOLERANCE[torch.float64]}
    stock = Stock(exact, options["inner"]).steps
    # That torch's own compiler gets something wrong says nothing of the rest.
    off = {} if stock is None else _differences(expected, stock, TOLERANCE)
    first = {where for where in _differences(expected, found, TOLERANCE) if where.startswith("step 0")}
    return not (first | _differences(expected, found, TOLERANCE | later).keys()) - off.keys()


def _measured(
    program: Program, budget: float | str, asked: Any, inner: str, measured: int, whole: int, heard: list[str]
) -> Trial:
    """The trial of a program that trained right: is its peak within the budget?"""
    reports = remat_compiler.reports()
    if not reports:
        return Trial(budget, Verdict.UNPLANNED, "; ".join(heard), measured)
    alone = len({report.graph_name for report in reports}) == 1 and not _runs_more_than_its_graph(program)

    def without_budget() -> int:
        try:
            options = {"inner": inner, "cost_model": "nominal", "chunks": program.chunks}
            return observe(program, partial(remat, options=options))[1]
        except RuntimeError as error:
            # Without a budget, torch's own partition computes values again from what the program changes.
            if CHANGED_BEHIND not in str(error):
                raise
            return measured

    predicted = reports[-1].peak_bytes if alone else 0
    if isinstance(asked, int):
        allowed = asked
    elif isinstance(asked, float):
        allowed = int(asked * (reports[-1].peak_before_bytes if alone else whole or without_budget()))
        of_step = reports[-1].step
        if of_step is not None and of_step.limit_bytes is not None:
            allowed = max(allowed, min(of_step.limit_bytes, int(PREDICTED_HIGHER * allowed)))
    else:
        allowed = predicted
    over = allowed and measured > allowed + program.slack_bytes
    if over and budget == 1.0:
        # The whole budget is what the step takes without one, whatever else is done with its graph.
        allowed = without_budget()
        over = measured > allowed
    verdict = Verdict.KEPT if not over else Verdict.WARNED if heard else Verdict.SILENT
    exact = measured == predicted if alone and predicted and program.exact else None
    off = f"measured {measured}, allowed {allowed}, predicted {predicted}"
    detail = "; ".join([off, *heard]) if over or exact is False else ""
    return Trial(budget, verdict, detail, measured, allowed, predicted, exact)


def _left_by_first(program: Program, found: Observed) -> int:
    """Bytes that a step of two modules holds of the first one while the second one runs, which has its own budget."""
    if program.use != "two modules in turns":
        return 0
    outputs = [f"output {i}" for i in range(1 + len(program.outputs))]
    step = found.steps[-1]
    held = [value for name, value in step.items() if name in outputs or name.startswith("gradient of ")]
    return sum(value.nbytes for value in held if isinstance(value, Tensor))


def _runs_more_than_its_graph(program: Program) -> bool:
    """Whether a step runs a graph, or its backward, more than once."""
    kept = program.use in CALLS_BEFORE and "change an input with a gradient" in program.features
    return program.use in MORE_THAN_ITS_GRAPH or kept


def observe(program: Program, backend: Backend | str | None) -> tuple[Observed, int]:
    """What some steps leave behind, and the peak bytes of the step after them; eager without a backend."""
    torch._dynamo.reset()
    loaded = program.load()
    torch.manual_seed(program.seed)
    how: Any = {"backend": backend, "dynamic": program.dynamic}
    model, call = loaded.made(lambda module: module if backend is None else torch.compile(module, **how))
    steps = tuple(_step(program, loaded, model, call, number) for number in range(SETTLED))
    return Observed(steps), 0 if backend is None else _peak(program, loaded, model, call)


def _step(program: Program, loaded: Loaded, model: nn.Module, call: Any, number: int) -> dict[str, Any]:
    """Everything that can be seen after a step."""
    torch.manual_seed(1000 * program.seed + number)
    leaves, inputs = loaded.inputs()
    EFFECTS.clear()
    if program.new_gradients:
        model.zero_grad(set_to_none=True)
    seen = {f"output {i}": value for i, value in enumerate(loaded.step(call, leaves, inputs))}
    seen |= {f"input {i}": value for i, value in enumerate(inputs)}
    seen |= {f"gradient of leaf {i}": leaf.grad for i, leaf in enumerate(leaves)}
    seen |= {f"gradient of {name}": p.grad for name, p in model.named_parameters()}
    seen |= dict(model.state_dict())
    seen["random state"] = torch.get_rng_state()
    if program.device == "cuda":
        seen["random state of the device"] = torch.cuda.get_rng_state()
    seen["effects"] = tuple(EFFECTS)
    return {name: _copied(value) for name, value in seen.items()}


def _copied(value: Any) -> Any:
    if not isinstance(value, Tensor):
        return value
    copy = value.detach().clone()
    # Whether it has a gradient is part of what is seen.
    return copy.requires_grad_() if value.requires_grad else copy


def _peak(program: Program, loaded: Loaded, model: nn.Module, call: Any) -> int:
    """Bytes that one more step allocates at once, on top of what is there before; the inputs are made before."""
    torch.manual_seed(program.seed)
    others, made = loaded.inputs(), list[Any]()
    model.zero_grad(set_to_none=True)

    def before() -> None:
        loaded.step(call, *others)
        model.zero_grad(set_to_none=True)
        # Here, since a step may let go of an input's memory, by `set_`.
        made.extend(loaded.inputs())

    gc.disable()  # so that the moment at which it would run cannot change the peak
    try:
        return peak_of_second(before, lambda: loaded.step(call, *made), program.device)
    finally:
        gc.enable()


def _differences(expected: Observed, found: Observed, tolerance: dict[torch.dtype, float]) -> dict[str, str]:
    """What the steps left behind otherwise than expected: what it is, and how it differs."""
    return {
        f"step {number}: {name}": difference
        for number, (before, after) in enumerate(zip(expected.steps, found.steps))
        for name in sorted({*before, *after})
        if (difference := _difference(before.get(name), after.get(name), tolerance))
    }


def _difference(expected: Any, found: Any, tolerance: dict[torch.dtype, float]) -> str:
    """How two values differ; nothing where they are alike.  AOTAutograd gives zeros where eager gives no gradient."""
    if expected is None and isinstance(found, Tensor) and not found.requires_grad and not found.any():
        return ""
    if not isinstance(expected, Tensor) or not isinstance(found, Tensor):
        alike = type(expected) is type(found) and (expected is None or expected == found)
        return "" if alike else f"is {type(found).__name__}, not {type(expected).__name__}"
    for what in ("shape", "dtype", "requires_grad"):
        if getattr(expected, what) != getattr(found, what):
            return f"has {what} {getattr(found, what)}, not {getattr(expected, what)}"
    if not expected.is_floating_point():
        return "" if torch.equal(expected, found) else "differs"
    limit = tolerance[expected.dtype] * (1 + float(expected.detach().abs().max() if expected.numel() else 0))
    off = float((expected - found).detach().abs().max()) if expected.numel() else 0.0
    return "" if off <= limit else f"is off by {off:.3g} of {limit:.3g} allowed"


def _refusal(error: BaseException | None) -> InfeasibleBudget | None:
    """The refusal that an error is or was caused by."""
    while error is not None and not isinstance(error, InfeasibleBudget):
        error = getattr(error, "inner_exception", None) or error.__cause__ or error.__context__
    return error


def _brief(error: BaseException) -> str:
    """Type, first line, and the last places within the compiler, in one line."""
    inner = getattr(error, "inner_exception", None) or error
    frames = [f for f in traceback.extract_tb(inner.__traceback__) if "remat_compiler" in f.filename]
    where = " < ".join(f"{f.filename.rsplit('remat_compiler/', 1)[-1]}:{f.lineno}" for f in frames[-2:])
    lines = str(inner).strip().splitlines() or [""]
    return f"{type(inner).__name__}: {lines[0][:200]} [{where}]"


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """What the compiler warns of meanwhile, in its log or as warnings."""
    with warnings_heard() as heard, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            yield heard
        finally:
            heard += [str(warning.message) for warning in caught if "remat" in str(warning.filename)]
            heard[:] = [text[:300] for text in heard]
