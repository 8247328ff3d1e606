"""Storages of next to no bytes weigh nothing: a relaxation with far fewer choices.

A storage of no bytes is free to keep, so no plan needs to make it again, and a search has nothing to decide there:
statistics of normalisations, scalars of the loss, masks.  Every plan of the original is one of the relaxation, of the
same added time and no higher peak.  So what is proved of the relaxation bounds the original from below, and a plan that
is optimal there is optimal in the original too, if it fits.  What is held by the caller, and random states, keep their
bytes.
"""

from __future__ import annotations

from dataclasses import replace

from remat_compiler.ir.graph import Storage, StorageKind
from remat_compiler.ir.problem import RematProblem

NEGLIGIBLE = 64
"""Storages that are smaller than the largest by this factor weigh nothing."""


def weightless(problem: RematProblem, negligible: int = NEGLIGIBLE) -> RematProblem:
    """`problem` with storages of no bytes where they are smaller than the largest that moves by `negligible`.

    Returns:
        A problem of the same operators, without a reference; its graph is that of `problem` where all weighs something.

    Raises:
        ValueError: `negligible` is below 1.
    """
    if negligible < 1:
        raise ValueError(f"got the factor {negligible}; it must be at least 1")
    graph = problem.graph
    states = {op.replay for op in graph.ops}

    def moves(storage: Storage) -> bool:
        outside = storage.resident or storage.kept or storage.kind is StorageKind.TANGENT
        return not outside and storage.id not in states

    largest = max((s.size_bytes for s in graph.storages if moves(s)), default=0)
    storages = tuple(
        replace(s, size_bytes=0) if moves(s) and s.size_bytes * negligible <= largest else s for s in graph.storages
    )
    light = graph if storages == graph.storages else replace(graph, storages=storages)
    return replace(problem, graph=light, reference=None)
