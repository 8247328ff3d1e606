"""A callback for the Trainer of the package `lightning`: its loggers show what was planned.

trainer = Trainer(callbacks=[RematCallback()])
"""

from __future__ import annotations

from lightning.pytorch import Callback

from remat_compiler.trainers.lightning_hooks import ReportsPlans


class RematCallback(ReportsPlans, Callback):
    """Logs the budget, the predicted peak and the plan whenever they change; it changes nothing."""
