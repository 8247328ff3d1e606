"""From values of the program to a plan, and from a plan to values to begin with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan
from remat_passes.exact.linear_rows import Term
from remat_passes.exact.program import Program
from remat_passes.exact.space import BOUNDARY, Space
from remat_passes.sequences.sequence import StepIndex, drop_dead_repeats
from remat_passes.transfers.moving import with_moved


def decode(program: Program, values: Mapping[str, float]) -> Plan:
    """The plan that `values` describe, see `plan_of`; what they move leaves and returns as `with_moved` says."""
    plan = plan_of(program.space, sorted(key for key, run in program.runs.items() if values.get(run.name, 0.0) > 0.5))
    moved = [v for v, variable in program.moves.moved.items() if values.get(variable.name, 0.0) > 0.5]
    return with_moved(program.space.problem, plan, moved) if moved else plan


def plan_of(space: Space, executed: Sequence[tuple[int, int]]) -> Plan:
    """The plan that runs `executed` in its gaps, without repetitions that nobody reads.

    Args:
        space: The space.
        executed: Stages and operators, those of one stage in the order of time.  In merged stages, an operator runs
            just before the first anchor that needs it, or else before the last one, in joint order.
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
            # As late as possible, so that results live short; those that no anchor needs are for later stages.
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
        # Inputs that nothing in `left` makes are alive already, or an anchor of the window makes them.
        for s in index.reads[stack.pop()]:
            if index.producer[s] in left and index.producer[s] not in found:
                found.add(index.producer[s])
                stack.append(index.producer[s])
    return found


def start_values(program: Program, plan: Plan) -> dict[str, float]:
    """Values of the program that stand for `plan`; empty if it is outside the space or overflows in it.

    Executions in gaps are taken over; each storage is retained no longer than they need.
    """
    executed = executions(program.space, plan)
    # Values of a plan that moves something are not looked for: the solver finds its own.
    if executed is None or program.moves.returns:
        return {}
    executed &= program.runs.keys()  # repetitions that a merged stage makes needless are retained instead
    values = {variable.name: float(key in executed) for key, variable in program.runs.items()}
    values["one"] = 1.0
    for (t, i), variable in program.behind.items():
        values[variable.name] = float(any((u, i) in executed for u in range(t, len(program.space.stages))))
    _fill_random(program, executed, values)
    for (t, v), variable in program.states.items():
        # Held from its first execution in any gap before the state.
        if program.space.held(v):
            values[variable.name] = float(any((u, program.space.index.producer[v]) in executed for u in range(t)))
    # From the end, since what a stage needs alive depends on the state after it.
    for t in range(len(program.space.stages) - 1, -1, -1):
        for v in program.alive[t]:
            _fill_life(program, t, v, values)
    return values if program.holds(values) else {}


def executions(space: Space, plan: Plan) -> set[tuple[int, int]] | None:
    """Stages and operators that `plan` executes in gaps, or `None` if it leaves the order of first executions."""
    places = stages_of_steps(space, plan)
    if places is None:
        return None
    return {(place.stage, op) for place, op in zip(places, plan.steps) if not place.anchor}


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a step of a plan: in the gap or at the anchors of a stage; -1 before the first stage."""

    stage: int
    anchor: bool


def stages_of_steps(space: Space, plan: Plan) -> list[Place] | None:
    """The place of each step of `plan`, or `None` if it leaves the order of first executions."""
    order = [(-1, op) for op in space.skipped]
    order += [(t, anchor) for t, stage in enumerate(space.stages) for anchor in stage.anchors]
    places: list[Place] = []
    position = 0
    for step, op in enumerate(plan.steps):
        # Marks take no step: pass them, but the boundary only once the plan has reached its own.
        while position < len(order) and order[position][1] < 0:
            if order[position][1] == BOUNDARY and step < plan.boundary:
                break
            position += 1
        if position < len(order) and op == order[position][1]:
            places.append(Place(order[position][0], True))
            position += 1
            continue
        # Not the next anchor, so a repetition in the gap before it; in the skipped prefix it counts for stage 0.
        following = order[position] if position < len(order) else order[-1]
        places.append(Place(max(following[0], 0), False))
    # An anchor that was never met in order: the plan runs it earlier or later than the space does.
    return places if all(mark < 0 for _, mark in order[position:]) else None


def _fill_random(program: Program, executed: set[tuple[int, int]], values: dict[str, float]) -> None:
    """A random state is alive up to the gap of its operator's last repetition."""
    last: dict[int, int] = {}
    for t, i in executed:
        last[i] = max(last.get(i, -1), t)
    for (t, i), variable in program.random.items():
        values[variable.name] = float(t <= last.get(i, -1))


def _fill_life(program: Program, t: int, v: int, values: dict[str, float]) -> None:
    """The least s[t,v] and chain of v in stage t, given the stages after it."""

    def value(term: Term) -> float:
        return float(term) if isinstance(term, int) else values.get(term.name, 0.0)

    space = program.space
    # Held storages have their values already.
    if space.held(v):
        return
    stage, maker = space.stages[t], space.index.producer[v]
    readers = [i for i in stage.candidates if v in space.index.reads[i]]
    needed = value(program.states.get((t + 1, v), 0)) if t < space.last[v] else 0.0
    needed = max(needed, float(any(v in space.index.reads[anchor] for anchor in stage.anchors if anchor >= 0)))
    # Backwards along the chain: a piece is needed if its reader runs or any later piece is.
    for j in range(len(readers) - 1, -1, -1):
        needed = max(needed, value(program.runs[t, readers[j]]))
        if (t, v, j) in program.chains:
            values[program.chains[t, v, j].name] = needed
    if (t, v) in program.states:
        made = value(program.runs.get((t, maker), 0))
        values[program.states[t, v].name] = max(needed - made, 0.0)
