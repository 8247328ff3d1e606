"""A deliberately naive checker of plans; it shares no code with the simulator or any planner.  See `rules`.

It executes the plan over dictionaries, one step at a time, and reports the first rule that each step
breaks.  It runs on every plan before the plan is applied.

Operators with effects (all that have a trait) keep the order and the number that the program gives them: each runs,
and its first execution comes after those of its phase that precede it in the graph.  A repetition that replays a
random state is no effect, and one that gathers an input again is one that all ranks agree on (`distributed.gathers`);
all other repetitions are refused.  Tangent-free operators may stand in either part of the
plan, so only their number is checked; capture makes none of them random or mutating.
"""

from __future__ import annotations

from remat_compiler.ir.graph import KEPT_KINDS, RESIDENT_KINDS, Op, Phase, SavePolicy, StorageKind, TrainingGraph, Trait
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.simulate.rules import Rule, Violation
from remat_compiler.simulate.verify_transfers import check_transfers


def verify(problem: RematProblem, plan: Plan, claimed_peak_bytes: int | None = None) -> list[Violation]:
    """Rules of `problem` that `plan` breaks; empty when the plan may be executed.

    Args:
        problem: The question that the plan answers.
        plan: The answer.
        claimed_peak_bytes: The peak that a planner or the simulator gave; checked to the byte.
    """
    # The replay indexes by the plan's ids and steps, so those must be sound before any byte is counted.
    found = _check_structure(problem, plan) or check_transfers(problem, plan)
    if found:
        return found
    peak, step, saved = _replay(problem, plan)
    if peak > problem.budget_bytes:
        found.append(Violation(Rule.BUDGET, step, f"{peak} bytes, budget {problem.budget_bytes}"))
    if claimed_peak_bytes is not None and claimed_peak_bytes != peak:
        found.append(Violation(Rule.CLAIM, step, f"claimed {claimed_peak_bytes} bytes, found {peak}"))
    return found + _check_policies(problem, plan, saved)


def _check_policies(problem: RematProblem, plan: Plan, saved: set[int]) -> list[Violation]:
    """Breaches of the user's checkpoint policies; `saved` are the storages alive across the boundary."""
    found: list[Violation] = []
    executions: dict[int, list[int]] = {}
    for step, op_id in enumerate(plan.steps):
        executions.setdefault(op_id, []).append(step)
    for op in problem.graph.ops:
        if op.save_policy is SavePolicy.MUST_NOT_SAVE:
            # A kept storage crosses in any case, because the caller holds it.
            crossing = [problem.graph.storages[storage] for storage in op.writes if storage in saved]
            found += [Violation(Rule.SAVED, plan.boundary, s.name) for s in crossing if s.kind not in KEPT_KINDS]
        if op.save_policy is SavePolicy.MUST_SAVE:
            # The results of an operator that runs once stay alive from there to their last reader.
            found += [Violation(Rule.MUST_SAVE, step, op.name) for step in executions.get(op.id, [])[1:]]
    return found


def _check_structure(problem: RematProblem, plan: Plan) -> list[Violation]:
    """Breaches of all rules that do not need bytes."""
    graph = problem.graph
    found: list[Violation] = []
    if not 0 <= plan.boundary <= len(plan.steps):
        return [Violation(Rule.BOUNDARY, plan.boundary, f"{len(plan.steps)} steps")]
    made = {s.id for s in graph.storages if s.kind in RESIDENT_KINDS}
    ended: set[int] = set()
    done: set[int] = set()
    for step, op_id in enumerate(plan.steps):
        # The backward starts here: tangents exist from now on, and the forward must have run completely.
        if step == plan.boundary:
            made |= {s.id for s in graph.storages if s.kind is StorageKind.TANGENT}
            found += _missing_forward(graph.ops, done, step)
        if not 0 <= op_id < len(graph.ops):
            # The replay needs every id, so the check ends here.
            found.append(Violation(Rule.UNKNOWN_OP, step, str(op_id)))
            return found
        op = graph.ops[op_id]
        if op.phase is Phase.BACKWARD and step < plan.boundary:
            found.append(Violation(Rule.PHASE, step, op.name))
        for storage in op.reads:
            if storage not in made:
                found.append(Violation(Rule.NOT_MADE, step, f"{op.name} reads {graph.storages[storage].name}"))
            if storage in ended:
                found.append(Violation(Rule.ENDED, step, f"{op.name} reads {graph.storages[storage].name}"))
        if op_id in done:
            found += _bad_repetition(op, step)
        done.add(op_id)
        ended.update(op.ends)
        made.update(op.writes)
    # No step stands at the boundary of an empty backward, so the loop did not check it.
    if plan.boundary == len(plan.steps):
        found += _missing_forward(graph.ops, done, plan.boundary)
    for storage_info in graph.storages:
        if storage_info.kind in KEPT_KINDS and storage_info.id not in made:
            found.append(Violation(Rule.MISSING_OUTPUT, len(plan.steps), storage_info.name))
    for op in graph.ops:
        # A missing storage gives away a missing operator; one that writes none must be looked for itself.
        if op.phase is Phase.BACKWARD and op.id not in done and not op.writes:
            found.append(Violation(Rule.MISSING_OUTPUT, len(plan.steps), op.name))
        # In the forward FORWARD_MISSING covers these.
        if op.traits and op.phase is not Phase.FORWARD and op.id not in done:
            found.append(Violation(Rule.EFFECT_MISSING, len(plan.steps), op.name))
    return found + _check_effect_order(graph.ops, plan) + _check_changes(graph.ops, plan)


