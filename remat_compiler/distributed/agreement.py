"""The points at which ranks could come to different plans, and the interface by which they agree on one value.

Planning is deterministic, so ranks with the same problem and solvers get the same plan.  Values that could differ go
through one of the points below: each rank proposes its value, and continues with the one that is agreed on.  A point
stands where the value enters the compilation, so that everything that follows from it is the same on all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from typing import Protocol, TypeVar

from remat_compiler.distributed.gathers import GatherAgreement, NoOthers

Value = TypeVar("Value")


class Point(Enum):
    """A value to agree on, and why it could differ."""

    OUTCOME = "what an earlier compilation of the graph came to: the caches of ranks differ"
    BUDGET = "the budget: devices leave different bytes free"
    COSTS = "times and workspaces of the operators: each rank measures its own"
    PLAN = "the plan: a cache may have another one than the planner finds, and another solver finds another one"
    VARIANT = "the sizes to compile a better variant for: ranks take different times for their steps"


class Agreement(Protocol):
    """The way in which the ranks of a job find one value."""

    is_alone: bool
    """Whether there is one process only."""
    gathers: GatherAgreement
    """What they agree on about gathers that plans repeat."""

    def agree(self, point: Point, value: Value, question: Callable[[], str]) -> Value:
        """The value with which all ranks continue that ask the same question.

        Args:
            point: The meaning of the value.
            value: The proposal of this rank.
            question: Text of all that a proposal depends on, but for what differs between ranks by itself.
        """
        ...

    def smallest(self, value: int, question: Callable[[], str]) -> int:
        """The smallest value of all ranks that ask the same question."""
        ...


class Alone:
    """One process: its own value is the one."""

    is_alone = True
    gathers: GatherAgreement = NoOthers()

    def agree(self, point: Point, value: Value, question: Callable[[], str]) -> Value:
        """`value`."""
        return value

    def smallest(self, value: int, question: Callable[[], str]) -> int:
        """`value`."""
        return value


@contextmanager
def agreeing_by(agreement: Agreement) -> Iterator[None]:
    """Let graphs compiled within the block use `agreement`, also for what is compiled for them later."""
    # A context variable, so that compilations in other threads keep their own.
    token = _current.set(agreement)
    try:
        yield
    finally:
        _current.reset(token)


def current_agreement() -> Agreement | None:
    """The agreement of `agreeing_by`, if a compilation that begins now is within its block."""
    return _current.get()


_current: ContextVar[Agreement | None] = ContextVar("remat_agreement", default=None)
