"""One try at a graph: the request, the compiled code, and the result of its check."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from remat_compiler.compilation.arenas_by_size import ArenasBySize
from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph
from remat_compiler.dry_run.peak_formula import PeakFormula
from remat_compiler.offload.store import Reservation
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Partition
from remat_compiler.step_model.graph_memory import GraphMemory


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One try at a graph.

    Attributes:
        request: The request that was compiled.
        compiled: The callable; it cannot be executed if `real` is false.
        real: Whether kernels were compiled.
        trains: Whether there is a backward.
        partitions: The partition of each joint graph; empty without a backward, and if a compiler's cache was hit.
        check: The dry run of the emitted code.
        formula: Its peak by the sizes of the inputs, if they are symbolic and kernels were compiled.
        check_at: The dry run at other sizes, given by symbol, if sizes are symbolic.
        graphs: Graphs that Inductor emitted, if sizes are symbolic.
        arenas: Their arenas by size, if sizes are symbolic and values are placed.
        fake_outputs: See `torch_compat.fake_outputs`.
        native: Checked memory of the step without a budget, if that step was emitted.
        room: Room for what the steps move off the device, kept for as long as the graph may run.
        collectives: Collectives of each graph that Inductor emitted, in order.
        failure: Why nothing could be planned; then the graph is compiled as the stock backend would.
    """

    request: PartitionRequest
    compiled: Callable[..., Any]
    real: bool
    trains: bool
    partitions: tuple[Partition, ...]
    check: DryRun
    formula: PeakFormula | None = None
    check_at: Callable[[Mapping[str, int]], DryRun] | None = None
    graphs: tuple[EmittedGraph, ...] = ()
    arenas: ArenasBySize | None = None
    fake_outputs: Any = None
    native: GraphMemory | None = None
    collectives: tuple[tuple[str, ...], ...] = ()
    failure: Exception | None = None
    room: Reservation | None = None

    @property
    def partition(self) -> Partition | None:
        """The partition, if it is known and the graph has one joint graph."""
        return self.partitions[0] if len(self.partitions) == 1 else None

    @property
    def added_ns(self) -> int:
        """Modelled time that recomputation adds."""
        return sum(one.added_ns for one in self.partitions)

    @property
    def step_ns(self) -> int:
        """Modelled time of the step that executes every operator once."""
        return sum(one.step_ns for one in self.partitions)

    @property
    def gainable_ns(self) -> int:
        """The part of `added_ns` that a larger budget could spare."""
        return sum(one.gainable_ns for one in self.partitions)

    @property
    def total_ns(self) -> int:
        """Modelled time of the step as planned."""
        return self.step_ns + self.added_ns

    @property
    def aimed_bytes(self) -> int:
        """Largest peak that planners were allowed."""
        return sum(one.budget_bytes for one in self.partitions)

    @property
    def planned_bytes(self) -> int:
        """Simulated peak, including what other graphs take between forward and backward."""
        peak, between_bytes = sum(one.peak_bytes for one in self.partitions), self.check.between_bytes
        return max(peak, sum(one.saved_bytes for one in self.partitions) + between_bytes) if between_bytes else peak

    @property
    def needed_bytes(self) -> int | None:
        """Checked peak; the simulated one if the check failed; `None` if neither is known."""
        if not self.check.unknown:
            return self.check.needed_bytes
        return self.planned_bytes if self.partitions else None

    def is_over(self, limit: int | None) -> bool:
        """Whether the known peak exceeds the budget."""
        needed = self.needed_bytes
        # An unknown peak is not over: a step that cannot be checked is run rather than refused.
        return limit is not None and needed is not None and needed > limit


class Compile(Protocol):
    """Compiles and checks; raises `NoPlan` when the planner refuses."""

    def __call__(self, request: PartitionRequest, real: bool = True) -> Attempt:
        """One try; if `real` is false, kernels are not compiled."""
        ...
