"""The exceptions of this project: each message says what was got, what is allowed, and what to do.

RematError
  OptionError       (also ValueError)   a bad option, environment variable, budget or stored file
  UnknownName       (also LookupError)  a planner, pass or compiler that nobody registered
  InfeasibleBudget                      no plan stays within the budget
  PlanRejected                          the verifier found a plan that must not be executed
  CaptureError                          the joint graph cannot be described as a TrainingGraph
  InvalidGraph                          a TrainingGraph that breaks its invariants
  FormatError       (also ValueError)   a JSON file of this project that cannot be read
  CacheError                            a folder of cached plans that cannot be listed or cleared
  UnsupportedTorch                      a version of torch that lacks what this project changes in it
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence

from remat_compiler.version import TESTED_TORCH


class RematError(Exception):
    """Base of every exception that this project raises on purpose."""


class OptionError(RematError, ValueError):
    """An option is unknown or its value malformed."""


class CaptureError(RematError):
    """The joint graph cannot be described as a `TrainingGraph`."""


class InvalidGraph(RematError):
    """A `TrainingGraph` breaks its invariants; a defect of what made it, never of the user's model.

    Attributes:
        defects: One sentence for each broken invariant.
    """

    SHOWN = 5

    def __init__(self, defects: Sequence[str]) -> None:
        self.defects = tuple(defects)
        rest = len(self.defects) - self.SHOWN
        more = f"; and {rest} more" if rest > 0 else ""
        super().__init__(f"invalid graph: {'; '.join(self.defects[: self.SHOWN])}{more}")

    def __reduce__(self) -> tuple[type[InvalidGraph], tuple[tuple[str, ...]]]:
        return type(self), (self.defects,)


class CacheError(RematError):
    """A folder of cached plans cannot be listed or cleared; compiling goes on without one and only warns."""


class UnsupportedTorch(RematError):
    """The torch at hand lacks something that results or budgets depend on.

    Attributes:
        torch_version: Its version.
        problem: What is missing, or otherwise than known.
        consequence: What would happen if it were used nevertheless.
    """

    def __init__(self, torch_version: str, problem: str, consequence: str) -> None:
        self.torch_version = torch_version
        self.problem = problem
        self.consequence = consequence
        oldest, newest = (".".join(map(str, version)) for version in TESTED_TORCH)
        super().__init__(
            f"got torch {torch_version}, where {problem}, without which {consequence}; allowed are torch {oldest} to "
            f"{newest}: install one of these, or a newer remat, and run `remat doctor` to see all that is missing"
        )

    def __reduce__(self) -> tuple[type[UnsupportedTorch], tuple[str, str, str]]:
        return type(self), (self.torch_version, self.problem, self.consequence)


class FormatError(RematError, ValueError):
    """A stored graph, problem, plan or report cannot be read.

    Attributes:
        place: Path to the offending value, such as ``$.ops[3].reads``.
    """

    def __init__(self, place: str, problem: str) -> None:
        super().__init__(f"{place}: {problem}")
        self.place = place
        self.problem = problem

    def __reduce__(self) -> tuple[type[FormatError], tuple[str, str]]:
        return type(self), (self.place, self.problem)


class UnknownName(RematError, LookupError):
    """A name that is looked up in a table of names is not there.

    Attributes:
        kind: What was looked up, such as ``planner``.
        name: What was asked for.
        allowed: Names that exist, sorted.
        place: Where the name stands, such as an environment variable, or empty.
    """

    def __init__(self, kind: str, name: str, allowed: Iterable[str], place: str = "") -> None:
        self.kind = kind
        self.name = name
        self.allowed = tuple(sorted(allowed))
        self.place = place
        where = f" in {place}" if place else ""
        super().__init__(f"unknown {kind} {name!r}{where}{suggestion(name, self.allowed)}")

    def __reduce__(self) -> tuple[type[UnknownName], tuple[str, str, tuple[str, ...], str]]:
        return type(self), (self.kind, self.name, self.allowed, self.place)


class UnservedSizes(RematError):
    """What a compiler assumed of changing sizes does not hold at those of a call.

    Args:
        sizes: The sizes of the call, as people are shown them.
    """

    def __init__(self, sizes: str) -> None:
        self.sizes = sizes
        super().__init__(
            f"got {sizes}, for which the compiled graph may not be used: what the inner compiler assumed of changing "
            "sizes does not hold there; run such sizes by a function that is compiled with dynamic=False"
        )

    def __reduce__(self) -> tuple[type[UnservedSizes], tuple[str]]:
        return type(self), (self.sizes,)


class InfeasibleBudget(RematError):
    """No plan stays within the budget.

    Attributes:
        budget_bytes: The budget that was asked for.
        smallest_peak_bytes: Smallest peak that a plan reaches, in bytes.
        forced_by: Name of the operator at that peak, or empty.
        source: User's source line of that operator, such as ``model.py:12``, or empty.
        reason: What limits the search besides memory, such as ``max_slowdown=2.0``, or empty.
    """

    def __init__(
        self, budget_bytes: int, smallest_peak_bytes: int, forced_by: str = "", source: str = "", reason: str = ""
    ) -> None:
        self.budget_bytes = budget_bytes
        self.smallest_peak_bytes = smallest_peak_bytes
        self.forced_by = forced_by
        self.source = source
        self.reason = reason
        limit = f" (under {reason})" if reason else ""
        forced = f", forced by {forced_by}" if forced_by else ""
        line = f" at {source}" if source else ""
        super().__init__(
            f"no plan fits memory_budget={budget_bytes} bytes: the smallest reachable peak{limit} is "
            f"{smallest_peak_bytes} bytes{forced}{line}; raise the budget to at least that, "
            f'or set on_infeasible="min" to train at the smallest peak with a warning'
        )

    def __reduce__(self) -> tuple[type[InfeasibleBudget], tuple[int, int, str, str, str]]:
        return type(self), (self.budget_bytes, self.smallest_peak_bytes, self.forced_by, self.source, self.reason)


class PlanRejected(RematError):
    """The verifier found violations in a plan; a defect of the planner, never of the user's model.

    Attributes:
        planner: Name of the planner that made the plan.
        violations: One sentence for each broken rule.
    """

    SHOWN = 5

    def __init__(self, planner: str, violations: Sequence[object]) -> None:
        self.planner = planner
        self.violations = tuple(str(v) for v in violations)
        shown = "; ".join(self.violations[: self.SHOWN])
        rest = len(self.violations) - self.SHOWN
        more = f"; and {rest} more" if rest > 0 else ""
        super().__init__(
            f"the plan of planner {planner!r} breaks {len(self.violations)} rule(s): {shown}{more}; "
            "this is a defect of the planner: report it with the dump, and choose another planner meanwhile"
        )

    def __reduce__(self) -> tuple[type[PlanRejected], tuple[str, tuple[str, ...]]]:
        return type(self), (self.planner, self.violations)


def suggestion(name: str, allowed: Sequence[str], prefix: str = "") -> str:
    """The end of a message about an unknown name: near matches first, then all that is allowed.

    Args:
        name: What was asked for.
        allowed: Names that exist.
        prefix: What all of them begin with, which tells nothing apart.
    """
    lowered = {a.lower().removeprefix(prefix.lower()): a for a in allowed}
    matches = difflib.get_close_matches(name.lower().removeprefix(prefix.lower()), list(lowered), n=3, cutoff=0.6)
    near = [lowered[m] for m in matches]
    meant = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    listed = ", ".join(allowed) if allowed else "nothing is registered"
    return f"{meant} (allowed: {listed})" if allowed else f" ({listed})"
