"""The request that a joint graph is partitioned by."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace

from remat_compiler.ir.plan import Tier
from remat_compiler.offload.place import Place
from remat_compiler.options import PlanOptions

_ASKED = {*(one.name for one in fields(PlanOptions)), "verify", "sizes", "layer_bytes"}
"""What the user or the sizes of a call decide; a search, or the first steps, decide all other fields."""


@dataclass(frozen=True, slots=True)
class PartitionRequest(PlanOptions):
    """Everything that decides how a joint graph is cut; plain data, so that it can be part of a cache key.

    The options among it are those of `PlanOptions`: `budget_of` decides the check alone, `layout` how the emitted code
    allocates, and `inner` whether the graph is contracted to kernels.

    Attributes:
        budget_bytes: Largest peak that the planner may use; `None` if only `fraction` says it, or for no budget.
        fraction: Budget as a fraction of the peak of torch's own partition, unless `budget_bytes` is known; either way
            that partition is made, so that plans are compared with it.
        take_smallest: If nothing fits, take the plan of the smallest peak.
        verify: Level of checking, see `options.Environment`.
        free_layout: Whether the inner compiler may choose the memory layout of convolutions, which is mostly faster
            and needs copies of their weights.
        reorders: Whether the backward may run in another order than the program's, which needs less memory; Inductor
            keeps to it but for loops that it fuses.
        may_be_native: Whether torch's own partition is the answer where its simulated peak fits; it is not where its
            emitted code is known to need more.
        early_loops: Whether loops of the backward may run early if there is room, which is mostly faster.
        between_bytes: Bytes that other graphs of the step take between the forward and the backward, in addition to
            what the forward saves.
        sizes: Name and number of each symbolic size that is planned for; empty for those of the traced inputs.
        offload_bytes: Most bytes that may be off the device at once; 0 for none.
        offload_place: Where they may be, see `offload.place.Place`; empty for nowhere.
        leaving: Positions of the inputs whose gradients may leave within the backward, see `capture.leaving`.
        hooks_bytes: What the hooks of some of these take while they run, beside what stays, by position.
        gathers: Whether inputs may be gathered from the ranks again, see `compilation.gathers`.
        layer_chunks: Most chunks of its layers, see `chunks.layers`; `chunks` are those of its losses.
        attention_in_chunks: Whether attention by one operator is one of these layers.
        layer_bytes: Bytes of each layer at these sizes as an estimator predicts them, for planners of layers; empty
            for those that the graph itself gives.
    """

    budget_bytes: int | None
    fraction: float | None = None
    take_smallest: bool = False
    verify: int = 1
    free_layout: bool = True
    reorders: bool = True
    may_be_native: bool = True
    early_loops: bool = True
    between_bytes: int = 0
    sizes: tuple[tuple[str, int], ...] = ()
    layer_bytes: tuple[int, ...] = ()
    offload_bytes: int = 0
    offload_place: str = ""
    leaving: tuple[int, ...] = ()
    hooks_bytes: tuple[tuple[int, int], ...] = ()
    gathers: bool = False
    chunks: int = field(default=1, kw_only=True)  # what is captured by itself is whole
    layer_chunks: int = field(default=1, kw_only=True)
    attention_in_chunks: bool = field(default=False, kw_only=True)

    @property
    def place(self) -> Place | None:
        """Where values may be moved to; `None` for nowhere."""
        return Place.parse(self.offload_place) if self.offload_place else None

    @property
    def places(self) -> dict[Tier, Place]:
        """The same by tier."""
        return {} if self.place is None else {self.place.tier: self.place}

    @property
    def without_transfers(self) -> PartitionRequest:
        """The same request for plans that move nothing off the device; costs know the way there all the same."""
        return replace(self, offload_bytes=0)

    @property
    def without_budget(self) -> PartitionRequest:
        """The same request for the step without a budget."""
        # With "auto", a budget that everything fits means torch's own partition, which is that step.
        return replace(self, fraction=None, budget_bytes=None, planner="auto", may_be_native=True, between_bytes=0)

    def decided_as(self, other: PartitionRequest) -> PartitionRequest:
        """This request with all of `other` that a search decides, or the first steps."""
        names = (one.name for one in fields(self) if one.name not in _ASKED)
        return replace(self, **{name: getattr(other, name) for name in names})
