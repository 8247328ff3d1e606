"""The one-instant integer program on the network of an instant, solved by branch and bound.

The Lagrangian bound of `relaxed` lies below the optimum of the program by what its single capacity row cuts off.
With one binary for each node (1 on the source's side) and one variable for each priced arc,

    minimise    sum of time_ns * y
    cut         y_(t,h) >= z_t - z_h            for each arc from t to h
    infinite    z_t <= z_h                      for each arc that may not be cut
    capacity    sum of size_bytes * y <= room
    count       c_k = sum of y                         for the arcs of each of the heaviest pairs of time and bytes

The last rows cut nothing off: c_k, a whole number, lets the solver branch on how many of equal layers are held or
recomputed.  Without them it has to decide layer by layer, in each of many equivalent orders (Margot, Symmetry in
integer linear programming, in: 50 Years of Integer Programming, 2010).

The dual bound that the solver proves is a bound of the added time, whether or not it finishes.
"""

from __future__ import annotations

import math

import pulp

from remat_passes.bounds.network import Network
from remat_passes.exact.backends import SolverOptions
from remat_passes.exact.solver import Solution, SolveStatus, solve
from remat_passes.sequences.max_flow import SINK, SOURCE

COUNTED = 10
"""Pairs of time and bytes whose arcs are counted."""
SAFETY = 1e-6
"""Relative part of a floating-point bound that is given up: more than the solvers' tolerances."""


def integer_bound_ns(network: Network, room: int, options: SolverOptions) -> int | None:
    """Proven bound of the added time, in ns; `None` if the solver proved that no plan fits."""
    # Source and sink alone: every arc is cut, and nothing is left to decide.
    if network.nodes == 2:
        fixed = network.total
        return fixed.time_ns if fixed.size_bytes <= room else None
    solution = solve(cut_program(network, room), options)
    if solution.status is SolveStatus.INFEASIBLE:
        return None
    return proven_ns(solution)


def proven_ns(solution: Solution) -> int:
    """The bound of `solution`, an objective in microseconds, in whole ns and on the safe side of rounding."""
    if not math.isfinite(solution.bound):
        return 0
    # The solver's bound may exceed the true one by its tolerance: give up a share, and 1 ns for values near zero.
    return max(0, math.ceil(solution.bound * 1000 * (1 - SAFETY) - 1))


def cut_program(network: Network, room: int) -> pulp.LpProblem:
    """The program of the module docstring, in microseconds and thousands of bytes."""
    model = pulp.LpProblem("one_instant", pulp.LpMinimize)
    side: dict[int, pulp.LpVariable | int] = {SOURCE: 1, SINK: 0}
    for node in range(2, network.nodes):
        side[node] = pulp.LpVariable(f"z{node}", cat=pulp.LpBinary)
    arcs: dict[tuple[int, int], list[pulp.LpVariable]] = {}
    rows = zip(*(column.tolist() for column in (network.tail, network.head, network.time_ns, network.size_bytes)))
    for number, ((tail, head, time_ns, size), infinite) in enumerate(zip(rows, network.infinite.tolist())):
        # Not to be cut: if its tail is on the source's side, so is its head.
        if infinite:
            model += side[tail] <= side[head]
            continue
        # Cut in any case; such arcs hold bytes but take no time.
        if (tail, head) == (SOURCE, SINK):
            room -= size
            continue
        # The sink's side is 0, so the cut is the node itself: no variable of its own.
        if head == SINK:
            cut = side[tail]
        else:
            cut = pulp.LpVariable(f"y{number}", 0, 1)
            model += cut >= side[tail] - side[head]
        arcs.setdefault((time_ns, size), []).append(cut)
    _count(model, arcs)
    # Microseconds and thousands of bytes keep coefficients within the range of the solvers' tolerances.
    alike = list(arcs.items())
    model += pulp.LpAffineExpression([(cut, time_ns / 1000) for (time_ns, _), cuts in alike for cut in cuts if time_ns])
    held = pulp.LpAffineExpression([(cut, size / 1000) for (_, size), cuts in alike for cut in cuts if size])
    model += held <= room / 1000
    return model


def _count(model: pulp.LpProblem, arcs: dict[tuple[int, int], list[pulp.LpVariable]]) -> None:
    """The rows `count`: for the `COUNTED` pairs with the largest share of all bytes and time, of at least two arcs."""
    total_ns = sum(time_ns * len(cuts) for (time_ns, _), cuts in arcs.items())
    total_bytes = sum(size * len(cuts) for (_, size), cuts in arcs.items())

    def weight(pair: tuple[int, int]) -> float:
        return len(arcs[pair]) * (pair[0] / max(total_ns, 1) + pair[1] / max(total_bytes, 1))

    repeated = [pair for pair, cuts in arcs.items() if len(cuts) > 1 and any(pair)]
    for number, pair in enumerate(sorted(repeated, key=lambda pair: (-weight(pair), pair))[:COUNTED]):
        count = pulp.LpVariable(f"c{number}", 0, len(arcs[pair]), cat=pulp.LpInteger)
        model += count == pulp.lpSum(arcs[pair])
