"""Memory of one graph by itself, by the parts of a step: while it runs, between its runs, and after them."""

from __future__ import annotations

from dataclasses import dataclass

from remat_compiler.ir.graph import TrainingGraph
from remat_compiler.ir.plan import Plan
from remat_compiler.simulate.timeline import MemoryTimeline


@dataclass(frozen=True, slots=True)
class GraphMemory:
    """Memory of one graph by itself.

    Attributes:
        forward_bytes: Most bytes alive while its forward runs.
        held_bytes: Bytes alive between its forward and its backward: saved values and outputs.
        backward_bytes: Most bytes alive while its backward runs, tangents included.
        left_bytes: Bytes alive after its backward: gradients and outputs.
        output_bytes: Bytes of the outputs, if they are known apart from the rest; else 0.
        released_bytes: Bytes of outputs that only the caller holds: once it lets go of them, they are gone.
    """

    forward_bytes: int
    held_bytes: int
    backward_bytes: int
    left_bytes: int
    output_bytes: int = 0
    released_bytes: int = 0

    @property
    def peak_bytes(self) -> int:
        """Peak of the graph by itself."""
        return max(self.forward_bytes, self.backward_bytes)


def memory_of(graph: TrainingGraph, timeline: MemoryTimeline, plan: Plan) -> GraphMemory:
    """Memory of one graph as simulated in `timeline`, by `plan`."""
    live, boundary = timeline.live_bytes, timeline.boundary
    forward, backward = plan.steps[:boundary], plan.steps[boundary:]
    made = {s for op in forward for s in graph.ops[op].writes}
    # What the backward makes again is not held for it, and what it reads is saved for it, whoever else holds it.
    needed = {s for op in backward for s in (*graph.ops[op].reads, *graph.ops[op].writes)}
    released = [s for s in graph.storages if s.kept and s.id in made and s.id not in needed]
    return GraphMemory(
        forward_bytes=int(live[:boundary].max(initial=0)),
        held_bytes=timeline.saved_bytes,
        backward_bytes=int(live[boundary:].max(initial=0)),
        left_bytes=sum(storage.size_bytes for storage in graph.storages if storage.kept),
        output_bytes=sum(storage.size_bytes for storage in released),
        released_bytes=sum(storage.size_bytes for storage in released),
    )
