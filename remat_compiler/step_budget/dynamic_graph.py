"""A planned graph of changing sizes as one of several in a step: what it may take, and what it needs at other sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from enum import Enum

from remat_compiler import torch_compat
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.simulate.allowance import Allowance
from remat_compiler.simulate.step_peak import GraphMemory

FIRST_PART = 0.25
"""Part of the budget left that a graph gets when more graphs follow and nothing is known of them."""
FIRST_HELD = 0.5
"""Part of the budget left that a graph may hold for its backward when other graphs may follow."""


class Onward(Enum):
    """Whether the step goes on in other graphs behind one."""

    NO = "no"
    PERHAPS = "perhaps"
    SURELY = "surely"


def first_allowance(left_bytes: int, onward: Onward) -> Allowance:
    """What a graph may take while the graphs behind it are not known.

    Args:
        left_bytes: What the graphs before it leave of the budget.
        onward: Whether there are graphs behind it.
    """
    left = max(left_bytes, 1)
    if onward is Onward.SURELY:
        return Allowance.whole(max(int(left * FIRST_PART), 1))
    held = max(int(left * FIRST_HELD), 1) if onward is Onward.PERHAPS else left
    return Allowance(left, held, left)


class ChangingGraph:
    """What runs a graph of changing sizes, and what is known of it.

    Args:
        dispatch: Runs it.
        first: What was compiled for the first call.
        symbols: The symbolic sizes.
        onward: Whether the step goes on behind it, as far as is known.
        input_bytes: Bytes of the arguments at some positions, at given sizes.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        first: Attempt,
        symbols: Sequence[torch_compat.InputSymbol],
        onward: Onward,
        input_bytes: Callable[[Sequence[int], Sequence[int]], int],
    ) -> None:
        self.dispatch = dispatch
        self.first = first
        self.allowance: Allowance | None = None
        self._input_bytes = input_bytes
        self._symbols = tuple(symbols)
        self._onward = onward
        self._at_first = dispatch.allowance
        self._of_steps: dict[object, Allowance] = {}
        self._sizes = tuple(number for _, number in first.request.sizes)

    def make_room(self, limit_bytes: int, held_bytes: int) -> None:
        """Before a call in a step whose graphs are not all known: leave alone what the calls before it hold."""
        if self.allowance is not None or self.dispatch.memory_now is None:
            return  # what it may take is known, or it was compiled for this very call
        behind = Onward.NO if self._onward is Onward.NO else Onward.PERHAPS
        self._allow(first_allowance(limit_bytes - held_bytes, behind) if held_bytes else self._at_first)

    def share(self, allowance: Allowance, step: object) -> None:
        """Keep to `allowance` in one kind of step, and to what was said of others."""
        self._of_steps[step] = allowance
        for other in self._of_steps.values():
            allowance = allowance.within(other)
        self.allowance = allowance
        self._allow(allowance)

    def take_all(self, limit_bytes: int) -> None:
        """The whole budget, where no other graph runs in any step."""
        if not self._of_steps:
            self._allow(Allowance.whole(limit_bytes))

    def _allow(self, allowance: Allowance) -> None:
        if allowance != self.dispatch.allowance:
            self.dispatch.allow(allowance)

    @property
    def unbudgeted(self) -> GraphMemory:
        """Its memory at the first sizes without a budget."""
        one, checked = self.first.partitions[0], self.first.check.memory
        if one.unchanged and checked is not None:
            return checked
        return one.memory_before

    def grown(self, passed: Sequence[int], multiple: float) -> tuple[float, int]:
        """Its memory at a multiple of the first sizes, as a part of that at these, and what it leaves behind there.

        Args:
            passed: See `Allowance`.
            multiple: What the first sizes are multiplied by.
        """
        sizes = [
            math.ceil(n * multiple) if symbol.upper is None else min(math.ceil(n * multiple), symbol.upper)
            for n, symbol in zip(self._sizes, self._symbols)
        ]
        factor, form = self.factor_at(sizes), self.first.form
        left = int(factor * self.unbudgeted.left_bytes) if form is None else form.resting_bytes(sizes)[1]
        return factor, max(left - self._input_bytes(passed, sizes), 0)

    def factor_at(self, sizes: Sequence[int]) -> float:
        """Its memory at given sizes, as a part of that at the first ones."""
        form = self.first.form
        if form is None:
            return math.prod(sizes) / max(math.prod(self._sizes), 1)
        return form.live_bytes(sizes) / max(form.live_bytes(self._sizes), 1)
