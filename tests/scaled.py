"""One step at several sizes: what is fed to the model grows, its parameters do not."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from builders import residual
from remat_compiler.ir.graph import Phase, StorageKind
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.timeline import simulate

OF_PARAMETERS = (StorageKind.PARAMETER, StorageKind.GRADIENT)


def at_size(problem: RematProblem, percent: int) -> RematProblem:
    """`problem` for a batch of `percent` per cent of its own; budget and limit of added time stay."""

    def scaled(amount: int) -> int:
        return int(Fraction(percent, 100) * amount)

    storages = tuple(
        s if s.kind in OF_PARAMETERS else replace(s, size_bytes=scaled(s.size_bytes)) for s in problem.graph.storages
    )
    costs = replace(
        problem.costs,
        time_ns=tuple(map(scaled, problem.costs.time_ns)),
        workspace_bytes=tuple(map(scaled, problem.costs.workspace_bytes)),
    )
    return replace(problem, graph=replace(problem.graph, storages=storages), costs=costs)


def everything_once(problem: RematProblem) -> Plan:
    """The plan that recomputes nothing, forward first."""
    ops = sorted(problem.graph.ops, key=lambda op: (op.phase is not Phase.FORWARD, op.id))
    return Plan(tuple(op.id for op in ops), sum(op.phase is Phase.FORWARD for op in ops))


def step(percent: int = 100, budget: float = 0.6, blocks: int = 8) -> RematProblem:
    """Residual blocks with 1,000 times the usual times, under `budget` of the peak that they have at 100 %."""
    own = residual(blocks)
    own = replace(own, costs=replace(own.costs, time_ns=tuple(1000 * t for t in own.costs.time_ns)))
    peak = simulate(own.graph, own.costs, everything_once(own)).peak_bytes
    return at_size(replace(own, budget_bytes=int(budget * peak)), percent)
