"""Keeps the graphs of a step to their limits at all sizes, and splits the budget again when larger sizes come."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from remat_compiler.log import logger_of
from remat_compiler.step_budget.graph_plans import GraphPlans
from remat_compiler.step_budget.size_plans import SizePlans
from remat_compiler.step_model.size_split import GROWTH, LARGEST, Division, SizeSplit

logger = logger_of(__name__)


class SharedBudget:
    """A budget that is split anew for larger sizes.

    Args:
        split: The budget and the graphs.
        graphs: The plans of the graphs in the order of the split.
        first: The graph that begins the step: nothing is held before it.
        between_steps: Whether nothing is held now, since the first graph may run again later in a step.
    """

    def __init__(
        self, split: SizeSplit, graphs: Sequence[GraphPlans], first: int, between_steps: Callable[[], bool]
    ) -> None:
        self._split, self._graphs = split, tuple(graphs)
        self._step: int | None = None
        opening = graphs[first]
        if isinstance(opening, SizePlans):
            # The graph may begin other kinds of steps, too, whose hooks must still run.
            before = opening.dispatch.before_new_sizes

            def look_at(sizes: tuple[int, ...]) -> None:
                if before is not None:
                    before(sizes)
                # Amid a step, calls hold memory under the old limits: new ones would not add up with it.
                if between_steps():
                    self._look_at(first, opening.factor_at(sizes))

            opening.dispatch.before_new_sizes = look_at

    def apply(self, division: Division) -> None:
        """Keep to this division from now on."""
        self._step = division.step
        for graph, allowance in zip(self._graphs, division.allowances):
            graph.share(allowance, self)

    def _look_at(self, graph: int, factor: float) -> None:
        """Split the budget again if a step begins with sizes beyond those that it was split for.

        Args:
            graph: The graph that is called.
            factor: The ratio of its memory at these sizes to that at the first sizes.
        """
        step, grown, most = self._step, self._split.members[graph].grown, self._split.most
        if step is None or grown is None or most is None or factor <= grown(GROWTH**step)[0]:
            return
        needed = next((s for s in range(step + 1, LARGEST) if grown(GROWTH**s)[0] >= factor), LARGEST)
        # Beyond the largest sizes with a plan, the limits for those are the best there is.
        division = self._split.divide(min(needed, most))
        if division is not None and division.step > step:
            logger.info("larger sizes than before: the budget is split anew among %d graphs", len(self._graphs))
            self.apply(division)
