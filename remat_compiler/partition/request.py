"""What is asked of the partition of a joint graph."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class PartitionRequest:
    """What decides how a joint graph is cut; plain data, so that it can be part of a cache key.

    Attributes:
        budget_bytes: Largest peak that the planner may use; `None` with `fraction`, or for no budget.
        fraction: Budget as a fraction of the peak of torch's own partition.
        take_smallest: Where nothing fits, take the plan of the smallest peak.
        planner: Name of the planner.
        cost_model: Where times come from.
        inner: Inner compiler; decides whether the graph is contracted to kernels.
        max_slowdown: Largest time of the step, relative to no recomputation; `None` for no limit.
        time_limit: Seconds that planning may take, see `RematOptions`.
        verify: Level of checking, see `options.Environment`.
        free_layout: Whether the inner compiler may choose how convolutions lie in memory, which is mostly faster
            and needs copies of their weights.
        early_loops: Whether loops of the backward may run early where there is room, which is mostly faster.
        between_bytes: Bytes that other graphs of the step take between the forward and the backward, beside what the
            forward saves.
        sizes: Name and number of each symbolic size that is planned for; empty for those of the traced inputs.
        layer_bytes: Bytes of each layer at these sizes as an estimator predicts them, for planners that go by layers;
            empty for what the graph says.
    """

    budget_bytes: int | None
    fraction: float | None = None
    take_smallest: bool = False
    planner: str = "auto"
    cost_model: str = "roofline"
    inner: str = "inductor"
    max_slowdown: float | None = 2.0
    time_limit: float | None = None
    verify: int = 1
    free_layout: bool = True
    early_loops: bool = True
    between_bytes: int = 0
    sizes: tuple[tuple[str, int], ...] = ()
    layer_bytes: tuple[int, ...] = ()

    @property
    def without_budget(self) -> PartitionRequest:
        """The same where nothing is to be saved."""
        return replace(self, fraction=None, budget_bytes=None, planner="auto", between_bytes=0)
