"""What the callbacks for both packages of Lightning do; neither package is imported here."""

from __future__ import annotations

from typing import Any

from remat_compiler.trainers.plan_news import PlanNews


class ReportsPlans:
    """Hooks of a Lightning callback that log the budget, the predicted peak and the plan whenever they change.

    The names are those of `remat_compiler.report.figures.StepSummary.metrics`.  On a GPU, what was allocated at most
    is logged as well, the last time when training ends.
    """

    def __init__(self) -> None:
        super().__init__()
        self._news = PlanNews()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Log after a batch, if there is something new."""
        self._log(trainer, self._news.news(pl_module.device))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Log what was measured."""
        self._log(trainer, self._news.news(pl_module.device, at_the_end=True))

    def _log(self, trainer: Any, figures: dict[str, float]) -> None:
        if figures:
            # By the loggers themselves: `log_dict` would wait for a step of `log_every_n_steps`, and drop this one.
            for logger in trainer.loggers:
                logger.log_metrics(figures, step=trainer.global_step)
