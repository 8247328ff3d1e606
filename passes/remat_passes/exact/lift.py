"""From values of the program to a plan, and from a plan to values to begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_passes.exact.program import Program, Term
from remat_passes.exact.space import BOUNDARY, Space
from remat_passes.sequences.sequence import StepIndex, drop_dead_repeats


def decode(program: Program, values: Mapping[str, float]) -> Plan:
    """The plan that `values` describe, see `plan_of`."""
    return plan_of(program.space, sorted(key for key, run in program.runs.items() if values.get(run.name, 0.0) > 0.5))


def plan_of(space: Space, executed: Sequence[tuple[int, int]]) -> Plan:
    """The plan that runs in gaps what `executed` says, without repetitions that nobody reads.

    Args:
        space: The space.
        executed: Stages and operators, those of a stage in the order of time.  Where stages are merged, an operator
            runs just before the first anchor that needs it, or else the last one, in joint order.
    """
    index = space.index
    steps = [OpId(op) for op in space.skipped if op >= 0]
    boundary = 0
    gaps: list[list[int]] = [[] for _ in space.stages]
    for t, i in executed:
        gaps[t].append(i)
    for t, stage in enumerate(space.stages):
        left = gaps[t] if len(stage.anchors) == 1 else sorted(set(gaps[t]))
        for position, anchor in enumerate(stage.anchors):
            final = position == len(stage.anchors) - 1
            now = left if final else sorted(_behind(index, anchor, set(left)))
            steps += [OpId(i) for i in now]
            left = [] if final else [i for i in left if i not in now]
            if anchor == BOUNDARY:
                boundary = len(steps)
            elif anchor >= 0:
                steps.append(OpId(anchor))
    return drop_dead_repeats(index, Plan(tuple(steps), boundary))


def _behind(index: StepIndex, anchor: int, left: set[int]) -> set[int]:
    """Operators of `left` that `anchor` needs, directly or through others of them."""
    found: set[int] = set()
    stack = [anchor] if anchor >= 0 else []
    while stack:
        for s in index.reads[stack.pop()]:
            if index.producer[s] in left and index.producer[s] not in found:
                found.add(index.producer[s])
                stack.append(index.producer[s])
    return found


def start_values(program: Program, plan: Plan) -> dict[str, float]:
    """Values of the program that stand for `plan`; empty where it is outside the space or overflows in it.

    What the plan executes in gaps is taken over; what is retained is the least that this needs.
    """
    executed = executions(program.space, plan)
    if executed is None:
        return {}
    executed &= program.runs.keys()  # what a merged prefix makes needless is retained instead
    values = {variable.name: float(key in executed) for key, variable in program.runs.items()}
    values["one"] = 1.0
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
    places = stages_of_steps(space, plan)
    if places is None:
        return None
    return {(place.stage, op) for place, op in zip(places, plan.steps) if not place.anchor}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step of a plan stands: in the gap or at the anchors of a stage; -1 before the first stage."""

    stage: int
    anchor: bool


def stages_of_steps(space: Space, plan: Plan) -> list[Place] | None:
    """The place of each step of `plan`, or `None` where it leaves the order of first executions."""
    order = [(-1, op) for op in space.skipped]
    order += [(t, anchor) for t, stage in enumerate(space.stages) for anchor in stage.anchors]
    places: list[Place] = []
    position = 0
    for step, op in enumerate(plan.steps):
        while position < len(order) and order[position][1] < 0:
            if order[position][1] == BOUNDARY and step < plan.boundary:
                break
            position += 1
        if position < len(order) and op == order[position][1]:
            places.append(Place(order[position][0], True))
            position += 1
            continue
        following = order[position] if position < len(order) else order[-1]
        places.append(Place(max(following[0], 0), False))
    return places if all(mark < 0 for _, mark in order[position:]) else None


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
