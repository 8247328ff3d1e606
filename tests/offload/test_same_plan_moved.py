"""A plan that moves values gives the numbers of the same plan without moving: bit for bit under the interpreter.

Inductor fuses other loops, and gives products of matrices other layouts, where a value passes through an operator that
it does not know: there, the last places of a number may differ, as they do between any two plans.

Programs and plans are drawn at random.  A pair takes seconds to compile, so a quick run has few; for more:
``python -m pytest tests/offload/test_same_plan_moved.py -m slow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, fx

from end_to_end.judged_programs import Observed, Stock, observe
from end_to_end.random_programs import Program, draw
from remat_compiler import torch_compat
from remat_compiler.ir.plan import PlanResult, PlanStatus, Tier
from remat_compiler.ir.problem import RematProblem
from remat_compiler.offload.place import Place
from remat_compiler.partition.partition import partition
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.session import Session
from remat_compiler.simulate.timeline import simulate
from rewrite.random_plans import random_plan
from transfers_at_random import with_random_transfers

SEEDS = range(5000, 5060)
"""Seeds that no other test draws."""
QUICK = (5004, 5007, 5008, 5010)
"""Some of them whose plans move something."""
ROOM = 1 << 30
ROUNDING, WORSE = 16, 4
"""Under Inductor, results may differ by so many last places of the largest number, or by so many times as much as
without moving they differ from eager's: sums that cancel have hardly a right digit."""


class _RandomPlans(torch_compat.CustomPartitionerFn):
    """Cuts joint graphs by plans at random, with transfers or without.

    Attributes:
        transfers: Transfers of all plans so far, whether or not they were made.
    """

    def __init__(self, place: Place, seed: int, moves: bool) -> None:
        self.request = PartitionRequest(
            1 << 60,
            planner="random",
            cost_model="nominal",
            max_slowdown=None,
            offload_bytes=ROOM,
            offload_place=str(place),
        )
        self.tier, self.moves = place.tier, moves
        self.random = Random(seed)
        self.transfers = 0

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **keywords: Any) -> Any:
        made = partition(
            gm,
            self.request,
            num_fwd_outputs=keywords["num_fwd_outputs"],
            static_input_indices=tuple(keywords.get("static_lifetime_input_indices") or ()),
            plan_with=self._plan,
            session=Session(),
        )
        torch_compat.keep_planned_memory(gm, torch_compat.FusionLimit(made.peak_bytes, ()))
        return made.graphs.forward, made.graphs.backward

    def _plan(self, problem: RematProblem) -> PlanResult:
        plan = random_plan(problem.graph, self.random)
        moved = with_random_transfers(problem.graph, plan, self.random, share=0.5)
        here = tuple(replace(one, tier=self.tier) for one in moved.transfers)
        self.transfers += len(here)
        plan = replace(plan, transfers=here if self.moves else ())
        timeline = simulate(problem.graph, problem.costs, plan)
        figures = timeline.peak_bytes, timeline.time_ns, timeline.added_ns
        return PlanResult(PlanStatus.FEASIBLE, "random", plan, *figures)

    def uuid(self) -> None:
        """Nothing may be served from a cache."""


def observed(program: Program, place: Place, moves: bool, inner: str) -> tuple[Observed, int]:
    """What some steps leave behind, and the number of transfers of their plans."""
    cut = _RandomPlans(place, program.seed, moves)
    compile_ = torch_compat.compile_with_inductor if inner == "inductor" else torch_compat.compile_with_interpreter

    def backend(gm: fx.GraphModule, example: Any) -> Any:
        return compile_(gm, example, cut)

    with torch_compat.partitioner_always_runs(), torch._inductor.config.patch(fallback_random=True):
        return observe(program, backend)[0], cut.transfers


def bits(value: Any) -> Any:
    """What makes two values the same."""
    if not isinstance(value, Tensor):
        return value
    # Bytes, so that a NaN equals itself.
    return value.dtype, value.shape, value.detach().contiguous().reshape(-1).view(torch.uint8).tolist()


def off_by(before: Any, after: Any) -> float:
    """The largest difference, in the last places of the largest number; infinite where more than numbers differs."""
    if bits(before) == bits(after):
        return 0.0
    if not isinstance(before, Tensor) or not before.is_floating_point() or before.shape != after.shape:
        return float("inf")
    exact, other = before.detach().double(), after.detach().double()
    difference = float((exact - other).abs().max() / exact.abs().max() / torch.finfo(before.dtype).eps)
    return difference if difference == difference else float("inf")


@pytest.mark.parametrize("inner", ["eager", "inductor"])
@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[] if seed in QUICK else [pytest.mark.slow]) for seed in SEEDS],
)
def test_moving_changes_nothing(seed: int, inner: str, tmp_path: Path) -> None:
    program = draw(seed)
    place = Place(Tier.DISK, tmp_path) if seed % 2 else Place(Tier.HOST, None)
    try:
        kept, transfers = observed(program, place, False, inner)
    except Exception:
        if Stock(program, inner).steps is not None:
            raise
        pytest.skip("PyTorch's own backend does not train it")
    moved, again = observed(program, place, True, inner)
    assert again == transfers
    assert transfers or seed not in QUICK
    eager = observe(program, "eager")[0]
    for number, (exact, before, after) in enumerate(zip(eager.steps, kept.steps, moved.steps, strict=True)):
        assert before.keys() == after.keys()
        off = {name: off_by(before[name], after[name]) for name in before}
        if inner == "inductor":
            off = {k: n for k, n in off.items() if n > max(ROUNDING, WORSE * off_by(exact[k], before[k]))}
        assert not any(off.values()), f"step {number}: {off}, {transfers} transfers\n{program.source}"
