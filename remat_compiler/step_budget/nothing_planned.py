"""Says so, once, where a program trains by this backend and Dynamo never gave it a graph: no budget is kept then.

The backend is not called in that case.  So torch's own records are looked at after the first step of an optimizer, and
when the process ends, for programs that have none.
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
"""Reasons that are named at most."""


class FirstStep:
    """Looks at the first training step of a process.

    Args:
        backend: The backend's function.
    """

    def __init__(self, backend: Callable[..., Any]) -> None:
        self.given = False
        self._backend = backend
        self._hook: Any = register_optimizer_step_post_hook(self._look)
        atexit.register(self._look)

    def graph_given(self) -> None:
        """Dynamo gave the backend a graph, so that there is nothing to say."""
        self.given = True
        self._done()

    def _look(self, *_: object) -> None:
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
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
            atexit.unregister(self._look)
