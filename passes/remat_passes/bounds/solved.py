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
from dataclasses import dataclass

import numpy as np

from remat_passes.bounds.matrix import FloatArray, Matrix
from remat_passes.bounds.rows import Rows
from remat_passes.bounds.simplex import by_cbc, by_highs, has_highs, loaded

BUILD_WORK, PIVOT_WORK, NODE_WORK = 150, 0.1, 1.5
"""Work for each row and variable: of building the program, and of an iteration of the simplex method, alone and in a
tree."""
USUAL_WORK, CBC_PIVOTS = 28_000_000, 1.0
"""Work that the simplex method may do, a second or two; pivots for each row and variable within it that CBC needs."""
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


def solve_relaxation(rows: Rows, most_work: int = USUAL_WORK) -> Solved:
    """The linear relaxation of `rows`.

    Args:
        rows: The program.
        most_work: Work after which the simplex method is stopped, and nothing is proven.  CBC has no such limit, so
            programs on which it would take longer are not begun.
    """
    if rows.impossible or not rows.right:
        return _decided(rows)
    matrix = Matrix.of(rows)
    pivots = int(most_work / (PIVOT_WORK * matrix.size))
    if not has_highs() and pivots < CBC_PIVOTS * matrix.size:
        return Solved(-math.inf, False, None, BUILD_WORK)
    solver = by_highs if has_highs() else by_cbc
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

    matrix = Matrix.of(rows)
    solver = loaded(matrix, rows.whole)
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
