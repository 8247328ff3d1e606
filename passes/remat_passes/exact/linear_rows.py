"""Rows of integer programs, whose terms are variables or constants."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

import pulp

Term: TypeAlias = "pulp.LpVariable | int"
"""A variable, or 0 or 1."""


def merged(terms: Iterable[tuple[Term, int]]) -> tuple[dict[pulp.LpVariable, int], int]:
    """Variables with the sums of their coefficients, and the sum of all constants, of ``coefficient * term``."""
    row: dict[pulp.LpVariable, int] = {}
    constant = 0
    for term, coefficient in terms:
        if isinstance(term, int):
            constant += coefficient * term
        elif coefficient:
            row[term] = row.get(term, 0) + coefficient
    return row, constant


def add_row(model: pulp.LpProblem, terms: Iterable[tuple[Term, int]], sense: int, right: int) -> None:
    """Add the row ``sum of coefficient * term (sense) right`` to `model`; constants go to the right.

    Args:
        model: The program.
        terms: Terms with their coefficients.
        sense: ``pulp.LpConstraintLE`` or ``pulp.LpConstraintGE``.
        right: The right side.
    """
    row, constant = merged(terms)
    right -= constant
    if not row:
        # Only constants: the row always holds, or the program is infeasible and has to say so to the solver.
        if right >= 0 if sense == pulp.LpConstraintLE else right <= 0:
            return
        # A variable that is 0 writes down a row that cannot hold; a model may have one variable of each name.
        row = {model.variablesDict().get("zero") or pulp.LpVariable("zero", 0, 0): 1}
    model.addConstraint(pulp.LpConstraint(pulp.LpAffineExpression(row), sense, rhs=right))
