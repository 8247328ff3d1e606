"""The exceptions of this project: each message says what was found, what is allowed, and what to do.

RematError
  OptionError       (also ValueError)   a bad option, environment variable, budget or stored file
  UnknownName       (also LookupError)  a planner, pass or compiler that nobody registered
  InfeasibleBudget  (also RuntimeError) no plan stays within the budget
  RanksDiffer       (also RuntimeError) ranks that would wait for each other without end
  PlanRejected                          the verifier found a plan that must not be executed
  Unplannable                           a joint graph that no plan can be applied to
  InvalidGraph                          a TrainingGraph that breaks its invariants
  FormatError       (also ValueError)   a JSON file of this project that cannot be read
  CacheError                            a folder of cached plans that cannot be listed or cleared
  OffloadError      (also RuntimeError) memory off the device that cannot be had, or failed
  OutputNotComputed (also RuntimeError) a result that the user said nobody reads, and somebody did
  PaperFailure                          a step that cannot be run on a GPU on paper
  UnsupportedTorch                      a version of torch that lacks what this project changes in it
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from remat_compiler.units import format_bytes
from remat_compiler.version import TESTED_TORCH


class RematError(Exception):
    """Base of every exception that this project raises on purpose; copies and pickled ones have its fields."""

    def __reduce__(self) -> tuple[object, ...]:
        # What is shown to a user is of a class that was made for it, which no other process can find.
        kind = next(c for c in type(self).__mro__ if getattr(sys.modules.get(c.__module__), c.__qualname__, None) is c)
        return _restored, (kind, self.args, dict(vars(self)))


def _restored(kind: type[Exception], args: tuple[object, ...], fields: Mapping[str, object]) -> Exception:
    """An exception with these arguments and fields, as it was before pickling or copying."""
    # Without `__init__`: those of subclasses take other arguments than the message that is in `args`.
    error = kind.__new__(kind, *args)
    error.args = args
    vars(error).update(fields)
    return error


class OptionError(RematError, ValueError):
    """An option is unknown or its value malformed."""


class Unplannable(RematError):
    """No plan can be applied to a joint graph; it is compiled as without a budget, and the user is told why."""


class InvalidGraph(RematError):
    """A `TrainingGraph` breaks its invariants: a defect of the code that made it, never of the user's model.

    Attributes:
        defects: One sentence for each broken invariant.
    """

    SHOWN = 5

    def __init__(self, defects: Sequence[str]) -> None:
        self.defects = tuple(defects)
        rest = len(self.defects) - self.SHOWN
        more = f"; and {rest} more" if rest > 0 else ""
        super().__init__(f"invalid graph: {'; '.join(self.defects[: self.SHOWN])}{more}")


class CacheError(RematError):
    """A folder of cached plans cannot be listed or cleared; compiling goes on without one and only warns."""


class OffloadError(RematError, RuntimeError):
    """Memory off the device cannot be had, or a copy to or from it failed."""


class OutputNotComputed(RematError, RuntimeError):
    """A result was read that was not computed, since the user said that only the loss is read.

    Args:
        result: Its type and sizes.
    """

    def __init__(self, result: str) -> None:
        super().__init__(
            f'a result of the compiled program ({result}) was read, and was not computed, since outputs="loss" says '
            'that nobody reads results but the loss; compile with outputs="all" (the default), or leave it unread'
        )


class PaperFailure(RematError):
    """A step could not be run on a GPU that is not there; the message has the traceback of the user's own code."""


