"""A callback for the Trainer of transformers: TensorBoard, W&B and others show what was planned.

trainer = Trainer(model, arguments, train_dataset=data)
trainer.add_callback(RematCallback(trainer))
"""

from __future__ import annotations

from typing import Any

from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from remat_compiler.trainers.plan_news import PlanNews


class RematCallback(TrainerCallback):
    """Logs the budget, the predicted peak and the plan whenever they change; it changes nothing.

    The names are those of `remat_compiler.report.figures.StepSummary.metrics`.  On a GPU, what was allocated at most
    is logged as well, at the latest after the last step.

    Args:
        trainer: The trainer by whose `log` to log: callbacks do not get it otherwise.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._news = PlanNews()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **others: Any) -> None:
        """Log after a step, if there is something new."""
        figures = self._news.news(args.device, at_the_end=control.should_training_stop)
        if not figures:
            return
        # The Trainer takes a log for the one that was due after this step, and would leave out the loss.
        was_due = control.should_log
        self._trainer.log(figures)
        control.should_log = was_due
