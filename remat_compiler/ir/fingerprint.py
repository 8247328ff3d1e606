"""Digests of problems: problems that differ only in names and in the numbers of their storages share one plan.

A problem is determined, up to the numbering of its storages, by its operators in order (phase, time, workspace,
restrictions) and by the *signature* of each storage: who makes it, its bytes and kind, and who reads it.  So the sorted
signatures are a canonical form that needs no search for an isomorphism.  Equal fingerprints mean, unless SHA-256
collides, that the same sequence of operators is a plan of each problem, with the same peak and the same time.

    block 3    op 0 reads s7 s2    writes s9          layer.3.mlp
    block 4    op 0 reads s1 s12   writes s4          layer.4.mlp          the same fingerprint

The order of operators counts, since plans are sequences of them: cut blocks out of one graph in joint order.

`structure` leaves bytes and times out, and names the operators: the same model at another batch size or length has the
same structure, so a sequence that is valid for one size is a candidate for the other.  A wider model has the same
structure, too; `parameter_sizes` tells them apart.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import astuple

from remat_compiler.ir.graph import OpId, StorageKind, TrainingGraph
from remat_compiler.ir.problem import RematProblem

MADE, STATE = "made", "state"
"""How an operator makes a storage: as a result, or as the random state that its repetitions replay."""


def fingerprint(problem: RematProblem) -> str:
    """A digest of everything that plans of `problem` depend on, except its limits.

    Names, targets, modules, sources, nodes and provenance do not count, nor do the numbers of the storages.  Budget,
    `max_added_ns` and the reference do not either: keep answers under the fingerprint and the limits together.

    Returns:
        64 hexadecimal digits, the same in any process.
    """
    graph, costs = problem.graph, problem.costs
    makers, readers = _makers(graph), _readers(graph)
    # Sorted signatures in place of ids: two graphs that number their storages differently give the same list.
    storages = sorted((*makers[s.id], s.size_bytes, s.kind.value, readers[s.id]) for s in graph.storages)
    ops = [
        (
            op.phase.value,
            costs.time_ns[op.id],
            costs.workspace_bytes[op.id],
            sorted(trait.value for trait in op.traits),
            # Only whether there is a reason: its words name operators and do not restrict a plan.
            op.may_recompute,
            op.save_policy.value,
        )
        for op in graph.ops
    ]
    more = [[astuple(link) for link in costs.links]] if costs.links else []
    return _digest([ops, storages, *more, *_ends(graph)])


def structure(problem: RematProblem) -> str:
    """A digest of everything that decides whether a sequence of operators is a plan of `problem`, whatever its sizes.

    Operators in order (phase, target, traits, restrictions), and of each storage its kind, who makes it and who reads
    it.  Bytes, times, workspaces, limits, names and the numbers of the storages do not count.

    Returns:
        64 hexadecimal digits, the same in any process.
    """
    graph = problem.graph
    makers, readers = _makers(graph), _readers(graph)
    storages = sorted((*makers[s.id], s.kind.value, readers[s.id]) for s in graph.storages)
    ops = [
        (
            op.phase.value,
            op.target,
            sorted(trait.value for trait in op.traits),
            op.may_recompute,
            op.save_policy.value,
        )
        for op in graph.ops
    ]
    return _digest([ops, storages, *_ends(graph)])


def parameter_sizes(problem: RematProblem) -> str:
    """Digest of the bytes of each parameter, told apart by who reads it; 64 hexadecimal digits."""
    graph = problem.graph
    readers = _readers(graph)
    # Their ids differ between equal problems; what reads them does not.
    kind = StorageKind.PARAMETER
    return _digest([sorted((readers[s.id], s.size_bytes) for s in graph.storages if s.kind is kind)])


def _makers(graph: TrainingGraph) -> list[tuple[int, str]]:
    """For each storage the operator that makes it, and how; -1 if no operator makes it."""
    makers: list[tuple[int, str]] = [(-1, "")] * len(graph.storages)
    for op in graph.ops:
        for s in op.writes:
            makers[s] = (op.id, MADE)
        if op.replay is not None:
            # Told apart from a result: it counts only if the operator repeats.
            makers[op.replay] = (op.id, STATE)
    return makers


def _readers(graph: TrainingGraph) -> list[list[int]]:
    """For each storage the operators that read it, ascending."""
    readers: list[list[int]] = [[] for _ in graph.storages]
    for op in graph.ops:
        for s in op.reads:
            readers[s].append(op.id)
    return readers


def _ends(graph: TrainingGraph) -> list[tuple[str, list[tuple[OpId, list[int]]]]]:
    """The operators that end storages, each with the readers of these; empty if there are none."""
    readers = _readers(graph)
    ends = [(op.id, sorted(reader for s in op.ends for reader in readers[s])) for op in graph.ops if op.ends]
    return [("ends", ends)] if ends else []


def _digest(values: object) -> str:
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
