"""A smaller problem with the way back: what every reduction returns, and how reductions follow one another.

    problem  --reduce-->  Reduced(problem', claim)          plan'  --lift-->  plan

The claim says what an answer of the smaller problem is worth for the other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem


class Claim(str, Enum):
    """How the optimum of the reduced problem stands to that of the original, for plans that keep the joint order."""

    SAME = "same"
    """Equal; a lifted plan needs no more bytes and no more added time than the reduced one says."""
    BELOW = "below"
    """Not above it: a bound.  A lifted plan costs what the reduced one says, but may need more bytes."""
    ABOVE = "above"
    """Not below it.  A lifted plan needs no more bytes and no more added time than the reduced one says."""


@dataclass(frozen=True, slots=True)
class Reduced:
    """The smaller problem.

    Attributes:
        problem: The problem to answer instead; it has no reference.
        claim: What its answers are worth.
        origin: By operator of `problem`, the operators of the original that it stands for, in order.
    """

    problem: RematProblem
    claim: Claim
    origin: tuple[tuple[OpId, ...], ...]

    def lift(self, plan: Plan) -> Plan:
        """The plan of the original that `plan` of the reduced problem stands for."""
        steps: list[OpId] = []
        boundary = 0
        for position, op in enumerate(plan.steps):
            if position == plan.boundary:
                boundary = len(steps)
            steps += self.origin[op]
        return Plan(tuple(steps), boundary if plan.boundary < len(plan.steps) else len(steps))


Reduction = Callable[[RematProblem], Reduced]


def reduce_by(problem: RematProblem, reductions: Iterable[Reduction]) -> Reduced:
    """`problem` under all of `reductions`, one after another.

    Raises:
        ValueError: One bounds the optimum from below and another from above, so that nothing is known of both.
    """
    reduced = unreduced(problem)
    for reduction in reductions:
        following = reduction(reduced.problem)
        claims = {reduced.claim, following.claim} - {Claim.SAME}
        if len(claims) > 1:
            raise ValueError("got a reduction that bounds from below and one that bounds from above; use one kind")
        origin = tuple(tuple(old for op in ops for old in reduced.origin[op]) for ops in following.origin)
        reduced = Reduced(following.problem, claims.pop() if claims else Claim.SAME, origin)
    return reduced


def unreduced(problem: RematProblem) -> Reduced:
    """`problem` as it is."""
    return Reduced(problem, Claim.SAME, tuple((op.id,) for op in problem.graph.ops))
