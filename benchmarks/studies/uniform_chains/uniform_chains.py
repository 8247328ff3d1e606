"""Repetitions on uniform chains, beside the binomial optimum of Revolve.

    python -m studies.uniform_chains.uniform_chains [--lengths 16 64 200] [--slots 2 5 20] [--json OUT] [--plot OUT]

A chain of equal steps is reversed with few states held: the one family of graphs whose true optimum has a closed form
(Griewank and Walther, ACM TOMS 26(1), 2000, Proposition 1; `remat_passes.bounds.revolve`).  Its schedules are memory
persistent: a state that is held stays until its own backward, so what rotor can express is enough.

`uniform_chain` is that model as a graph: while a step of the backward runs, its budget holds `slots` states, the
initial one included, the state that is being advanced, and two gradients.  The first state is an input and takes no
bytes.  The last step runs within its own backward, as in the paper, so a chain of n steps has n - 1 forward operators.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from instruments.planner_rows import cpu_seconds
from remat_compiler.ir.graph import Op, OpId, Phase, Storage, StorageId, StorageKind, TrainingGraph
from remat_compiler.ir.plan import PlanStatus
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import CostTable, RematProblem
from remat_compiler.simulate.verify import verify
from remat_passes.bounds.revolve import fewest_repetitions
from remat_passes.registry import make_planner, planner_names

LENGTHS = (16, 32, 64, 100, 150, 200)
SLOTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20)
STATE_BYTES, SCALAR_BYTES, STEP_NS = 1 << 16, 4, 1000


def uniform_chain(length: int, slots: int) -> RematProblem:
    """The chain of `length` steps with a budget that holds `slots` states.

    Raises:
        ValueError: The chain has no step, or no state can be held.
    """
    if length < 1 or slots < 1:
        raise ValueError(f"got {length} steps and {slots} slots; a chain needs at least one of each")
    storages: list[Storage] = []
    ops: list[Op] = []
    workspaces: list[int] = []

    def storage(kind: StorageKind, size: int = STATE_BYTES) -> StorageId:
        new = StorageId(len(storages))
        storages.append(Storage(new, f"{kind.value}_{new}", size, kind))
        return new

    def run(phase: Phase, reads: Sequence[StorageId], result: StorageId, workspace: int = 0) -> StorageId:
        new = OpId(len(ops))
        ops.append(Op(new, f"op_{new}", f"chain.{phase.value}", phase, tuple(sorted(reads)), (result,)))
        workspaces.append(workspace)
        return result

    states = [storage(StorageKind.INPUT)]
    for _ in range(length - 1):
        states.append(run(Phase.FORWARD, [states[-1]], storage(StorageKind.ACTIVATION)))
    run(Phase.FORWARD, [states[-1]], storage(StorageKind.OUTPUT, SCALAR_BYTES))
    gradient = storage(StorageKind.TANGENT, SCALAR_BYTES)
    for step in reversed(range(length)):
        made = storage(StorageKind.TEMPORARY) if step else storage(StorageKind.GRADIENT, SCALAR_BYTES)
        # The last step has no gradient to read, and takes as many bytes as one that has.
        gradient = run(Phase.BACKWARD, [states[step], gradient], made, STATE_BYTES * (step == length - 1))
    graph = TrainingGraph(tuple(ops), tuple(storages))
    costs = CostTable((STEP_NS,) * len(ops), tuple(workspaces), ("nominal",) * len(ops))
    return RematProblem(graph, costs, (slots + 2) * STATE_BYTES + 3 * SCALAR_BYTES)


@dataclass(frozen=True, slots=True)
class Row:
    """One planner on one chain.

    Attributes:
        length: Steps of the chain.
        slots: States that can be held, the initial one included.
        planner: Name of the planner.
        status: How it ended.
        optimum: Fewest repetitions.
        repetitions: Those of the plan.
        most: Most executions of one operator in the plan.
        seconds: CPU time of planning.
    """

    length: int
    slots: int
    planner: str
    status: str
    optimum: int
    repetitions: int
    most: int
    seconds: float

    @property
    def fits(self) -> bool:
        """Whether the plan stays within the budget."""
        return self.status in (PlanStatus.FEASIBLE.value, PlanStatus.OPTIMAL.value)

    @property
    def beyond(self) -> float:
        """Repetitions beyond the optimum, relative to all executions that the optimum has."""
        return (self.repetitions - self.optimum) / (self.length + self.optimum)


def run(length: int, slots: int, planner: Planner) -> Row:
    """The row of one planner; the verifier must accept its plan.

    Raises:
        RuntimeError: The plan breaks a rule, or beats the optimum.
    """
    problem = uniform_chain(length, slots)
    start = cpu_seconds()
    result = planner.plan(problem)
    seconds = cpu_seconds() - start
    assert result.plan is not None
    executions = Counter(result.plan.steps)
    repetitions = len(result.plan.steps) - len(problem.graph.ops)
    optimum = fewest_repetitions(length, slots)
    row = Row(length, slots, planner.name, result.status.value, optimum, repetitions, max(executions.values()), seconds)
    asked = problem if row.fits else replace(problem, budget_bytes=result.peak_bytes)
    found = verify(asked, result.plan, result.peak_bytes)
    if found or (row.fits and repetitions < optimum):
        raise RuntimeError(f"{row}: {found or 'fewer repetitions than are possible'}")
    return row


def table(rows: Sequence[Row]) -> list[str]:
    """A line a chain: the optimum, then repetitions of each planner; ``–`` where its plan does not fit."""
    planners = list(dict.fromkeys(row.planner for row in rows))
    lines = [f"{'steps':>6} {'slots':>6} {'optimum':>8} " + " ".join(f"{name:>18}" for name in planners)]
    cases: dict[tuple[int, int], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.length, row.slots), {})[row.planner] = row
    for (length, slots), own in cases.items():
        cells = [
            f"{row.repetitions:7d} {100 * row.beyond:8.1f} %" if row.fits else f"{'–':>18}" for row in own.values()
        ]
        optimum = next(iter(own.values())).optimum
        lines.append(f"{length:6d} {slots:6d} {optimum:8d} " + " ".join(f"{cell:>18}" for cell in cells))
    return lines


def summary(rows: Sequence[Row]) -> list[str]:
    """A line a planner: how often it is optimal, within 1 %, misses, and its CPU time."""
    lines = []
    for planner in dict.fromkeys(row.planner for row in rows):
        own = [row for row in rows if row.planner == planner]
        fitting = [row for row in own if row.fits]
        optimal = sum(row.repetitions == row.optimum for row in fitting)
        near = sum(row.beyond <= 0.01 for row in fitting)
        worst = max((100 * row.beyond for row in fitting), default=0.0)
        lines.append(
            f"{planner}: {optimal} of {len(own)} optimal, {near} within 1 %, worst {worst:.1f} %, "
            f"{len(own) - len(fitting)} without a plan that fits, {sum(row.seconds for row in own):.1f} CPU s"
        )
    return lines


def plot(rows: Sequence[Row], path: Path) -> None:
    """Executions a step over slots: the optimum, and each planner."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    lengths = list(dict.fromkeys(row.length for row in rows))
    figure, axes = pyplot.subplots(1, len(lengths), figsize=(3.6 * len(lengths), 3.6), squeeze=False)
    for axis, length in zip(axes[0], lengths):
        own = [row for row in rows if row.length == length]
        optimum = dict(sorted((row.slots, row.optimum) for row in own))
        axis.plot(list(optimum), [1 + n / length for n in optimum.values()], "k-", label="optimum (Revolve)")
        for planner, marker in zip(dict.fromkeys(row.planner for row in own), "ox^sDv"):
            chosen = [row for row in own if row.planner == planner and row.fits]
            axis.plot(
                [row.slots for row in chosen],
                [1 + row.repetitions / length for row in chosen],
                marker,
                markerfacecolor="none",
                label=planner,
            )
        axis.set(title=f"{length} steps", xlabel="slots", ylabel="executions of a step, mean", yscale="log")
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 3, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.yaxis.set_minor_formatter(ticker.NullFormatter())
        axis.grid(alpha=0.3)
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path, dpi=70)


def main() -> None:
    """Plan, print, and write where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", nargs="*", type=int, default=list(LENGTHS))
    parser.add_argument("--slots", nargs="*", type=int, default=list(SLOTS))
    parser.add_argument("--planners", nargs="*", default=["auto", "chain_dp"], choices=planner_names())
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    planners = [make_planner(name) for name in options.planners]
    for planner in planners:
        planner.plan(uniform_chain(8, 2))  # compiled loops are not what is timed
    rows = [run(n, slots, planner) for n in options.lengths for slots in options.slots for planner in planners]
    print("\n".join([*table(rows), "", *summary(rows)]))
    if options.json:
        options.json.write_text("[\n" + ",\n".join(json.dumps(asdict(row)) for row in rows) + "\n]\n")
    if options.plot:
        plot(rows, options.plot)


if __name__ == "__main__":
    main()
