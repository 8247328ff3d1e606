"""What the plan cache is asked for, what it holds, and what it notes of a miss: plain data with a JSON form."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem

CLASS_RATIO = 1.1
"""Each size class ends where activations are this many times those at its begin."""
DIGITS = 24
"""Hexadecimal digits of each digest in a name; what was found is compared in full."""


@dataclass(frozen=True, slots=True)
class PlanCacheKey:
    """What must be the same for a plan to be a candidate.

    Attributes:
        structure: Digest of operators, what they read and make, and what restricts them; no sizes, no times.
        parameters: Digest of the shapes and bytes of parameters: the same structure at another width is another model.
        size_class: Class of the bytes of activations, see `size_class`.
        budget_bytes: Largest peak allowed.
        max_slowdown: Largest time of the step relative to no recomputation; `None` for no limit.
        planner: Name of the planner.
        planner_options: Its options, printed.
        costs: What decides the operators' times, see `costs.table.cost_identity`.
        versions: Versions of this project and of torch, and a digest of the planner's code.
    """

    structure: str
    parameters: str
    size_class: int
    budget_bytes: int
    max_slowdown: float | None
    planner: str
    planner_options: str
    costs: str
    versions: str

    @property
    def family(self) -> str:
        """Digest of all but the size class."""
        named = {name: value for name, value in asdict(self).items() if name != "size_class"}
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class PlanQuestion:
    """What the cache is asked for.

    Attributes:
        key: What a candidate must have in common with it.
        exact: Digest of the problem with all its figures; equal problems have the same plans, peaks and times.
        activation_bytes: Bytes of all activations, by which similar sizes are told.
    """

    key: PlanCacheKey
    exact: str
    activation_bytes: int

    @property
    def name(self) -> str:
        """Name of the plan's file."""
        return f"{self.key.family[:DIGITS]}-{self.activation_bytes}-{self.exact[:DIGITS]}"


@dataclass(frozen=True, slots=True)
class CachedPlan:
    """An entry.

    Attributes:
        question: What it answers.
        seed: `exact` of the problem that the plan was solved for, where that is another one; else empty.
        step_ns: Time of the step that executes every operator once.
        made_at_ns: When it was solved, in nanoseconds since 1970.
        result: The answer.
    """

    question: PlanQuestion
    seed: str
    step_ns: int
    made_at_ns: int
    result: PlanResult


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """A question that had to be solved, for `remat cache explain`.

    Attributes:
        question: What was asked.
        at_ns: When, in nanoseconds since 1970.
        refused: Why each candidate was not taken.
    """

    question: PlanQuestion
    at_ns: int
    refused: tuple[str, ...]


def activation_bytes(problem: RematProblem) -> int:
    """Bytes of all activations of `problem`, which grow with what is fed to the model."""
    return sum(s.size_bytes for s in problem.graph.storages if s.kind is StorageKind.ACTIVATION)


def size_class(num_bytes: int) -> int:
    """Number of the class of steps with `num_bytes` of activations; classes are intervals of equal ratio."""
    return int(math.log(max(num_bytes, 1)) / math.log(CLASS_RATIO))
