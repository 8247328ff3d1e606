"""Decisions: what the plan does with each forward storage that its backward reads, and the reason."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given

from drawn_graphs import GraphBuilder, joint_plan, problems
from planned import problem, result
from remat_compiler.ir.graph import OpId, Phase, SavePolicy, StorageKind, TrainingGraph, Trait
from remat_compiler.ir.plan import Decision, Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.report.decisions import decisions
from remat_compiler.simulate.timeline import simulate


def by_name(graph: TrainingGraph, plan: Plan) -> dict[str, tuple[Decision, int, str]]:
    return {d.storage: (d.decision, d.repeats, d.reason) for d in decisions(graph, plan)}


def test_a_chain_with_one_value_made_again() -> None:
    asked, plan = problem(), result().plan
    assert plan is not None
    found = decisions(asked.graph, plan, asked.costs)
    assert [(d.storage, d.decision, d.repeats, d.added_ns) for d in found] == [
        ("f0", Decision.RECOMPUTE, 1, 1000),
        ("f2", Decision.SAVE, 0, 0),
        ("f1", Decision.SAVE, 0, 0),
    ]
    assert found[0].reason == "not saved to stay within the budget"
    assert found[1].reason == "fits; saves 1.0 µs of recomputation"
    assert (found[0].made_by.op, found[0].made_by.source) == ("op_0", "model.py:10")


@given(problems())
def test_saved_decisions_are_what_the_simulator_keeps(asked: RematProblem) -> None:
    """The bytes of SAVE are those that cross the boundary, less outputs that the backward does not read."""
    plan = joint_plan(asked.graph)
    timeline = simulate(asked.graph, asked.costs, plan)
    found = decisions(asked.graph, plan)
    assert all(d.decision is Decision.SAVE and d.repeats == 0 for d in found)
    read = {s for op in asked.graph.ops if op.phase is Phase.BACKWARD for s in op.reads}
    unread = sum(s.size_bytes for s in asked.graph.storages if s.kind is StorageKind.OUTPUT and s.id not in read)
    assert sum(d.size_bytes for d in found) == timeline.saved_bytes - unread


def test_reasons_name_what_forces_a_save() -> None:
    b = GraphBuilder()
    x, tangent = b.storage(8, StorageKind.INPUT), b.storage(8, StorageKind.TANGENT)
    collective, demanded, output, dropped, state = (
        b.storage(100 - i, kind, name)
        for i, (name, kind) in enumerate(
            [
                ("gathered", StorageKind.ACTIVATION),
                ("demanded", StorageKind.ACTIVATION),
                ("output", StorageKind.OUTPUT),
                ("dropped", StorageKind.ACTIVATION),
                ("state", StorageKind.TEMPORARY),
            ]
        )
    )
    b.op([x], [collective], traits=frozenset({Trait.COLLECTIVE}), no_recompute="ranks must agree")
    b.op([x], [demanded], save_policy=SavePolicy.MUST_SAVE)
    b.op([x], [output])
    b.op([x], [dropped], traits=frozenset({Trait.RANDOM}), replay=state)
    b.op([collective, demanded, output, dropped, tangent], [b.storage(8, StorageKind.GRADIENT)], Phase.BACKWARD)
    graph = b.graph()
    plan = Plan(tuple(OpId(i) for i in (0, 1, 2, 3, 3, 4)), 4)
    assert by_name(graph, plan) == {
        "gathered": (Decision.SAVE, 0, "may not be recomputed: ranks must agree"),
        "demanded": (
            Decision.SAVE,
            0,
            "must be saved: a checkpoint policy or the kind of operator demands it",
        ),
        "output": (Decision.SAVE, 0, "the caller holds it anyway"),
        "dropped": (
            Decision.RECOMPUTE,
            1,
            "not saved to stay within the budget; replays the same random values",
        ),
        "state": (Decision.SAVE, 1, "random state, replayed so that a repetition draws the same values"),
    }


def test_a_checkpoint_region_is_named() -> None:
    asked, plan = problem(), result().plan
    assert plan is not None
    ops = list(asked.graph.ops)
    ops[0] = replace(ops[0], save_policy=SavePolicy.MUST_NOT_SAVE)
    found = by_name(replace(asked.graph, ops=tuple(ops)), plan)
    assert found["f0"][2].startswith("never saved: a checkpoint of the user recomputes it")


def test_saved_and_later_made_again_is_a_save_with_repeats() -> None:
    graph = problem().graph
    # f1 is read by the repeated op 2 from what the forward kept, then made again before op 5.
    plan = Plan(tuple(OpId(i) for i in (0, 1, 2, 3, 2, 4, 1, 5, 6, 7)), 4)
    assert by_name(graph, plan)["f1"][:2] == (Decision.SAVE, 1)


def test_what_only_the_backward_makes_is_no_decision() -> None:
    b = GraphBuilder()
    x, tangent = b.storage(8, StorageKind.INPUT), b.storage(8, StorageKind.TANGENT)
    mask = b.storage(8, StorageKind.TEMPORARY, "mask")
    b.op([x], [b.storage(8, StorageKind.OUTPUT)])
    b.op([x], [mask], Phase.TANGENT_FREE)
    b.op([mask, tangent], [b.storage(8, StorageKind.GRADIENT)], Phase.BACKWARD)
    graph = b.graph()
    assert decisions(graph, Plan((OpId(0), OpId(1), OpId(2)), 1)) == ()
    assert by_name(graph, Plan((OpId(0), OpId(1), OpId(2)), 2))["mask"][0] is Decision.SAVE
