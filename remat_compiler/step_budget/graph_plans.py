"""How a graph of a step may be planned again once the step is known: not at all, for its sizes, or at each size.

    GraphPlans      one plan for good: what compiled it is gone
    FixedPlans      compiled again for the same sizes             fixed_plans
    SizePlans       limits that hold at all sizes                 size_plans

Whoever decides about a step asks these, and need not know which kind a graph has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any, ClassVar, Protocol

from remat_compiler.compilation.attempt import Attempt
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.options import RematOptions
from remat_compiler.partition.result import PartitionFigures
from remat_compiler.report.plan_report import StepFigures
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.graph_memory import GraphMemory
from remat_compiler.step_model.levels import PlanLevel


class Planned(Protocol):
    """A graph, as its plans see it; see `compiled_graph.CompiledGraph`."""

    attempt: Attempt | None
    native: GraphMemory | None
    options: RematOptions
    budget_bytes: int | None
    refused_alone: InfeasibleBudget | None
    staying: set[int]

    @property
    def memory(self) -> GraphMemory | None:
        """Its memory by itself; `None` if it is not known."""
        ...

    @property
    def figures(self) -> PartitionFigures | None:
        """What is known of its partition; `None` if that is nothing."""
        ...

    @property
    def unbudgeted(self) -> GraphMemory | None:
        """Its memory without a budget; `None` if its partition is not known."""
        ...

    @property
    def added_ns(self) -> int:
        """Modelled time that recomputation adds."""
        ...

    def exchange(self, attempt: Attempt) -> None:
        """Run `attempt` from now on."""
        ...

    def keep(self, own_budget: int | None, note: str = "", step: StepFigures | None = None) -> None:
        """Report and store the code that it runs."""
        ...


class GraphPlans:
    """One plan for good.

    Attributes:
        can_change: Whether the graph can be planned otherwise.
        at_all_sizes: Whether it keeps to limits at all sizes, rather than to a plan for some.
        dispatch: What runs it at many sizes; `None` for one compilation.
        accumulated: Positions of the inputs whose gradients may leave within the backward if it is compiled again.
        offload_bytes: Most bytes that a step may move off the device; `None` if no plan can be made for another number.
    """

    can_change: ClassVar[bool] = False
    dispatch: Dispatch | None = None
    accumulated: tuple[int, ...] = ()

    @property
    def at_all_sizes(self) -> bool:
        """See `GraphPlans`."""
        return self.dispatch is not None

    @property
    def offload_bytes(self) -> int | None:
        """See `GraphPlans`."""
        return None

    @property
    def figures(self) -> PartitionFigures | None:
        """What is known of the partition, if that is not the one of the code that runs."""
        return None

    @property
    def unbudgeted(self) -> GraphMemory | None:
        """The memory without a budget, if that is not the one of the code that runs."""
        return None

    @property
    def keeps_beside(self) -> bool:
        """Whether each size keeps to what gradients from before the step leave."""
        return self.dispatch is not None and self.dispatch.allowance.spare_bytes > 0

    def memory_at(self, arguments: Sequence[Any], memory: GraphMemory | None) -> GraphMemory | None:
        """The memory of a call with these arguments, if `memory` is that of the graph."""
        return memory if self.dispatch is None else self.dispatch.memory_at(arguments)

    def has_less_than(self, whole_bytes: int) -> bool:
        """Whether its limits leave it less than the whole budget, until its steps are known."""
        return False

    def learnt(self, attempt: Attempt) -> Attempt:
        """`attempt` with its partition, which is made again if a compiler's cache had the code."""
        return attempt

    def without_budget(self, graph: Planned) -> GraphMemory | None:
        """The memory without a budget by the dry run, the reference of fractions; simulated if that is not known."""
        return graph.unbudgeted

    def compiled_at(self, graph: Planned, level: PlanLevel, *, real: bool) -> Attempt | None:
        """The graph compiled at one level; its present compilation if it is at that level, or cannot be changed."""
        return graph.attempt

    def with_room(self, attempt: Attempt, runs: int, before: Attempt | None) -> Attempt:
        """`attempt` with room for what its steps move off the device, in place of the room of `before`.

        Raises:
            OffloadError: There is no such room.
        """
        return attempt

    def decide_alone(self, graph: Planned) -> None:
        """Give all of the budget to a graph that got a part of it, or was planned beside the graphs of other steps.

        Raises:
            InfeasibleBudget: It does not fit, and the options do not say to take the smallest peak.
        """
        # Of one plan for all sizes: nothing else was found within its own fraction.
        assert graph.refused_alone is not None
        raise copy(graph.refused_alone)

    def decide_beside(self, graph: Planned, limit_bytes: int | None, gradient_bytes: int, *, freed: bool) -> None:
        """Plan the graph, which makes up its steps alone, so that it keeps to the budget beside gradients.

        Where no plan does, it gets the smallest peak: a training run must not end in its second micro-batch.

        Args:
            graph: The graph.
            limit_bytes: The budget; `None` for none.
            gradient_bytes: Bytes of gradients from before the step.
            freed: Whether it is planned beside more of them.
        """
        present = None if graph.attempt is None else graph.attempt.needed_bytes
        if limit_bytes is not None and present is not None:
            step = StepFigures(1, present + gradient_bytes, limit_bytes, gradient_bytes=gradient_bytes)
            graph.keep(max(limit_bytes - gradient_bytes, 1, present), "", step)

    def have_leave(self, graph: Planned, leaving: tuple[int, ...], hooks_bytes: Mapping[int, int]) -> None:
        """Have gradients leave within the backward, under the same limits.

        Args:
            graph: The graph.
            leaving: Positions of the inputs whose gradients they are.
            hooks_bytes: What the hooks of some of these take while they run.
        """

    def take_all(self, limit_bytes: int | None) -> None:
        """Have the whole budget, unless it is shared in some kind of step."""

    def share(self, allowance: Allowance, step: object) -> None:
        """Keep to `allowance` in one kind of step."""

    def make_room(self, limit_bytes: int, held_bytes: int) -> None:
        """Before a forward while the step is still being learnt: keep to what earlier graphs leave free."""
