"""A program of `rows`, solved by HiGHS or CBC, with a bound that follows from multipliers alone.

A solver's word is not taken for the linear relaxation: for any multipliers ``u >= 0`` of the rows,

    bound(u) = offset + u @ right + sum over j of min(0, upper_j * (cost - u @ A)_j)

is at most the objective of every solution, since each x_j lies between 0 and upper_j (Neumaier and Shcherbina, Safe
bounds in linear and mixed-integer linear programming, Mathematical Programming 99, 2004).  Likewise multipliers with
``bound(u) > 0`` for a program without costs prove that nothing satisfies the rows.  A solver can thus be slow or leave
gaps, but not wrong.  Branch and bound has no such proof; what it says is taken, less a tolerance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from remat_passes.bounds.rows import Rows

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BUILD_WORK, PIVOT_WORK, NODE_WORK = 100, 0.1, 1.5
"""Work of a row, and of an iteration of the simplex method for each row and variable: alone, and in a tree."""
USUAL_WORK, CBC_PIVOTS = 28_000_000, 1.0
"""Work that the simplex method may do, about a second; pivots for each row and variable within it that CBC needs."""
CERTAIN = 1e-6
"""What a combination of rows must exceed to prove that nothing satisfies them."""
FEASIBLE_POINT = 2
"""How HiGHS numbers a solution that satisfies all rows."""


@dataclass(frozen=True, slots=True, eq=False)
class Solved:
    """The result of a program.

    Attributes:
        bound: Proven lower bound of the objective; minus infinity if nothing is proven.
        infeasible: Proven: there is no solution.
        values: The best solution found, or that of the relaxation; `None` if there is none.
        work: Work done, in the unit of `remat_passes.planning.portfolio`.
    """

    bound: float
    infeasible: bool
    values: FloatArray | None
    work: int


@dataclass(frozen=True, slots=True, eq=False)
class _Matrix:
    """`Rows` as arrays; row, column and value of each entry, row by row."""

    cost: FloatArray
    upper: FloatArray
    right: FloatArray
    row: IntArray
    column: IntArray
    value: FloatArray

    @staticmethod
    def of(rows: Rows) -> _Matrix:
        """The arrays of `rows`."""
        return _Matrix(
            np.array(rows.cost, np.float64),
            np.array(rows.upper, np.float64),
            np.array(rows.right, np.float64),
            np.repeat(np.arange(len(rows.right)), np.diff(np.array(rows.start))),
            np.array(rows.index, np.int64),
            np.array(rows.value, np.float64),
        )

    def elastic(self) -> _Matrix:
        """The program of the least violation: one more variable, of cost 1, lets all rows give way by as much."""
        count, most = len(self.right), float(np.abs(self.right).max() + np.abs(self.value).sum())
        order = np.argsort(np.concatenate([self.row, np.arange(count)]), kind="stable")
        return _Matrix(
            np.append(np.zeros_like(self.cost), 1.0),
            np.append(self.upper, most),
            self.right,
            np.concatenate([self.row, np.arange(count)])[order],
            np.concatenate([self.column, np.full(count, len(self.cost))])[order],
            np.concatenate([self.value, np.ones(count)])[order],
        )

    @property
    def size(self) -> int:
        """Rows and variables together."""
        return len(self.right) + len(self.cost)

    def bound(self, multipliers: FloatArray, cost: FloatArray) -> float:
        """``bound(u)`` of the module docstring, without the offset."""
        u = np.maximum(multipliers, 0.0)
        left = np.bincount(self.column, weights=u[self.row] * self.value, minlength=len(cost))
        return float(u @ self.right + np.minimum(self.upper * (cost - left), 0.0).sum())


@dataclass(frozen=True, slots=True, eq=False)
class _Answer:
    """What a solver says of a relaxation: multipliers and values, or that it is infeasible, or nothing."""

    multipliers: FloatArray
    values: FloatArray | None
    infeasible: bool
    iterations: int


def has_highs() -> bool:
    """Whether HiGHS is there; CBC, which comes with PuLP, takes its place."""
    return find_spec("highspy") is not None


def solve_relaxation(rows: Rows, most_work: int = USUAL_WORK) -> Solved:
    """The linear relaxation of `rows`.

    Args:
        rows: The program.
        most_work: Work after which the simplex method is stopped, and nothing is proven.  CBC has no such limit, so
            programs on which it would take longer are not begun.
    """
    if rows.impossible or not rows.right:
        return _decided(rows)
    matrix = _Matrix.of(rows)
    pivots = int(most_work / (PIVOT_WORK * matrix.size))
    if not has_highs() and pivots < CBC_PIVOTS * matrix.size:
        return Solved(-math.inf, False, None, BUILD_WORK)
    solver = _by_highs if has_highs() else _by_cbc
    answer = solver(matrix, pivots)
    work = matrix.size * BUILD_WORK + int(PIVOT_WORK * answer.iterations * matrix.size)
    if not answer.infeasible:
        # Multipliers that are no numbers would prove nothing; the comparison leaves the bound at its least.
        found = matrix.bound(answer.multipliers, matrix.cost)
        bound = rows.offset + found if math.isfinite(found) else -math.inf
        return Solved(bound, False, answer.values, work)
    # The least violation has a solution in any case, and its multipliers are those that prove that it is above 0.
    again = solver(matrix.elastic(), pivots)
    proven = matrix.bound(again.multipliers, np.zeros_like(matrix.cost)) > CERTAIN
    return Solved(-math.inf, proven, None, 2 * work + int(PIVOT_WORK * again.iterations * matrix.size))


def solve_whole(rows: Rows, nodes: int, gap: float) -> Solved:
    """`rows` by branch and bound with HiGHS; nothing is proven where it is missing.

    Args:
        rows: The program.
        nodes: Nodes of the tree at most; never a limit of time, so that the bound is the same everywhere.
        gap: Relative gap at which to stop.
    """
    if rows.impossible or not rows.right:
        return _decided(rows)
    if not has_highs():
        return Solved(-math.inf, False, None, 0)
    import highspy

    matrix = _Matrix.of(rows)
    solver = _loaded(matrix, rows.whole)
    solver.setOptionValue("mip_max_nodes", nodes)
    solver.setOptionValue("mip_rel_gap", gap)
    solver.run()
    info = solver.getInfo()
    work = matrix.size * BUILD_WORK + int(NODE_WORK * max(int(info.simplex_iteration_count), 0) * matrix.size)
    if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        return Solved(-math.inf, True, None, work)
    found = info.primal_solution_status == FEASIBLE_POINT
    values = np.array(solver.getSolution().col_value) if found else None
    bound = rows.offset + float(info.mip_dual_bound)
    return Solved(bound if math.isfinite(bound) else -math.inf, False, values, work)


def _decided(rows: Rows) -> Solved:
    """The result of a program without rows, where no variable has a reason to be above 0."""
    return Solved(rows.offset, rows.impossible, np.zeros(len(rows.cost)), BUILD_WORK)


def _loaded(matrix: _Matrix, whole: Sequence[bool] = ()) -> Any:
    """HiGHS with a program, whose variables are whole numbers where `whole` says so."""
    import highspy

    made: Any = highspy.Highs
    solver = made()
    # One thread and a fixed seed: the same program ends the same way.
    for name, value in (("output_flag", False), ("threads", 1), ("random_seed", 1)):
        solver.setOptionValue(name, value)
    program = highspy.HighsLp()
    columns, rows = len(matrix.cost), len(matrix.right)
    program.num_col_, program.num_row_ = columns, rows
    program.col_cost_, program.col_lower_, program.col_upper_ = matrix.cost, np.zeros(columns), matrix.upper
    program.row_lower_, program.row_upper_ = matrix.right, np.full(rows, highspy.kHighsInf)
    program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    program.a_matrix_.start_ = np.searchsorted(matrix.row, np.arange(rows + 1)).astype(np.int32)
    program.a_matrix_.index_ = matrix.column.astype(np.int32)
    program.a_matrix_.value_ = matrix.value
    kinds = (highspy.HighsVarType.kContinuous, highspy.HighsVarType.kInteger)
    program.integrality_ = [kinds[one] for one in whole]
    solver.passModel(program)
    return solver


def _by_highs(matrix: _Matrix, pivots: int) -> _Answer:
    """The relaxation by HiGHS."""
    import highspy

    solver = _loaded(matrix)
    solver.setOptionValue("simplex_iteration_limit", pivots)
    solver.run()
    status, solution = solver.getModelStatus(), solver.getSolution()
    iterations = max(int(solver.getInfo().simplex_iteration_count), 0)
    if status == highspy.HighsModelStatus.kOptimal:
        return _Answer(np.array(solution.row_dual), np.array(solution.col_value), False, iterations)
    # Without a solution there are no multipliers; 0 claims nothing.
    return _Answer(np.zeros_like(matrix.right), None, status == highspy.HighsModelStatus.kInfeasible, iterations)


def _by_cbc(matrix: _Matrix, _: int) -> _Answer:
    """The relaxation by CBC."""
    import pulp

    from remat_passes.exact.backends import SolverOptions
    from remat_passes.exact.solver import SolveStatus, solve

    model = pulp.LpProblem("rows", pulp.LpMinimize)
    variables = [pulp.LpVariable(f"x{j}", 0, upper) for j, upper in enumerate(matrix.upper.tolist())]
    model.setObjective(pulp.LpAffineExpression([(x, c) for x, c in zip(variables, matrix.cost.tolist()) if c]))
    entries: list[list[tuple[pulp.LpVariable, float]]] = [[] for _ in matrix.right]
    for i, j, value in zip(matrix.row.tolist(), matrix.column.tolist(), matrix.value.tolist()):
        entries[i].append((variables[j], value))
    for i, (row, right) in enumerate(zip(entries, matrix.right.tolist())):
        model.addConstraint(pulp.LpConstraint(pulp.LpAffineExpression(row), pulp.LpConstraintGE, f"r{i}", right))
    solution = solve(model, SolverOptions(solver="cbc", time_limit_s=None))
    if not solution.found:
        infeasible = solution.status is SolveStatus.INFEASIBLE
        return _Answer(np.zeros_like(matrix.right), None, infeasible, solution.iterations)
    multipliers = np.array([model.constraints[f"r{i}"].pi or 0.0 for i in range(len(matrix.right))])
    values = np.array([solution.values[f"x{j}"] for j in range(len(matrix.cost))])
    return _Answer(multipliers, values, False, solution.iterations)
