"""The collector of one compiled graph: its captured forward as layers, the peak of a run of it, and its arguments.

`collector` has the phase itself; this module connects it to the compiler.
"""

from __future__ import annotations

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
from remat_compiler.dynamic_shapes.mimose.collector import Collector, PeakBySize
from remat_compiler.dynamic_shapes.mimose.layered_forward import Layer, LayeredForward, meter_for, written_nodes
from remat_compiler.dynamic_shapes.variant import Use
from remat_compiler.ir.graph import Op, Phase, Trait
from remat_compiler.ir.saved_layers import SavedLayers
from remat_compiler.log import logger_of
from remat_compiler.observer import observers
from remat_compiler.partition.result import Partition
from remat_passes.registry import saved_layers

logger = logger_of(__name__)

Predict = Callable[[Sequence[int]], "tuple[int, ...]"]
"""Bytes of each layer at given sizes; empty if they are not known."""
NOT_TWICE = frozenset({Trait.COLLECTIVE, Trait.EFFECTFUL, Trait.UNKNOWN})
"""Traits of operators that must not run once more outside the step."""


class ShelteredPhase:
    """The phase in which a graph's calls give samples; see `dynamic_shapes.variant.Watcher`.

    Args:
        dispatch: Runs the calls, by the smallest variant until the phase is over.
        collector: Collects the samples.
    """

    def __init__(self, dispatch: Dispatch, collector: Collector) -> None:
        self.dispatch = dispatch
        self.collector = collector
        self._lock = threading.Lock()
        dispatch.sheltered = True
        # In front: others read the allocator, which must not show what a run of the collector takes.
        dispatch.watchers = (self, *dispatch.watchers)

    def before(self, use: Use, arguments: Sequence[Any]) -> None:
        """Collect; the phase may end with this call."""
        # Two threads would measure each other's memory.
        with self._lock:
            if self.collector.active and not self.collector.before_step(use.sizes, arguments):
                self.dispatch.watchers = tuple(one for one in self.dispatch.watchers if one is not self)
                self.dispatch.end_sheltered_phase()

    def after(self, use: Use, outputs: Any) -> None:
        """Do nothing: samples come from a run of the collector's own, not from the step."""


def shelter(dispatch: Dispatch, attempt: Attempt, workspace: WorkspaceTable) -> Predict:
    """Collect from the first calls of a graph, see `collector`.

    Args:
        dispatch: Runs it.
        attempt: The compilation for the first call.
        workspace: Measured workspaces.

    Returns:
        The layers' bytes for planners; always empty if layers are segments, since these depend on the sizes.
    """
    # A function, since the limit changes once the budget is shared.
    collector = collector_for(attempt, lambda: dispatch.limit_bytes, workspace)
    if collector is None:
        return lambda sizes: ()
    for observer in observers():
        observer.collector_made(attempt, collector)
    ShelteredPhase(dispatch, collector)
    return collector.layer_bytes if layers_of(attempt.partitions[0]).of_modules else lambda sizes: ()


def collector_for(attempt: Attempt, limit_bytes: Callable[[], int], workspace: WorkspaceTable) -> Collector | None:
    """The collector of a compiled graph; `None`, logged, if its forward must not run twice in a step.

    Args:
        attempt: The compilation.
        limit_bytes: Gives the present budget.
        workspace: Measured workspaces.
    """
    one = attempt.partition
    if one is None:
        return None
    refused = _not_twice(one)
    if refused:
        logger.info("nothing is collected: %s is not to run twice in a step", refused)
        return None
    forward = layered_forward(one)
    # AOTAutograd flattens arguments and drops some: the graph is called, and stopped when it calls its forward.
    owners = [graph.owner for graph in attempt.graphs]

    def take(arguments: Sequence[Any]) -> list[Any]:
        return torch_compat.forward_arguments(attempt.compiled, arguments, owners)

    device_type = counted_device_type(forward.input_values)
    return Collector(forward, _peak_of_run(forward, attempt, workspace), limit_bytes, take, meter_for(device_type))


def layers_of(one: Partition) -> SavedLayers:
    """The layers of a partition's forward."""
    return saved_layers(one.problem)


def layered_forward(one: Partition) -> LayeredForward:
    """The forward of a partition as layers."""
    graph, found = one.problem.graph, layers_of(one)
    nodes: dict[str, int] = {}
    # A pointwise node may be inlined into several operators; it runs once, in the layer of the first of them.
    for op in _forward_ops(one):
        for name in op.nodes:
            nodes.setdefault(name, found.place[op.id])
    blocks = [
        Layer(layer.name, tuple(graph.storages[s].name for s in layer.storages), layer.checkpointed)
        for layer in found.layers
    ]
    inputs = [node.name for node in one.graphs.forward.graph.find_nodes(op="placeholder")]
    return LayeredForward(one.joint, nodes, inputs, blocks)


def _forward_ops(one: Partition) -> list[Op]:
    return [op for op in one.problem.graph.ops if op.phase is Phase.FORWARD]


def _not_twice(one: Partition) -> str:
    """An operator of the forward that writes, communicates or is unknown; empty if there is none."""
    ops = _forward_ops(one)
    for op in ops:
        if op.traits & NOT_TWICE:
            return op.target
    written: list[fx.Node] = list(written_nodes(one.joint.graph, [name for op in ops for name in op.nodes]))
    return str(written[0].target) if written else ""


def _peak_of_run(forward: LayeredForward, attempt: Attempt, workspace: WorkspaceTable) -> PeakBySize:
    """The peak by size of a run of the forward outside the step."""
    names = [name for name, _ in attempt.request.sizes]
    roots = find_roots(attempt.partitions[0].joint.graph)
    # `detached_run` keeps a copy of the random state in the memory of the CPU.
    beside = CPU_RNG_STATE_BYTES if counted_device_type(forward.input_values) == "cpu" else 0

    def inside(node: fx.Node) -> int:
        return workspace.probe(*torch_compat.fake_call(node)) if node.op == "call_function" else 0

    def peak_bytes(sizes: Sequence[int]) -> int | None:
        with torch_compat.sizes_at(dict(zip(names, sizes))):
            return beside + forward.peak_bytes(roots, torch_compat.allocated_bytes, inside)

    return peak_bytes
