"""What HiGHS or CBC say of a program's linear relaxation; nothing here is taken for proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

from remat_passes.bounds.matrix import FloatArray, Matrix
from remat_passes.exact.highs import quiet_highs


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a solver says of a relaxation: multipliers and values, or that it is infeasible, or nothing."""

    multipliers: FloatArray
    values: FloatArray | None
    infeasible: bool
    iterations: int


def has_highs() -> bool:
    """Whether HiGHS is there; CBC, which comes with PuLP, takes its place."""
    return find_spec("highspy") is not None


def loaded(matrix: Matrix, whole: Sequence[bool] = ()) -> Any:
    """HiGHS with a program, whose variables are whole numbers where `whole` says so."""
    import highspy

    # One thread and a fixed seed: the same program ends the same way.
    solver = quiet_highs(threads=1, random_seed=1)
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


def by_highs(matrix: Matrix, pivots: int) -> Answer:
    """The relaxation by HiGHS."""
    import highspy

    solver = loaded(matrix)
    solver.setOptionValue("simplex_iteration_limit", pivots)
    solver.run()
    status, solution = solver.getModelStatus(), solver.getSolution()
    iterations = max(int(solver.getInfo().simplex_iteration_count), 0)
    if status == highspy.HighsModelStatus.kOptimal:
        return Answer(np.array(solution.row_dual), np.array(solution.col_value), False, iterations)
    # Without a solution there are no multipliers; 0 claims nothing.
    return Answer(np.zeros_like(matrix.right), None, status == highspy.HighsModelStatus.kInfeasible, iterations)


def by_cbc(matrix: Matrix, _: int) -> Answer:
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
        return Answer(np.zeros_like(matrix.right), None, infeasible, solution.iterations)
    multipliers = np.array([model.constraints[f"r{i}"].pi or 0.0 for i in range(len(matrix.right))])
    # PuLP leaves out columns without cost that stand in no row: 0 is as good for them as any value.
    values = np.array([solution.values.get(f"x{j}", 0.0) for j in range(len(matrix.cost))])
    return Answer(multipliers, values, False, solution.iterations)
