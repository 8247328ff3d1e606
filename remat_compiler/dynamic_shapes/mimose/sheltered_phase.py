"""The collector of one compiled graph: its captured forward as layers, what a run of it takes, and its arguments.

`collector` has the phase itself; here is what of the compiler it takes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CPU_RNG_STATE_BYTES
from remat_compiler.capture.storages import find_roots
from remat_compiler.compilation.attempt import Attempt
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.dry_run.fake_inputs import counted_device_type
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.mimose.collector import Collector
from remat_compiler.dynamic_shapes.mimose.layered_forward import Block, BlockedForward, meter_for, written_nodes
from remat_compiler.dynamic_shapes.variant import PeakBySize, Use
from remat_compiler.ir.graph import Op, Phase, Trait
from remat_compiler.ir.saved_layers import SavedLayers
from remat_compiler.partition.result import Partition
from remat_passes.registry import saved_layers

logger = logging.getLogger(__name__)

Predict = Callable[[Sequence[int]], "tuple[int, ...]"]
"""Bytes of each layer at given sizes; empty where nothing is known of them."""
NOT_TWICE = frozenset({Trait.COLLECTIVE, Trait.EFFECTFUL, Trait.UNKNOWN})
"""What an operator that is run beside the step must not be."""


class Shelter:
    """The phase in which a graph's calls are collected from; see `dynamic_shapes.variant.Watcher`.

    Args:
        dispatch: Runs the calls, by the smallest variant until the phase is over.
        collector: Collects.
    """

    def __init__(self, dispatch: Dispatch, collector: Collector) -> None:
        self.dispatch = dispatch
        self.collector = collector
        self._lock = threading.Lock()
        dispatch.sheltered = True
        dispatch.watchers = (self, *dispatch.watchers)

    def before(self, use: Use, arguments: Sequence[Any]) -> None:
        """Collect; the phase may end with it."""
        with self._lock:
            if self.collector.active and not self.collector.before_step(use.sizes, arguments):
                self.dispatch.watchers = tuple(one for one in self.dispatch.watchers if one is not self)
                self.dispatch.leave_shelter()

    def after(self, use: Use, outputs: Any) -> None:
        """Nothing is learnt from the step itself."""


def shelter(dispatch: Dispatch, attempt: Attempt, workspace: WorkspaceTable) -> Predict:
    """Collect from the first calls of a graph, see `collector`.

    Args:
        dispatch: Runs it.
        attempt: What was compiled first.
        workspace: Measured workspaces.

    Returns:
        What planners may be told of the layers: those of modules alone, since segments depend on the sizes.
    """
    collector = collector_for(attempt, lambda: dispatch.limit_bytes, workspace)
    if collector is None:
        return lambda sizes: ()
    Shelter(dispatch, collector)
    return collector.layer_bytes if layers_of(attempt.partitions[0]).of_modules else lambda sizes: ()


def collector_for(attempt: Attempt, limit_bytes: Callable[[], int], workspace: WorkspaceTable) -> Collector | None:
    """The collector of a compiled graph; `None`, logged, where its forward must not run but once.

    Args:
        attempt: What was compiled.
        limit_bytes: The budget as it is now.
        workspace: Measured workspaces.
    """
    one = attempt.partition
    if one is None:
        return None
    refused = _not_twice(one)
    if refused:
        logger.info("nothing is collected: %s is not to run twice in a step", refused)
        return None
    forward = blocked_forward(one)
    owners = [graph.owner for graph in attempt.graphs]

    def take(arguments: Sequence[Any]) -> list[Any]:
        return torch_compat.forward_arguments(attempt.compiled, arguments, owners)

    device_type = counted_device_type(forward.input_values)
    return Collector(forward, _peak_of_run(forward, attempt, workspace), limit_bytes, take, meter_for(device_type))


def layers_of(one: Partition) -> SavedLayers:
    """The layers of a partition's forward."""
    return saved_layers(one.problem)


def blocked_forward(one: Partition) -> BlockedForward:
    """The forward of a partition as layers."""
    graph, found = one.problem.graph, layers_of(one)
    nodes: dict[str, int] = {}
    for op in _forward_ops(one):
        for name in op.nodes:
            nodes.setdefault(name, found.place[op.id])
    blocks = [
        Block(layer.name, tuple(graph.storages[s].name for s in layer.storages), layer.checkpointed)
        for layer in found.layers
    ]
    inputs = [node.name for node in one.graphs.forward.graph.find_nodes(op="placeholder")]
    return BlockedForward(one.joint, nodes, inputs, blocks)


def _forward_ops(one: Partition) -> list[Op]:
    return [op for op in one.problem.graph.ops if op.phase is Phase.FORWARD]


def _not_twice(one: Partition) -> str:
    """An operator of the forward that writes, communicates or is unknown; empty where there is none."""
    ops = _forward_ops(one)
    for op in ops:
        if op.traits & NOT_TWICE:
            return op.target
    written: list[fx.Node] = list(written_nodes(one.joint.graph, [name for op in ops for name in op.nodes]))
    return str(written[0].target) if written else ""


def _peak_of_run(forward: BlockedForward, attempt: Attempt, workspace: WorkspaceTable) -> PeakBySize:
    """The peak of a run of the forward beside the step."""
    names = [name for name, _ in attempt.request.sizes]
    roots = find_roots(attempt.partitions[0].joint.graph)
    # The random state is kept aside meanwhile, in the memory of the CPU.
    beside = CPU_RNG_STATE_BYTES if counted_device_type(forward.input_values) == "cpu" else 0

    def inside(node: fx.Node) -> int:
        return workspace.probe(*torch_compat.fake_call(node)) if node.op == "call_function" else 0

    def peak_bytes(sizes: Sequence[int]) -> int | None:
        with torch_compat.sizes_at(dict(zip(names, sizes))):
            return beside + forward.peak_bytes(roots, torch_compat.allocated_bytes, inside)

    return peak_bytes
