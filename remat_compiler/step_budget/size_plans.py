"""A graph of changing sizes as one of several in a step: limits that hold at all sizes, and its memory at others."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum
from typing import ClassVar

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.partition.result import PartitionFigures
from remat_compiler.report.plan_report import StepFigures
from remat_compiler.step_budget.graph_plans import GraphPlans, Planned
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.graph_memory import GraphMemory

FIRST_PART = 0.25
"""Part of the free budget that a graph gets if more graphs follow and nothing is known of them."""
FIRST_HELD = 0.5
"""Part of the free budget that a graph may hold for its backward if other graphs may follow."""


class Continues(Enum):
    """Whether the step goes on in other graphs after a graph."""

    NO = "no"
    MAYBE = "maybe"
    YES = "yes"


def first_allowance(left_bytes: int, continues: Continues) -> Allowance:
    """The limits of a graph while the graphs after it are not known.

    Args:
        left_bytes: Bytes of the budget that the graphs before it leave free.
        continues: Whether there are graphs after it.
    """
    # Earlier graphs may hold all of the budget and more; limits are 1 byte at least.
    left = max(left_bytes, 1)
    if continues is Continues.YES:
        # It holds at most its peak, so the rest is there for the graphs to come without a limit of its held bytes.
        return Allowance.whole(max(int(left * FIRST_PART), 1))
    held = max(int(left * FIRST_HELD), 1) if continues is Continues.MAYBE else left
    return Allowance(left, held, left)


class SizePlans(GraphPlans):
    """A graph of changing sizes: its dispatch, its limits in steps, and its memory by size.

    Args:
        dispatch: Runs the graph.
        first: The compilation for the first call.
        symbols: The symbolic sizes.
        continues: Whether the step goes on after it, by what is known at compile time.
        input_bytes: Bytes of the arguments at given positions, at given sizes.
    """

    can_change: ClassVar[bool] = True
    dispatch: Dispatch

    def __init__(
        self,
        dispatch: Dispatch,
        first: Attempt,
        symbols: Sequence[torch_compat.InputSymbol],
        continues: Continues,
        input_bytes: Callable[[Sequence[int], Sequence[int]], int],
    ) -> None:
        self.dispatch = dispatch
        self.first = first
        self._input_bytes = input_bytes
        self._symbols = tuple(symbols)
        self._continues = continues
        self._at_first = dispatch.allowance
        self._of_steps: dict[object, Allowance] = {}
        self._sizes = tuple(number for _, number in first.request.sizes)

    def make_room(self, limit_bytes: int, held_bytes: int) -> None:
        """See `GraphPlans`.

        Args:
            limit_bytes: The budget of the step.
            held_bytes: Bytes that the open calls hold.
        """
        if self.shares_budget or self.dispatch.memory_now is None:
            return  # its limits are decided, or it was compiled for this very call
        behind = Continues.NO if self._continues is Continues.NO else Continues.MAYBE
        self._allow(first_allowance(limit_bytes - held_bytes, behind) if held_bytes else self._at_first)

    def share(self, allowance: Allowance, step: object) -> None:
        """Keep to `allowance` in one kind of step, and to the allowances of all other kinds."""
        # When a call runs it is not known which kind of step it is in: only limits within all of them are safe.
        self._of_steps[step] = allowance
        for other in self._of_steps.values():
            allowance = allowance.within(other)
        self._allow(allowance)

    @property
    def shares_budget(self) -> bool:
        """Whether its limits next to the other graphs of its steps are decided."""
        return bool(self._of_steps)

    def take_all(self, limit_bytes: int | None) -> None:
        """See `GraphPlans`."""
        if limit_bytes is not None and not self.shares_budget:
            self._allow(Allowance.whole(limit_bytes))

    def decide_alone(self, graph: Planned) -> None:
        """See `GraphPlans`."""
        assert graph.budget_bytes is not None, "only a budget in bytes holds for all sizes"
        self.take_all(graph.budget_bytes)
        graph.keep(graph.budget_bytes)

    def decide_beside(self, graph: Planned, limit_bytes: int | None, gradient_bytes: int, *, freed: bool) -> None:
        """See `GraphPlans`: sizes that no plan fits then run by the smallest peak, as long as that alone fits."""
        if limit_bytes is None:
            return
        # At least 1 byte, so that all of the budget is spare where the gradients alone exceed it.
        left_bytes = max(limit_bytes - gradient_bytes, 1)
        self._allow(Allowance.whole(left_bytes, spare_bytes=limit_bytes - left_bytes))
        graph.keep(limit_bytes, "", StepFigures(1, None, limit_bytes, gradient_bytes=gradient_bytes))

    def _allow(self, allowance: Allowance) -> None:
        # Every change makes the dispatch decide all sizes again, and may compile.
        if allowance != self.dispatch.allowance:
            self.dispatch.allow(allowance)

    @property
    def figures(self) -> PartitionFigures:
        """What is known of the partition at the first sizes."""
        return self.first.partitions[0].figures

    def has_less_than(self, whole_bytes: int) -> bool:
        """See `GraphPlans`."""
        return not self.shares_budget and self.dispatch.limit_bytes < whole_bytes

    @property
    def unbudgeted(self) -> GraphMemory:
        """Its memory at the first sizes without a budget."""
        # The dry run is exact, but of the code that was compiled: it says this only if nothing is recomputed in it.
        one, checked = self.first.partitions[0], self.first.check.memory
        if one.unchanged and checked is not None:
            return checked
        return one.memory_before

    def grown(self, passed: Sequence[int], multiple: float) -> tuple[float, int]:
        """The ratio of its memory at a multiple of the first sizes to that at these, and the bytes left behind there.

        Args:
            passed: See `Allowance`.
            multiple: The factor on the first sizes.
        """
        # Dynamo's guards admit no sizes above a symbol's upper bound.
        sizes = [
            math.ceil(n * multiple) if symbol.upper is None else min(math.ceil(n * multiple), symbol.upper)
            for n, symbol in zip(self._sizes, self._symbols)
        ]
        factor, formula = self.factor_at(sizes), self.first.formula
        left = int(factor * self.unbudgeted.left_bytes)
        if formula is not None:
            # Gradients of parameters do not grow with the sizes: scaling would take them for too much.
            _, left = formula.boundary_and_final_bytes(sizes)
        return factor, max(left - self._input_bytes(passed, sizes), 0)

    def factor_at(self, sizes: Sequence[int]) -> float:
        """The ratio of its memory at given sizes to that at the first sizes."""
        formula = self.first.formula
        # Without a formula: proportional to each size, as most activations are.
        if formula is None:
            return math.prod(sizes) / max(math.prod(self._sizes), 1)
        return formula.live_bytes(sizes) / max(formula.live_bytes(self._sizes), 1)
