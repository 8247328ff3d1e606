"""One try at a graph: what was asked, what was compiled, and what its check found."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from remat_compiler.dry_run.dry_run import DryRun
from remat_compiler.dry_run.emitted_wrapper import EmittedGraph
from remat_compiler.dry_run.peak_formula import PeakForm
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Partition
from remat_compiler.simulate.step_peak import GraphMemory


@dataclass(frozen=True, slots=True, eq=False)
class Attempt:
    """One try at a graph.

    Attributes:
        request: What was aimed for.
        compiled: The callable; it cannot be executed when `real` is false.
        real: Whether kernels were compiled.
        trains: Whether there is a backward.
        partitions: What was decided; empty without a backward, and when a compiler's cache was hit.
        check: The dry run of what was emitted.
        form: Its peak by the sizes of the inputs, where they are symbolic and kernels were compiled.
        check_at: The dry run at other sizes, given by symbol, likewise.
        graphs: What Inductor emitted, likewise.
        fake_outputs: See `torch_compat.fake_outputs`.
        native: Checked memory of the step without a budget, where it was emitted to tell.
        failure: Why nothing could be planned; then the graph is compiled as the stock backend would.
    """

    request: PartitionRequest
    compiled: Callable[..., Any]
    real: bool
    trains: bool
    partitions: tuple[Partition, ...]
    check: DryRun
    form: PeakForm | None = None
    check_at: Callable[[Mapping[str, int]], DryRun] | None = None
    graphs: tuple[EmittedGraph, ...] = ()
    fake_outputs: Any = None
    native: GraphMemory | None = None
    failure: Exception | None = None

    @property
    def partition(self) -> Partition | None:
        """What was decided, where that is known and the graph has one joint graph."""
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
    def aimed_bytes(self) -> int:
        """Largest peak that planners were allowed."""
        return sum(one.budget_bytes for one in self.partitions)

    @property
    def planned_bytes(self) -> int:
        """Peak that the simulator foresees, what other graphs take between forward and backward included."""
        peak, between_bytes = sum(one.peak_bytes for one in self.partitions), self.check.between_bytes
        return max(peak, sum(one.saved_bytes for one in self.partitions) + between_bytes) if between_bytes else peak

    @property
    def needed_bytes(self) -> int | None:
        """Peak as checked; where that is not known, as simulated; `None` where nothing is known of it."""
        if not self.check.unknown:
            return self.check.needed_bytes
        return self.planned_bytes if self.partitions else None

    def is_over(self, limit: int | None) -> bool:
        """Whether it exceeds the budget, as far as anything is known of it."""
        needed = self.needed_bytes
        return limit is not None and needed is not None and needed > limit


class Compile(Protocol):
    """Compiles and checks; raises `NoPlan` when the planner refuses."""

    def __call__(self, request: PartitionRequest, real: bool = True) -> Attempt:
        """One try; where `real` is false, kernels are not compiled."""
        ...
