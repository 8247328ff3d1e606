"""Invariants of every well-formed `TrainingGraph`; planners and the simulator rely on them without checking.

ids         position and id agree
storages    written by at most one operator, and before it is read; residents and tangents by none
reads       ascending, without duplicates; writes without duplicates; never one storage in both; ends among the reads
phases      nothing that the forward runs needs a tangent, directly or through other operators
traits      an operator that repetition would change is marked `no_recompute`; a gather need not be
replay      a random operator that may repeat keeps its random state, which nothing else touches
"""

from __future__ import annotations

from collections.abc import Iterator

from remat_compiler.errors import InvalidGraph
from remat_compiler.ir.graph import Op, OpId, Phase, Storage, StorageKind, TrainingGraph, Trait

NOT_REPEATABLE = frozenset({Trait.MUTATING, Trait.COLLECTIVE, Trait.EFFECTFUL, Trait.UNKNOWN})
"""Traits that forbid a second execution; a RANDOM operator may run again when its state is replayed, and a GATHER is
a COLLECTIVE that may run again."""

_PHASE_NEEDS = {
    Phase.FORWARD: frozenset({Phase.FORWARD}),
    Phase.TANGENT_FREE: frozenset({Phase.FORWARD, Phase.TANGENT_FREE}),
    Phase.BACKWARD: frozenset(Phase),
}


def check_graph(graph: TrainingGraph) -> None:
    """Raise `InvalidGraph`, naming every defect, unless `graph` is well formed."""
    defects = graph_defects(graph)
    if defects:
        raise InvalidGraph(defects)


def graph_defects(graph: TrainingGraph) -> list[str]:
    """Every invariant that `graph` breaks, one sentence each; empty when it is well formed."""
    defects = [*_storage_defects(graph.storages)]
    # References are followed below, so they must be sound first.
    references = [defect for position, op in enumerate(graph.ops) for defect in _reference_defects(graph, op, position)]
    if defects or references:
        return defects + references
    producers: list[OpId | None] = [None] * len(graph.storages)
    names: set[str] = set()
    for op in graph.ops:
        defects += _read_defects(graph, op, producers)
        defects += _write_defects(graph, op, producers)
        defects += _repeat_defects(op)
        # Reports and messages name operators by it.
        if op.name in names:
            defects.append(f"op {op.id} {op.name}: another op has the same name")
        names.add(op.name)
    defects += [
        f"storage {s.id} {s.name}: a {s.kind.value} that no op writes"
        for s in graph.storages
        # Only after the last operator is it certain that none writes the storage.
        if producers[s.id] is None and not _made_outside(s)
    ]
    return defects


def _made_outside(storage: Storage) -> bool:
    """Whether the storage exists without any operator writing it."""
    return storage.resident or storage.kind is StorageKind.TANGENT


def _storage_defects(storages: tuple[Storage, ...]) -> Iterator[str]:
    for position, storage in enumerate(storages):
        if storage.id != position:
            yield f"storage {storage.id} {storage.name}: stands at position {position}"
        if storage.size_bytes < 0:
            yield f"storage {storage.id} {storage.name}: {storage.size_bytes} bytes"


def _reference_defects(graph: TrainingGraph, op: Op, position: int) -> Iterator[str]:
    """Ids of one operator that point nowhere or are not in canonical order."""
    where = f"op {op.id} {op.name}"
    if op.id != position:
        yield f"{where}: stands at position {position}"
    named = (*op.reads, *op.writes, *(() if op.replay is None else (op.replay,)))
    outside = sorted({s for s in named if not 0 <= s < len(graph.storages)})
    if outside:
        yield f"{where}: names storages {outside}, the graph has {len(graph.storages)}"
    if any(a >= b for a, b in zip(op.reads, op.reads[1:])):
        yield f"{where}: reads {list(op.reads)} are not ascending without duplicates"
    if len(set(op.writes)) != len(op.writes):
        yield f"{where}: writes {list(op.writes)} repeat a storage"
    if not set(op.ends) <= set(op.reads):
        yield f"{where}: ends storages {sorted(set(op.ends) - set(op.reads))} that it does not read"
    both = sorted(set(op.reads) & set(op.writes))
    if both:
        yield f"{where}: reads and writes storages {both}"


def _read_defects(graph: TrainingGraph, op: Op, producers: list[OpId | None]) -> Iterator[str]:
    """Reads of storages that do not exist yet, or that the operator's phase may not need."""
    for read in op.reads:
        storage, producer = graph.storages[read], producers[read]
        if producer is None and not _made_outside(storage):
            yield f"op {op.id} {op.name}: reads {storage.name} before any op wrote it"
        # Inputs and parameters are there from the start; tangents only in the backward.
        needs = Phase.FORWARD if producer is None else graph.ops[producer].phase
        if storage.kind is StorageKind.TANGENT:
            needs = Phase.BACKWARD
        if needs not in _PHASE_NEEDS[op.phase]:
            yield f"op {op.id} {op.name}: is {op.phase.value} but reads {storage.name}, which is {needs.value}"
        # A random state exists only if its operator repeats, so no other operator can rely on it.
        if producer is not None and graph.ops[producer].replay == read:
            yield f"op {op.id} {op.name}: reads {storage.name}, the random state of {graph.ops[producer].name}"


def _write_defects(graph: TrainingGraph, op: Op, producers: list[OpId | None]) -> Iterator[str]:
    """Writes of storages that have a maker already; records the new makers in `producers`."""
    for written in (*op.writes, *(() if op.replay is None else (op.replay,))):
        storage, producer = graph.storages[written], producers[written]
        if _made_outside(storage):
            yield f"op {op.id} {op.name}: writes {storage.name}, a {storage.kind.value}"
        if producer is not None:
            yield f"op {op.id} {op.name}: writes {storage.name}, which {graph.ops[producer].name} wrote"
        producers[written] = op.id


def _repeat_defects(op: Op) -> Iterator[str]:
    """Operators that would give other results, or other effects, when they run again."""
    # Runs once in every plan, so its traits cannot do harm.
    if not op.may_recompute:
        return
    allowed = frozenset({Trait.COLLECTIVE}) if Trait.GATHER in op.traits else frozenset()
    forbidding = sorted(trait.value for trait in (op.traits & NOT_REPEATABLE) - allowed)
    if forbidding:
        yield f"op {op.id} {op.name}: is {', '.join(forbidding)}, yet says no reason why it may not be recomputed"
    if Trait.RANDOM in op.traits and op.replay is None:
        yield f"op {op.id} {op.name}: is random and may be recomputed, but keeps no state to replay"