def _bad_repetition(op: Op, step: int) -> list[Violation]:
    """Why `op` may not run again at `step`."""
    if op.no_recompute:
        return [Violation(Rule.RECOMPUTE, step, f"{op.name}: {op.no_recompute}")]
    # Checked apart from `no_recompute`, so that a capture that forgot the reason is caught as well.
    replays = op.traits == {Trait.RANDOM} and op.replay is not None
    gathers = op.traits == {Trait.COLLECTIVE, Trait.GATHER}
    if op.traits and not replays and not gathers:
        effects = ", ".join(sorted(trait.value for trait in op.traits))
        return [Violation(Rule.RECOMPUTE, step, f"{op.name}: {effects}, and replays no random state")]
    return []


def _check_effect_order(ops: tuple[Op, ...], plan: Plan) -> list[Violation]:
    """First executions of operators with effects that follow one with a larger id, each phase by itself."""
    found: list[Violation] = []
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        ran: set[int] = set()
        # Ids are the order of the program: the first executions of one phase must have ascending ids.
        latest = -1
        for step, op_id in enumerate(plan.steps):
            op = ops[op_id]
            # Only the first execution has an effect that others could see; see `_bad_repetition`.
            if op.phase is not phase or not op.traits or op_id in ran:
                continue
            if latest > op_id:
                found.append(Violation(Rule.EFFECT_ORDER, step, f"{op.name} behind {ops[latest].name}"))
            ran.add(op_id)
            latest = max(latest, op_id)
    return found


def _check_changes(ops: tuple[Op, ...], plan: Plan) -> list[Violation]:
    """Operators that first run on the wrong side of an operator of the same phase that changes what they read."""
    found: list[Violation] = []
    first: dict[int, int] = {}
    for step, op_id in enumerate(plan.steps):
        first.setdefault(op_id, step)
    readers: dict[int, list[Op]] = {}
    for op in ops:
        for storage in op.reads:
            readers.setdefault(storage, []).append(op)
    for change in ops:
        if Trait.MUTATING not in change.traits or change.id not in first:
            continue
        # An in-place operator makes no storage: what it changes stands among its reads.
        for op in (op for storage in change.reads for op in readers[storage]):
            if op.phase is not change.phase or op.id not in first or op.id == change.id:
                continue
            # Ids are the order of the program, which decides whether the old or the new value is meant.
            if (op.id < change.id) != (first[op.id] < first[change.id]):
                found.append(Violation(Rule.CHANGED, first[op.id], f"{op.name} and {change.name}"))
    return found


def _missing_forward(ops: tuple[Op, ...], done: set[int], step: int) -> list[Violation]:
    """Forward operators that have not run when the forward ends."""
    return [
        Violation(Rule.FORWARD_MISSING, step, op.name) for op in ops if op.phase is Phase.FORWARD and op.id not in done
    ]


