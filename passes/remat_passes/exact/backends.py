"""CBC and HiGHS as PuLP runs them, with features that PuLP lacks: bounds, nodes, node limits and warm starts."""

from __future__ import annotations

import math
import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pulp
from pulp.apis.core import PulpSolverError

from remat_passes.exact.highs import quiet_highs

CHECK_TERM_S, TREE_CHECKS = 1.7e-6, 8
"""What HiGHS takes from one check of its limits to the next at the root, for each coefficient, in seconds; and how many
checks in the tree, where less happens in between, stand for one at the root."""
PIVOT_UNIT_S = 3.7e-8
"""What an iteration of its simplex method takes for each row and variable, in seconds."""
CBC_PROGRAM_S, CBC_TERM_S = 0.012, 1.4e-5
"""What CBC takes to start and to prepare a program, and for each coefficient of it, in seconds."""
CBC_PIVOT_S, CBC_PIVOT_TERM_S = 9e-5, 1.1e-7
"""What an iteration of its simplex method takes with the cuts around it, and for each coefficient, in seconds."""


class BrokenSolver(Exception):
    """A solver is missing, broke, or wrote nonsense."""


@dataclass(frozen=True, slots=True)
class SolverOptions:
    """How to solve.

    Attributes:
        solver: ``cbc`` or ``highs``; the other one replaces it if it gives no answer.
        time_limit_s: Seconds for one solver: CPU time for CBC, which has no other limit but nodes; for HiGHS as much
            work as takes about as long, so that it stops at the same point on any machine.  `None` for no limit, 0
            ends at once.
        node_limit: Nodes of the branch-and-bound tree; `None` for no limit.  Plans that must agree between runs
            are limited by nodes, not by seconds.
        gap: Relative gap between objective and bound at which to stop.
        threads: Threads of the solver; more than one is not deterministic.
        seed: Start of the solver's random numbers.
        warm_start: A solution to begin with, by name of variable; those not named are 0.
        integer_tolerance: How far from a whole number an integer may be returned.
    """

    solver: str = "cbc"
    time_limit_s: float | None = 20.0
    node_limit: int | None = None
    gap: float = 0.0
    threads: int = 1
    seed: int = 1
    warm_start: Mapping[str, float] = field(default_factory=dict)
    integer_tolerance: float = 1e-5


@dataclass(frozen=True, slots=True)
class Answer:
    """The output of a solver, unchecked; `bound` lacks the constant of the objective.

    Attributes:
        optimal: It says that its solution is optimal within the gap.
        infeasible: It says that there is no solution.
        values: Its solution by name of variable, if any.
        bound: Its lower bound of the objective.
        nodes: Nodes that it visited.
        iterations: Iterations of its simplex methods, as far as it tells.
        counted_s: About the seconds that it took, by its work, which is the same on any machine.
    """

    optimal: bool = False
    infeasible: bool = False
    values: Mapping[str, float] | None = None
    bound: float = -math.inf
    nodes: int = 0
    iterations: int = 0
    counted_s: float = 0.0


def run_cbc(model: pulp.LpProblem, options: SolverOptions) -> Answer:
    """Minimise `model` with the CBC that PuLP ships, or else with the ``cbc`` on the path.

    Raises:
        BrokenSolver: There is none, it broke, or its log cannot be understood.
    """
    with tempfile.TemporaryDirectory(prefix="remat-cbc-") as folder:
        log = Path(folder) / "log.txt"
        solver = pulp.COIN_CMD(
            # The class that knows the path warns when it is made; its attribute does not.
            path=getattr(getattr(pulp, "PULP_CBC_CMD", None), "pulp_cbc_path", None),
            msg=False,
            timeLimit=options.time_limit_s,
            gapRel=options.gap,
            threads=options.threads,
            maxNodes=options.node_limit,
            timeMode="cpu",
            warmStart=bool(options.warm_start),
            options=[f"randomSeed {options.seed}", f"randomCbcSeed {options.seed}"],
            logPath=str(log),
        )
        # PuLP leaves its files behind when the solver breaks; here they go with the folder.
        solver.tmpDir = folder
        if not solver.available():
            raise BrokenSolver("CBC is not there; PuLP comes with it for common platforms")
        for variable in model.variables():
            # PuLP writes these values as the start; without one, none of an earlier run may look like a solution.
            variable.varValue = options.warm_start.get(variable.name, 0.0) if options.warm_start else None
        try:
            model.solve(solver)
        # A process that cannot start, or a solution file cut short, which PuLP fails to parse.
        except (PulpSolverError, OSError, ValueError, IndexError) as error:
            raise BrokenSolver(f"{type(error).__name__}: {error}") from error
        answer = read_cbc_log(log.read_text(encoding="utf-8", errors="replace"), _values(model))
    terms = _terms(model)
    pivots_s = answer.iterations * (CBC_PIVOT_S + CBC_PIVOT_TERM_S * terms)
    return replace(answer, counted_s=CBC_PROGRAM_S + CBC_TERM_S * terms + pivots_s)


