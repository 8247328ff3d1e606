"""What the callbacks tell a trainer's logger, and when."""

from __future__ import annotations

import torch

from remat_compiler.graphs.steps import steps_are_known
from remat_compiler.report.figures import latest_step, summarise
from remat_compiler.report.store import reports


class PlanNews:
    """The figures of the step that was planned last, each time that they change.

    Only graphs that are compiled from now on count, so that those of another model do not.
    """

    def __init__(self) -> None:
        self._before = {report.graph_name for report in reports()}
        self._told: dict[str, float] = {}

    def news(self, device: torch.device, *, at_the_end: bool = False) -> dict[str, float]:
        """Figures by name, or nothing if they are those of the last call, or those of the step are not known yet.

        Args:
            device: The device that the model is on.
            at_the_end: Whether training ends here, so that what was measured is final.
        """
        # Until it is known which graphs share the budget, each of them has a plan that tells nothing of the step.
        if not (at_the_end or steps_are_known()):
            return {}
        planned = latest_step([report for report in reports() if report.graph_name not in self._before])
        figures = summarise(planned).metrics() if planned else {}
        if figures == self._told:
            return _measured(device) if at_the_end and figures else {}
        self._told = figures
        return figures | _measured(device)


def _measured(device: torch.device) -> dict[str, float]:
    """The most that was ever allocated on a GPU, parameters and all, as torch counts it; nothing of other devices."""
    # Read only: to reset this statistic would take it from everybody else who reads it.
    return {"remat/max_memory_allocated": torch.cuda.max_memory_allocated(device)} if device.type == "cuda" else {}