def _replay(problem: RematProblem, plan: Plan) -> tuple[int, int, set[int]]:
    """Peak bytes, the step that reaches it, and the storages alive across the boundary."""
    graph, steps = problem.graph, plan.steps
    reads: list[list[int]] = []
    first_write: dict[int, int] = {}
    executed: set[int] = set()
    for step, op_id in enumerate(steps):
        op = graph.ops[op_id]
        replay = [op.replay] if op.replay is not None and op_id in executed else []
        # The first execution makes the random state, every later one reads it.
        reads.append([*op.reads, *replay])
        executed.add(op_id)
        for storage in op.writes if op.replay is None else (*op.writes, op.replay):
            first_write.setdefault(storage, step)
    # Walk backwards to find which of its reads and results each step is the last to need.
    needed: set[int] = set()
    last_needed: list[list[int]] = [[] for _ in steps]
    for step in range(len(steps) - 1, -1, -1):
        op = graph.ops[steps[step]]
        # The state is made once, by the first execution.
        made: list[int] = list(op.writes)
        if op.replay is not None and first_write[op.replay] == step:
            made.append(op.replay)
        last_needed[step] = [s for s in (*reads[step], *made) if s not in needed]
        # In this order, since the step reads before it writes: a read of what it makes means the instance before.
        needed.difference_update(made)
        needed.update(reads[step])
    return _walk_forward(problem, plan, last_needed, first_write)


def _walk_forward(
    problem: RematProblem, plan: Plan, last_needed: list[list[int]], first_write: dict[int, int]
) -> tuple[int, int, set[int]]:
    """Allocate and free step by step; see `_replay`."""
    graph = problem.graph
    counted: dict[int, int] = {
        s.id: s.size_bytes for s in graph.storages if s.kind not in RESIDENT_KINDS | {StorageKind.TANGENT}
    }
    kept = {s.id for s in graph.storages if s.kind in KEPT_KINDS}
    tangents = sum(s.size_bytes for s in graph.storages if s.kind is StorageKind.TANGENT)
    alive: set[int] = set()
    held: set[int] = set()
    saved: set[int] = set()
    standing = 0  # bytes of what is alive or held
    peak, peak_step = 0, 0
    for step, op_id in enumerate(plan.steps):
        if step == plan.boundary:
            saved = alive | held  # before this step makes or frees anything
        for transfer in plan.transfers:
            if transfer.out_after == step:
                standing -= counted[transfer.storage]
            elif transfer.back_before == step:
                standing += counted[transfer.storage]
        op = graph.ops[op_id]
        # A random state that no repetition needs is never allocated.
        made: list[int] = [s for s in op.writes if s in counted]
        replay = op.replay
        if replay is not None and first_write[replay] == step and replay not in last_needed[step]:
            made.append(replay)
        # An instance about to be replaced is still read by this step if the step names it.
        for storage in made:
            if storage in alive and storage not in op.reads:
                alive.remove(storage)
                standing -= counted[storage]
        extra = tangents if step >= plan.boundary else 0
        if replay is not None and first_write[replay] < step:
            extra += counted[replay]  # the state that the generator returns to afterwards
        # Results and workspace are allocated before anything that the step reads is freed.
        workspace = problem.costs.workspace_bytes[op_id]
        result_bytes = sum(counted.get(s, 0) for s in op.writes)
        ending = [s for s in last_needed[step] if s in op.reads and counted.get(s) == result_bytes]
        # What comes back from elsewhere is in memory that no result takes over.
        if workspace < 0 and any(_has_been_away(graph, plan, s, step) for s in ending):
            workspace += result_bytes
        live = standing + sum(counted[s] for s in made) + extra + workspace
        if live > peak:
            peak, peak_step = live, step
        for storage in made:
            # A repeated kept storage counts for this step alone, because every read means the instance that is held.
            if storage not in alive and storage not in held:
                standing += counted[storage]
            (held if storage in kept else alive).add(storage)
        for storage in last_needed[step]:
            if storage in alive:
                alive.remove(storage)
                standing -= counted[storage]
    return peak, peak_step, saved


def _has_been_away(graph: TrainingGraph, plan: Plan, storage: int, step: int) -> bool:
    """Whether the instance of `storage` that `step` reads has been off the device."""
    for transfer in plan.transfers:
        if transfer.storage == storage and transfer.back_before <= step:
            since = plan.steps[transfer.out_after : step]
            if not any(storage in graph.ops[op_id].writes for op_id in since):
                return True
    return False
