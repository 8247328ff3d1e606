"""Warn, once, if a program trains with this backend but Dynamo never gave it a graph: then no budget is kept.

The backend is not called in that case.  So torch's own records are read after the first step of an optimizer, and when
the process ends, for programs without an optimizer.
"""

from __future__ import annotations

import atexit
import logging
from collections.abc import Callable
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook

from remat_compiler import torch_compat

logger = logging.getLogger(__name__)

SHOWN = 3
"""Largest number of reasons that the warning names."""


class FirstStep:
    """Checks after the first training step of a process whether the backend was given a graph.

    Args:
        backend: The backend's function.
    """

    def __init__(self, backend: Callable[..., Any]) -> None:
        self.given = False
        self._backend = backend
        self._hook: Any = register_optimizer_step_post_hook(self._look)
        atexit.register(self._look)

    def graph_given(self) -> None:
        """Note that Dynamo gave the backend a graph: there is nothing to warn of."""
        self.given = True
        self._done()

    def _look(self, *_: object) -> None:
        # Not before Dynamo looked at a function: optimizers of other models may step first.
        tried = torch_compat.frames_tried()
        if self.given or not tried or not torch_compat.is_asked_for(self._backend):
            return
        self._done()
        reasons = torch_compat.reasons_to_skip()[:SHOWN]
        logger.warning(
            "memory_budget is not kept: torch.compile was asked for this backend, and gave it no graph of the %d "
            "functions that it looked at, so everything runs without a plan%s; "
            'TORCH_LOGS="graph_breaks" shows why, and what to change',
            tried,
            f" ({'; '.join(reasons)})" if reasons else "",
        )

    def _done(self) -> None:
        # The hook would run after every step of every optimizer in the process.
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
            atexit.unregister(self._look)
