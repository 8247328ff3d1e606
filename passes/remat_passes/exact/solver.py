"""Solve a PuLP model with CBC or HiGHS, and say what was proven.

Both solvers share one function, `solve`, and one set of outcomes.  Their solutions are never trusted unchecked:
integers are rounded within a tolerance, every row is evaluated again, and a bound above the objective is refused.
A solver that is missing, breaks or writes nonsense is replaced by the other one, which is logged and told in
`Solution.stats`; after that the answer is FAILED with the reason.

CBC (https://github.com/coin-or/Cbc) comes with PuLP and runs as a process; only its log has its proven bound.
HiGHS (https://highs.dev) is the package ``highspy``, the extra ``highs`` of this project.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType

import pulp

from remat_compiler.log import logger_of
from remat_passes.exact.backends import Answer, BrokenSolver, SolverOptions, run_cbc, run_highs

logger = logger_of(__name__)

SOLVERS: Mapping[str, Callable[[pulp.LpProblem, SolverOptions], Answer]] = MappingProxyType(
    {"cbc": run_cbc, "highs": run_highs}
)
"""Solvers by name, in the order in which one replaces another."""

BUILD_UNIT_S = 5e-5
"""What building a program and checking its solution takes for each row, in seconds."""
ROW_TOLERANCE = 1e-6
"""By how much a row may be violated, relative to its largest coefficient."""


class SolveStatus(str, Enum):
    """How a solver ended."""

    OPTIMAL = "optimal"
    """The solution is proven within the requested gap."""
    FEASIBLE = "feasible"
    """A limit was reached; there is a solution."""
    INFEASIBLE = "infeasible"
    """Proven: there is no solution."""
    TIMED_OUT = "timed_out"
    """A limit was reached before any solution was found."""
    FAILED = "failed"
    """No solver gave an answer that holds."""


@dataclass(frozen=True, slots=True)
class Solution:
    """Result of `solve` for a model.

    Attributes:
        status: How the solver ended.
        objective: Objective of `values`, evaluated here; `None` without a solution.
        bound: Proven lower bound of the objective of every solution; minus infinity if nothing is proven, plus
            infinity if it is proven that there is no solution.
        values: Value of each variable by name, integers rounded; empty without a solution.
        solver: Solver that gave the answer; empty if none did.
        seconds: Wall-clock seconds of all solvers together.
        counted_s: About the CPU seconds that building and solving it takes, by its work: the same on any machine.
        charged_s: Seconds to set off against a limit of seconds: for HiGHS those by its work; for CBC, which can be
            limited by a clock only, the CPU seconds of its process.
        nodes: Nodes of the branch-and-bound tree.
        iterations: Iterations of the simplex methods.
        stats: ``fallbacks``, the number of solvers replaced, and ``reason``, why; empty if none was.
    """

    status: SolveStatus
    objective: float | None = None
    bound: float = -math.inf
    values: Mapping[str, float] = field(default_factory=dict)
    solver: str = ""
    seconds: float = 0.0
    counted_s: float = 0.0
    charged_s: float = 0.0
    nodes: int = 0
    iterations: int = 0
    stats: tuple[tuple[str, str], ...] = ()

    @property
    def found(self) -> bool:
        """Whether there are values."""
        return self.objective is not None


def solve(model: pulp.LpProblem, options: SolverOptions | None = None) -> Solution:
    """Minimise `model`, with whatever solver gives an answer that holds.

    Args:
        model: Its values are overwritten.  Names of variables must be unique.
        options: Which solver, and its limits.

    Raises:
        ValueError: The model maximises, or `options` names no solver.
    """
    options = options or SolverOptions()
    if model.sense != pulp.LpMinimize:
        raise ValueError("got a model that maximises; negate its objective and minimise")
    check_solver(options.solver)
    if options.time_limit_s is not None and options.time_limit_s <= 0:
        return Solution(SolveStatus.TIMED_OUT, stats=(("reason", "the time limit is 0 s"),))
    # Nothing to decide: the objective is its constant.
    if not model.variables():
        constant = 0.0 if model.objective is None else float(model.objective.constant)
        return Solution(SolveStatus.OPTIMAL, constant, constant)
    started, spent = time.perf_counter(), solver_cpu_seconds()
    reasons: list[str] = []
    for name in [options.solver, *(other for other in SOLVERS if other != options.solver)]:
        try:
            answer = SOLVERS[name](model, options)
            build_s, clocked_s = BUILD_UNIT_S * len(model.constraints), solver_cpu_seconds() - spent
            # Only CBC runs as a process.
            charged_s = build_s + (clocked_s or answer.counted_s)
            solution = replace(
                _checked(model, options, name, answer), counted_s=build_s + answer.counted_s, charged_s=charged_s
            )
        except BrokenSolver as error:
            logger.warning("solver %s gave no answer: %s", name, error)
            reasons.append(f"{name}: {error}")
            continue
        return _with(solution, time.perf_counter() - started, reasons)
    return _with(Solution(SolveStatus.FAILED), time.perf_counter() - started, reasons)


def solver_cpu_seconds() -> float:
    """CPU seconds of the solvers that ran as processes so far."""
    times = os.times()
    return times.children_user + times.children_system


def check_solver(name: str) -> None:
    """Raise `ValueError` unless `name` is that of a solver."""
    if name not in SOLVERS:
        raise ValueError(f"got the solver {name!r}; known are {', '.join(SOLVERS)}")


def _with(solution: Solution, seconds: float, reasons: list[str]) -> Solution:
    """`solution` with its seconds and fallbacks, known only at the end."""
    stats = (("fallbacks", str(len(reasons))), ("reason", "; ".join(reasons))) if reasons else ()
    return replace(solution, seconds=seconds, stats=stats)


def _checked(model: pulp.LpProblem, options: SolverOptions, name: str, answer: Answer) -> Solution:
    """`answer` as a `Solution`; raises `BrokenSolver` if it does not hold."""
    if answer.infeasible:
        return Solution(
            SolveStatus.INFEASIBLE, bound=math.inf, solver=name, nodes=answer.nodes, iterations=answer.iterations
        )
    # Solvers report without the constant of the objective.
    constant = 0.0 if model.objective is None else float(model.objective.constant)
    bound = answer.bound + constant
    if math.isnan(bound):
        raise BrokenSolver("its bound is no number")
    if answer.values is None:
        return Solution(
            SolveStatus.TIMED_OUT, bound=bound, solver=name, nodes=answer.nodes, iterations=answer.iterations
        )
    values = _rounded(model, answer.values, options.integer_tolerance)
    _check_rows(model, values)
    # Evaluated on the rounded values: the solver's own figure belongs to unrounded ones.
    objective = constant + sum(c * values[v.name] for v, c in (model.objective or {}).items())
    slack = 1e-6 * max(1.0, abs(objective))
    # It proved the optimum but wrote no bound.
    if answer.optimal and math.isinf(bound):
        bound = objective
    if bound > objective + slack:
        raise BrokenSolver(f"its bound {bound} is above its own objective {objective}")
    # Within the slack, arithmetic may have put it above; a bound above the optimum would be none.
    bound = min(bound, objective)
    # Its word for "optimal" is not enough: the gap is measured here.
    proven = objective - bound <= max(slack, options.gap * abs(objective))
    status = SolveStatus.OPTIMAL if proven else SolveStatus.FEASIBLE
    return Solution(status, objective, bound, values, name, nodes=answer.nodes, iterations=answer.iterations)


def _rounded(model: pulp.LpProblem, values: Mapping[str, float], tolerance: float) -> dict[str, float]:
    """`values` with integers made whole and bounds kept; values off by more than `tolerance` are refused."""
    rounded: dict[str, float] = {}
    for variable in model.variables():
        value = values.get(variable.name)
        if value is None or not math.isfinite(value):
            raise BrokenSolver(f"it gave {variable.name} the value {value}")
        near = float(round(value)) if variable.cat == pulp.LpInteger else value
        low = -math.inf if variable.lowBound is None else variable.lowBound
        high = math.inf if variable.upBound is None else variable.upBound
        # A continuous value may leave its bounds by the tolerance, too.
        near = min(max(near, low), high)
        if abs(near - value) > tolerance:
            raise BrokenSolver(f"it gave {variable.name} the value {value}, which is no whole number within its bounds")
        rounded[variable.name] = near
    return rounded


def _check_rows(model: pulp.LpProblem, values: Mapping[str, float]) -> None:
    """Raise `BrokenSolver` unless `values` satisfy every row."""
    for name, row in model.constraints.items():
        total, largest = float(row.constant), 1.0
        for variable, coefficient in row.items():
            total += coefficient * values[variable.name]
            # Coefficients reach billions of bytes, so an absolute tolerance would mean nothing.
            largest = max(largest, abs(coefficient))
        # PuLP has the right side in the constant: <= is sense -1 and violated by a total above 0.
        over = abs(total) if row.sense == pulp.LpConstraintEQ else -row.sense * total
        # Errors of the values add up over the terms of a row.
        if over > ROW_TOLERANCE * largest * max(1, len(row)):
            raise BrokenSolver(f"its solution violates the row {name} by {over}")