class UnsupportedTorch(RematError):
    """The installed torch lacks something that results or budgets depend on.

    Attributes:
        torch_version: Its version.
        problem: The part that is missing or differs from tested versions.
        consequence: The effect if this torch were used nevertheless.
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


class UnknownName(RematError, LookupError):
    """A name is not in the table in which it is looked up.

    Attributes:
        kind: Kind of the names, such as ``planner``.
        name: The unknown name.
        allowed: Names that exist, sorted.
        place: Source of the name, such as an environment variable, or empty.
    """

    def __init__(self, kind: str, name: str, allowed: Iterable[str], place: str = "") -> None:
        self.kind = kind
        self.name = name
        self.allowed = tuple(sorted(allowed))
        self.place = place
        where = f" in {place}" if place else ""
        super().__init__(f"unknown {kind} {name!r}{where}{suggestion(name, self.allowed)}")


class UnservedSizes(RematError):
    """The sizes of a call break an assumption that the inner compiler made on changing sizes.

    Args:
        sizes: The sizes of the call, as text.
    """

    def __init__(self, sizes: str) -> None:
        self.sizes = sizes
        super().__init__(
            f"got {sizes}, for which the compiled graph may not be used: what the inner compiler assumed of changing "
            "sizes does not hold there; run such sizes by a function that is compiled with dynamic=False"
        )


@dataclass(frozen=True, slots=True)
class KeptBytes:
    """Bytes that the backward needs and that must not be recomputed.

    Attributes:
        num_bytes: Their number.
        why: The reason.
        source: User's source line of the largest of them, or empty.
    """

    num_bytes: int
    why: str
    source: str = ""

    def __str__(self) -> str:
        return f"{format_bytes(self.num_bytes)} since {self.why}{f' ({self.source})' if self.source else ''}"


@dataclass(frozen=True, slots=True)
class BudgetFacts:
    """Facts about a step whose budget cannot be kept; each may be unknown.

    Attributes:
        asked: The budget as the user wrote it.
        unbudgeted_bytes: Approximate peak of the step without a budget.
        planner: Planner that found the smallest peak.
        kept: Values that must not be recomputed, the most bytes first.
        fixed_bytes: Bytes at the smallest peak that do not depend on the batch: gradients of parameters.
        undeclared: Whether some values are kept only because nobody declared their operator free of side effects.
        proven_bytes: Bytes below which no plan peaks, proven.
        returned_bytes: Bytes of the gradients that may come back for results beside a loss; 0 if there is no loss.
    """

    asked: str = ""
    unbudgeted_bytes: int | None = None
    planner: str = ""
    kept: tuple[KeptBytes, ...] = ()
    fixed_bytes: int | None = None
    undeclared: bool = False
    proven_bytes: int | None = None
    returned_bytes: int = 0


class InfeasibleBudget(RematError, RuntimeError):
    """No plan stays within the budget.

    Its one argument says "out of memory" as PyTorch does, so that searches for the batch size react to it.

    Attributes:
        budget_bytes: The budget in bytes.
        smallest_peak_bytes: Smallest peak that a plan reaches, in bytes.
        forced_by: Name of the operator at that peak, or empty.
        source: User's source line of that operator, such as ``model.py:12``, or empty.
        reason: A limit of the search other than memory, such as ``max_slowdown=2.0``, or empty.
        facts: Further facts for the message.
    """

    SHOWN = 3

    def __init__(
        self,
        budget_bytes: int,
        smallest_peak_bytes: int,
        forced_by: str = "",
        source: str = "",
        reason: str = "",
        facts: BudgetFacts | None = None,
    ) -> None:
        self.budget_bytes = budget_bytes
        self.smallest_peak_bytes = smallest_peak_bytes
        self.forced_by = forced_by
        self.source = source
        self.reason = reason
        self.facts = BudgetFacts() if facts is None else facts
        planner = f" by planner {self.facts.planner!r}" if self.facts.planner else ""
        limit = f" (under {reason})" if reason else ""
        forced = f", forced by {forced_by}" if forced_by else ""
        line = f" at {source}" if source else ""
        super().__init__(
            f"no plan fits memory_budget={self._budget()}: the smallest reachable peak{planner}{limit} is "
            f"{_both(smallest_peak_bytes)}{forced}{line}.{self._proven()}{self._kept()} "
            f"What helps: {self._ways_out()}. "
            'To a search for the batch size, this counts as "CUDA out of memory."'
        )

    def _budget(self) -> str:
        """The budget as it was written, in bytes, and as a part of what the step would take."""
        unbudgeted = self.facts.unbudgeted_bytes
        percent = 100 * self.budget_bytes / unbudgeted if unbudgeted else 0.0
        part = "less than 0.1" if percent < 0.1 else f"{percent:.3g}"
        share = f", {part} % of the peak without a budget" if unbudgeted else ""
        inner = f"{_both(self.budget_bytes)}{share}"
        return f"{self.facts.asked} ({inner})" if self.facts.asked else inner

    def _proven(self) -> str:
        """A sentence about what no plan can reach, whatever planner is asked."""
        proven = self.facts.proven_bytes
        # What was emitted may be below what was planned, and then below what is proven of plans.
        if proven is None or not self.budget_bytes < proven <= self.smallest_peak_bytes:
            return ""
        limit = f" under {self.reason}" if "max_slowdown" in self.reason else ""
        return f" Proven: no plan{limit} goes below {_both(proven)}."

    def _kept(self) -> str:
        """A sentence about the values that must not be recomputed, and why."""
        kept = self.facts.kept
        if not kept:
            return ""
        # The largest by name, the others as one sum: there may be hundreds.
        rest = sum(one.num_bytes for one in kept[self.SHOWN :])
        parts = [*map(str, kept[: self.SHOWN]), *([f"{format_bytes(rest)} for other reasons"] if rest else [])]
        total = sum(one.num_bytes for one in kept)
        return f" Of what the backward needs, {format_bytes(total)} may not be recomputed: {'; '.join(parts)}."

    def _ways_out(self) -> str:
        """The remedies for the user, as one text."""
        ways = [
            f"a budget of at least {_both(self.smallest_peak_bytes)}",
            'on_infeasible="min", which trains at the smallest peak with a warning',
        ]
        if "max_slowdown" in self.reason:
            ways.append("a larger max_slowdown, or None for no limit")
        if 20 * self.facts.returned_bytes > self.smallest_peak_bytes:
            ways.append(
                'outputs="loss", if nothing reads the results beside the loss, such as logits '
                f"(gradients for them take {format_bytes(self.facts.returned_bytes)})"
            )
        if "of the step" in self.reason:
            ways.append('fewer graphs: TORCH_LOGS="graph_breaks" shows where the step is cut')
        if self.facts.undeclared:
            ways.append("remat_compiler.allow_recompute(operator), where an operator has no side effects")
        fixed = self.facts.fixed_bytes
        if fixed is not None and 2 * fixed > self.smallest_peak_bytes:
            ways.append(
                "remat_compiler.step_in_backward(model, make_optimizer), which updates each parameter as its gradient "
                "is made, so that gradients are not alive together"
            )
        batch = "a smaller batch"
        # Gradients of parameters do not shrink with the batch; the rest of the peak is taken to be proportional to it.
        if fixed is not None and fixed >= self.budget_bytes:
            batch += f" (alone it will not do: gradients of parameters take {format_bytes(fixed)})"
        elif fixed is not None and self.smallest_peak_bytes > self.budget_bytes:
            part = (self.budget_bytes - fixed) / (self.smallest_peak_bytes - fixed)
            # Rounded down: a batch that is only nearly small enough is no remedy.
            batch += f" (about {int(100 * part)} % of this one)" if part >= 0.01 else " (less than 1 % of this one)"
        return "; ".join([*ways, batch])


def _both(num_bytes: int) -> str:
    """Exact bytes, and from 1 KiB on also rounded ones."""
    exact = "1 byte" if num_bytes == 1 else f"{num_bytes} bytes"
    return exact if num_bytes < 1024 else f"{exact} ({format_bytes(num_bytes)})"


class RanksDiffer(RematError, RuntimeError):
    """A rank would not communicate as the others do, or it is unknown whether it would: going on could hang the job."""


class PlanRejected(RematError):
    """The verifier found violations in a plan: a defect of the planner, never of the user's model.

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


def suggestion(name: str, allowed: Sequence[str], prefix: str = "") -> str:
    """The end of a message about an unknown name: near matches first, then all that is allowed.

    Args:
        name: The unknown name.
        allowed: Names that exist.
        prefix: Common prefix of all of them, which is ignored in the comparison.
    """
    # A long common prefix would make all names near matches.
    lowered = {a.lower().removeprefix(prefix.lower()): a for a in allowed}
    matches = difflib.get_close_matches(name.lower().removeprefix(prefix.lower()), list(lowered), n=3, cutoff=0.6)
    near = [lowered[m] for m in matches]
    meant = f"; did you mean {' or '.join(repr(n) for n in near)}?" if near else ""
    listed = ", ".join(allowed) if allowed else "nothing is registered"
    return f"{meant} (allowed: {listed})" if allowed else f" ({listed})"
