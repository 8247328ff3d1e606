"""A callback for the Trainer of the package `pytorch_lightning`: its loggers show what was planned.

trainer = Trainer(callbacks=[RematCallback()])
"""

from __future__ import annotations

from pytorch_lightning import Callback

from remat_compiler.trainers.lightning_hooks import ReportsPlans


class RematCallback(ReportsPlans, Callback):
    """Logs the budget, the predicted peak and the plan whenever they change; it changes nothing."""
