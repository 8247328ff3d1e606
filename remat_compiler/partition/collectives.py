"""The collectives of a graph and of a plan, by which ranks can tell whether they communicate alike."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import traits_of
from remat_compiler.capture.storages import storage_bytes
from remat_compiler.ir.graph import TrainingGraph, Trait
from remat_compiler.ir.plan import Plan


def gathers_inputs(graph: TrainingGraph) -> bool:
    """Whether the graph has gathers that a plan could repeat, if all ranks do."""
    return any(Trait.GATHER in op.traits for op in graph.ops)


def repeats_gathers(graph: TrainingGraph, plan: Plan) -> bool:
    """Whether the plan runs a gather more than once."""
    gathers = {op.id for op in graph.ops if Trait.GATHER in op.traits}
    ran = [op_id for op_id in plan.steps if op_id in gathers]
    return len(ran) > len(set(ran))


def program_of(joint: fx.Graph, settings: str) -> str:
    """Digest of the collectives of a prepared joint graph and of `settings`.

    Bytes count for gathers of inputs alone, which are the same on all ranks of a group: ranks may compile the same
    program for batches of different sizes.
    """
    # By name: the graph may stand in another order by now (`capture.early_loops`).
    found = sorted((node.name, str(node.target), _gathered_bytes(node)) for node in joint.nodes if _communicates(node))
    return hashlib.sha256(repr((settings, found)).encode()).hexdigest()


def _gathered_bytes(node: fx.Node) -> int:
    return storage_bytes(node) if Trait.GATHER in traits_of(node) else 0


def order_of(modules: Iterable[fx.GraphModule], emitted: Iterable[str]) -> str:
    """Digest of the order in which graphs issue collectives.

    Args:
        modules: Forward and backward, as they were handed to the inner compiler.
        emitted: The collectives of each emitted graph, see `compilation.compiler`.
    """
    issued = [node.name for module in modules for node in module.graph.nodes if _communicates(node)]
    return hashlib.sha256(repr((issued, list(emitted))).encode()).hexdigest()


def _communicates(node: fx.Node) -> bool:
    target = node.target
    return isinstance(target, torch._ops.OpOverload) and target.namespace in torch_compat.COLLECTIVE_NAMESPACES