def read_cbc_log(log: str, values: Mapping[str, float]) -> Answer:
    """The answer in the log of CBC; `values` belong to it if the log has a solution."""
    # Infeasibility has many wordings: by the search, the relaxation, presolve or preprocessing.
    if re.search(r"^(Result - )?(Linear relaxation|Problem)( is| proven)? infeasible", log, re.MULTILINE):
        return Answer(infeasible=True)
    if re.search(r"^(Presolve determined|Pre-processing says).*infeasible", log, re.MULTILINE | re.IGNORECASE):
        return Answer(infeasible=True)
    # A linear program without integers ends with "Optimal objective" and has no "Result".
    result = re.search(r"^Result - (.*)$", log, re.MULTILINE)
    linear = re.search(r"^Optimal objective +(\S+)", log, re.MULTILINE)
    if result is None and linear is None:
        raise BrokenSolver(f"the log of CBC has no result: {log[-200:]!r}")
    optimal = result is None or result.group(1).startswith("Optimal")
    objective = (
        _number(r"^Objective value: +(\S+)", log) if result is not None else _number(r"^Optimal obj\S* +(\S+)", log)
    )
    # Written only if the search stopped early; the optimum is its own bound.
    bound = _number(r"^Lower bound: +(\S+)", log)
    if bound is None:
        bound = objective if optimal and objective is not None else -math.inf
    nodes = _number(r"^Enumerated nodes: +(\S+)", log)
    iterations = _number(r"^Total iterations: +(\S+)", log)
    return Answer(optimal, False, None if objective is None else values, bound, int(nodes or 0), int(iterations or 0))


def _number(pattern: str, log: str) -> float | None:
    """The number that `pattern` captures, if it occurs."""
    found = re.search(pattern, log, re.MULTILINE)
    return None if found is None else float(found.group(1))


def run_highs(model: pulp.LpProblem, options: SolverOptions) -> Answer:
    """Minimise `model` with HiGHS.

    Raises:
        BrokenSolver: highspy is not installed, or it broke.
    """
    try:
        import highspy  # an extra of this project
    except ImportError as error:
        raise BrokenSolver("highspy is not installed; install remat-compiler[highs]") from error
    limits: dict[str, Any] = {} if options.node_limit is None else {"mip_max_nodes": options.node_limit}
    # PuLP's interface to HiGHS reads the objective without looking whether there is one.
    if model.objective is None:
        model.setObjective(pulp.LpAffineExpression())
    try:
        # The parts of PuLP's `solve`, so that a warm start fits in between, and the solver is one that is quiet.
        highs = model.solverModel = quiet_highs(
            mip_rel_gap=options.gap, threads=options.threads, random_seed=options.seed, **limits
        )
        pulp.HiGHS(msg=False).buildSolverModel(model)
        if options.warm_start:
            start = highspy.HighsSolution()
            start.col_value = [options.warm_start.get(v.name, 0.0) for v in model.variables()]
            highs.setSolution(start)
        if options.time_limit_s is not None:
            _limit_checks(highs, int(options.time_limit_s / (CHECK_TERM_S * max(_terms(model), 1))))
        highs.run()
    except (PulpSolverError, RuntimeError, ValueError, TypeError) as error:
        raise BrokenSolver(f"{type(error).__name__}: {error}") from error
    return _highs_answer(model, highspy)


def _size(model: pulp.LpProblem) -> int:
    """Rows and variables."""
    return len(model.constraints) + len(model.variables())


def _terms(model: pulp.LpProblem) -> int:
    """Coefficients of all rows."""
    return sum(map(len, model.constraints.values()))


def _limit_checks(highs: Any, most: int) -> None:
    """Have `highs` stop after `most` checks of its limits at the root, or a multiple of that in the tree.

    HiGHS checks its limits between linear programs, at the same points in every run with one thread.  It has no limit
    of work for integer programs but nodes, of which the first may take all the time, and tells no count of iterations
    while it runs.
    """
    left = TREE_CHECKS * max(most, 1)

    def check(event: Any) -> None:
        nonlocal left
        left -= 1 if event.data_out.mip_node_count > 0 else TREE_CHECKS
        if left <= 0:
            event.interrupt()

    highs.cbMipInterrupt += check


def _highs_answer(model: pulp.LpProblem, highspy: Any) -> Answer:
    """The answer of HiGHS after its run."""
    highs = model.solverModel
    status, info = highs.getModelStatus(), highs.getInfo()
    kinds = highspy.HighsModelStatus
    if status == kinds.kInfeasible:
        return Answer(infeasible=True)
    if status in (kinds.kLoadError, kinds.kModelError, kinds.kPresolveError, kinds.kSolveError, kinds.kPostsolveError):
        raise BrokenSolver(f"HiGHS ended with {highs.modelStatusToString(status)}")
    # All variables of this project's programs are bounded, so this is an error of the solver.
    if status in (kinds.kUnbounded, kinds.kUnboundedOrInfeasible):
        raise BrokenSolver("HiGHS says that the model is unbounded")
    # `mip_dual_bound` means nothing for a linear program, whose optimum is the bound.
    whole = any(v.cat == pulp.LpInteger for v in model.variables())
    optimal = status == kinds.kOptimal
    found = info.primal_solution_status == 2  # feasible, in the numbering of HiGHS
    values = dict(zip((v.name for v in model.variables()), highs.getSolution().col_value)) if found else None
    if whole:
        bound = float(info.mip_dual_bound)
    else:
        bound = float(info.objective_function_value) if optimal else -math.inf
    # Both counts are -1 where there are none.
    nodes, iterations = max(0, int(info.mip_node_count)), max(0, int(info.simplex_iteration_count))
    counted_s = PIVOT_UNIT_S * iterations * _size(model)
    return Answer(optimal, False, values, bound, nodes, iterations, counted_s)


def _values(model: pulp.LpProblem) -> dict[str, float]:
    """Value of each variable that has one; PuLP adds a dummy to an objective without variables."""
    values = {v.name: v.varValue for v in model.variables()}
    if "__dummy" in values:
        values["__dummy"] = 0.0
    return {name: float(value) for name, value in values.items() if value is not None}
