"""Which operators every plan runs: the verifier demands them, or they make what such an operator reads."""

from __future__ import annotations

from remat_compiler.ir.graph import Op, Phase, TrainingGraph


def needed_ops(graph: TrainingGraph) -> list[bool]:
    """Whether each operator, by its id, runs at least once in every valid plan; the others may be left out."""
    producer = graph.producers()
    needed = [_must_run(graph, op) for op in graph.ops]
    # Joint order has makers before readers, so one sweep from the end is enough.
    for op in reversed(graph.ops):
        if needed[op.id]:
            for s in op.reads:
                maker = producer[s]
                if maker is not None:
                    needed[maker] = True
    return needed


def _must_run(graph: TrainingGraph, op: Op) -> bool:
    """Whether every valid plan runs `op` even if nothing reads its results; see `remat_compiler.simulate.verify`."""
    kept = any(graph.storages[s].kept for s in op.writes)
    if op.phase is Phase.FORWARD or kept or op.traits:
        return True
    # The verifier demands backward operators without results, too: no reader could call for them.
    return op.phase is Phase.BACKWARD and not op.writes
