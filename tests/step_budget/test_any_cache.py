"""Whether a step is trained or refused does not depend on what earlier processes left in the cache."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from remat_compiler.backend import remat
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.graphs.steps import COORDINATOR
from remat_compiler.watching.open_calls import Here

STEPS = 2
INPUTS = {"convolution": (4, 1, 16, 16), "linear": (64, 16), "pointwise": (64, 16)}


class Program(NamedTuple):
    """A program; `cuts` says which graphs its steps run.

    Attributes:
        kind: The kind of its first layers: only linear layers give plans something to recompute.
        cuts: "one graph", one that returns its "loss", one with a break "at the end" and nothing behind it, one with a
            break "between" its layers, or "two modules" that are compiled one by one.
        budget: The budget.
        zeroes: Whether gradients are freed before each step.
        last: The kind of the layers after the cut, "activations" need no gradients.
    """

    kind: str
    cuts: str
    budget: object
    zeroes: bool = True
    last: str = "activations"


def layers(kind: str) -> nn.Module:
    torch.manual_seed(0)
    if kind == "convolution":
        return nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.LeakyReLU(), nn.Dropout2d(0.1))
    if kind == "activations":
        return nn.Sequential(nn.Tanh(), nn.Sigmoid())
    if kind == "pointwise":
        return nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    return nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(16, 48), nn.GELU(), nn.Linear(48, 16))])


def compiled(program: Program, first: nn.Module, last: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    options = {"memory_budget": program.budget, "inner": "eager", "cost_model": "nominal"}
    compile_: Any = partial(torch.compile, backend=partial(remat, options=options), dynamic=False)

    def broken(x: torch.Tensor) -> torch.Tensor:
        y = first(x)
        torch._dynamo.graph_break()
        return y if program.cuts == "at the end" else last(y)

    if program.cuts == "two modules":
        one, two = compile_(first), compile_(last)
        return lambda x: two(one(x))
    if program.cuts in ("at the end", "between"):
        return compile_(broken)
    return compile_(first if program.cuts == "one graph" else lambda x: first(x).square().mean())


def outcome(program: Program, cache: Path) -> list[str]:
    """How each step of a process ends that has this cache; nothing comes after a refusal."""
    os.environ["REMAT_CACHE_DIR"] = str(cache)
    torch._dynamo.reset()
    gc.collect()
    COORDINATOR.watch.here = Here()
    COORDINATOR.unsettled.clear()
    COORDINATOR._whole_steps.clear()
    first, last = layers(program.kind), layers(program.last)
    run, found = compiled(program, first, last), []
    for _ in range(STEPS):
        if program.zeroes:
            first.zero_grad()
            last.zero_grad()
        try:
            run(torch.randn(INPUTS[program.kind])).square().mean().backward()
        except InfeasibleBudget as refused:
            return [*found, f"refused at {refused.budget_bytes} bytes"]
        found.append("trained")
    return found


def assert_same_in_any_cache(program: Program, other: Program) -> None:
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("REMAT_CACHE_DIR", folder)
        cold, foreign = Path(folder) / "cold", Path(folder) / "foreign"
        expected = outcome(program, cold)
        assert outcome(program, cold) == expected, "its own cache"
        left = outcome(other, foreign)
        assert outcome(program, foreign) == expected, f"the cache of {other}, which was {left}"


CUTS = ("one graph", "loss", "at the end", "between", "two modules")
PROGRAMS = st.builds(
    Program,
    st.sampled_from(sorted(INPUTS)),
    st.sampled_from(CUTS),
    st.sampled_from([64, 40_000, 120_000, 0.05, 0.6, 0.95, "min"]),
    st.booleans(),
    st.just("activations"),
)


@settings(max_examples=3)
@given(PROGRAMS, st.sampled_from(CUTS))
def test_each_step_ends_the_same_with_any_cache(program: Program, other: str) -> None:
    assert_same_in_any_cache(program, program._replace(cuts=other))


@pytest.mark.parametrize("kind", ["convolution", "pointwise"])
def test_a_plan_that_adds_nothing_is_held_against_the_budget_too(kind: str) -> None:
    """Alone, though a graph break let more be expected, and with nothing to recompute: the rest of the budget is 64."""
    program = Program(kind, "at the end", 64)
    assert_same_in_any_cache(program, program._replace(cuts="between"))
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("REMAT_CACHE_DIR", folder)
        assert outcome(program, Path(folder)) == ["trained", "refused at 64 bytes"], (
            "nothing is known in the first step"
        )


@pytest.mark.parametrize("cuts", ["one graph", "at the end"])
def test_a_fraction_that_several_graphs_kept_is_not_taken_for_one_of_a_graph_alone(cuts: str) -> None:
    """The first graph has nothing to recompute: its part of the peak is more than 0.7 of its own."""
    program = Program("pointwise", cuts, 0.7)
    several = program._replace(cuts="two modules" if cuts == "one graph" else "between", last="linear")
    assert_same_in_any_cache(program, several)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        patched.setenv("REMAT_CACHE_DIR", folder)
        assert outcome(several, Path(folder)) == ["trained"] * STEPS
        assert outcome(several, Path(folder)) == ["trained"] * STEPS
        assert "refused" in outcome(program, Path(folder))[-1]
