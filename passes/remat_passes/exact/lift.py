"""From values of the program to a plan, and from a plan to values to begin with."""

from __future__ import annotations

from collections.abc import Mapping

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_passes.exact.program import Program, Term
from remat_passes.exact.space import BOUNDARY, Space
from remat_passes.planning.sequence import drop_dead_repeats


def decode(program: Program, values: Mapping[str, float]) -> Plan:
    """The plan that `values` describe, without repetitions that nobody reads."""
    steps = [OpId(op) for op in program.space.skipped if op >= 0]
    boundary = 0
    for t, stage in enumerate(program.space.stages):
        steps += [OpId(i) for i in stage.candidates if values.get(program.runs[t, i].name, 0.0) > 0.5]
        for anchor in stage.anchors:
            if anchor == BOUNDARY:
                boundary = len(steps)
            elif anchor >= 0:
                steps.append(OpId(anchor))
    return drop_dead_repeats(program.space.index, Plan(tuple(steps), boundary))


def start_values(program: Program, plan: Plan) -> dict[str, float]:
    """Values of the program that stand for `plan`; empty where it is outside the space or overflows in it.

    What the plan executes in gaps is taken over; what is retained is the least that this needs.
    """
    executed = executions(program.space, plan)
    if executed is None:
        return {}
    executed &= program.runs.keys()  # what a merged prefix makes needless is retained instead
    values = {variable.name: float(key in executed) for key, variable in program.runs.items()}
    _fill_random(program, executed, values)
    for (t, v), variable in program.states.items():
        if program.space.held(v):
            values[variable.name] = float(any((u, program.space.index.producer[v]) in executed for u in range(t)))
    for t in range(len(program.space.stages) - 1, -1, -1):
        for v in program.alive[t]:
            _fill_life(program, t, v, values)
    return values if program.holds(values) else {}


def executions(space: Space, plan: Plan) -> set[tuple[int, int]] | None:
    """Stages and operators that `plan` executes in gaps, or `None` where it leaves the order of first executions."""
    stage_of = {anchor: t for t, stage in enumerate(space.stages) for anchor in stage.anchors}
    order = [*space.skipped, *(anchor for stage in space.stages for anchor in stage.anchors)]
    found: set[tuple[int, int]] = set()
    position = 0
    for step, op in enumerate(plan.steps):
        while position < len(order) and order[position] < 0 and (order[position] != BOUNDARY or step >= plan.boundary):
            position += 1
        if position < len(order) and op == order[position]:
            position += 1
            continue
        following = order[position] if position < len(order) else order[-1]
        found.add((stage_of.get(following, 0), op))
    return found if all(mark < 0 for mark in order[position:]) else None


def _fill_random(program: Program, executed: set[tuple[int, int]], values: dict[str, float]) -> None:
    """A random state is alive up to the last repetition."""
    last: dict[int, int] = {}
    for t, i in executed:
        last[i] = max(last.get(i, -1), t)
    for (t, i), variable in program.random.items():
        values[variable.name] = float(t <= last.get(i, -1))


def _fill_life(program: Program, t: int, v: int, values: dict[str, float]) -> None:
    """The least s[t,v] and chain of v in stage t, given what follows."""

    def value(term: Term) -> float:
        return float(term) if isinstance(term, int) else values.get(term.name, 0.0)

    space = program.space
    if space.held(v):
        return
    stage, maker = space.stages[t], space.index.producer[v]
    readers = [i for i in stage.candidates if v in space.index.reads[i]]
    needed = value(program.states.get((t + 1, v), 0)) if t < space.last[v] else 0.0
    needed = max(needed, float(any(v in space.index.reads[anchor] for anchor in stage.anchors if anchor >= 0)))
    for j in range(len(readers) - 1, -1, -1):
        needed = max(needed, value(program.runs[t, readers[j]]))
        if (t, v, j) in program.chains:
            values[program.chains[t, v, j].name] = needed
    if (t, v) in program.states:
        made = value(program.runs.get((t, maker), 0))
        values[program.states[t, v].name] = max(needed - made, 0.0)
