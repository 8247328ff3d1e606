"""Queries, entries and misses of the plan cache: plain data with a JSON form."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass

from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem

CLASS_RATIO = 1.1
"""Ratio of the bytes of activations at the end of a size class to those at its start."""
DIGITS = 24
"""Hexadecimal digits of each digest in a name; an entry that was found is compared in full."""


@dataclass(frozen=True, slots=True)
class PlanCacheKey:
    """Everything that must be equal (the size class: near) for a plan to be a candidate.

    Attributes:
        structure: Digest of the operators, their reads and writes and their restrictions; no sizes, no times.
        parameters: Digest of the shapes and bytes of parameters: the same structure at another width is another model.
        size_class: Class of the bytes of activations, see `size_class`.
        budget_bytes: Largest peak allowed.
        offload_bytes: Most bytes that may be off the device at once.
        max_slowdown: Largest time of the step relative to no recomputation; `None` for no limit.
        planner: Name of the planner.
        planner_options: Its options, printed.
        costs: Identity of the operators' times, see `costs.table.cost_identity`.
        versions: Versions of this project, of torch and of installed solvers, and a digest of the planner's code.
    """

    structure: str
    parameters: str
    size_class: int
    budget_bytes: int
    offload_bytes: int
    max_slowdown: float | None
    planner: str
    planner_options: str
    costs: str
    versions: str

    @property
    def family(self) -> str:
        """Digest of all but the size class."""
        # Similar sizes are sought in neighbouring classes, all of which have one family and so one prefix of names.
        named = {name: value for name, value in asdict(self).items() if name != "size_class"}
        return hashlib.sha256(json.dumps(named, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class CacheQuery:
    """A question to the cache.

    Attributes:
        key: The part in which a candidate must agree.
        exact: Digest of the problem with all its figures; equal problems have the same plans, peaks and times.
        activation_bytes: Bytes of all activations, the measure of similar sizes.
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
    """An entry of the cache: a query and its answer.

    Attributes:
        question: The query that it answers.
        seed: `exact` of the problem that the plan was solved for, if that is another one; else empty.
        step_ns: Time of the step that executes every operator once.
        made_at_ns: Time at which it was solved, in nanoseconds since 1970.
        result: The answer.
    """

    question: CacheQuery
    seed: str
    step_ns: int
    made_at_ns: int
    result: PlanResult


@dataclass(frozen=True, slots=True)
class CacheMiss:
    """A question that had to be solved, for `remat cache explain`.

    Attributes:
        question: The query.
        at_ns: Time of the miss, in nanoseconds since 1970.
        refused: Why each candidate was not taken.
    """

    question: CacheQuery
    at_ns: int
    refused: tuple[str, ...]


def activation_bytes(problem: RematProblem) -> int:
    """Bytes of all activations of `problem`, which grow with the inputs of the model."""
    return sum(s.size_bytes for s in problem.graph.storages if s.kind is StorageKind.ACTIVATION)


def size_class(num_bytes: int) -> int:
    """Number of the class of steps with `num_bytes` of activations; classes are intervals of equal ratio."""
    # A graph without activations belongs to the first class.
    return int(math.log(max(num_bytes, 1)) / math.log(CLASS_RATIO))
