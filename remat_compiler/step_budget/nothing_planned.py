"""Warn of each compiled module or function that records gradients although none of its graphs is planned.

Dynamo may leave all of it to eager, and then calls no backend, or capture only parts without gradients.  So the calls
are looked at from outside: one that makes nodes of autograd, but opens no call of a planned graph, runs without a plan.
The first call that compiles nothing and tells ends that.  Calls that compile make nodes of their own, so for a module
that has no other ones only the process's end tells; and what they compile may not serve the calls after them, if
Dynamo gives up on the function as it traces it again.
"""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.log import logger_of

logger = logger_of(__name__)

SHOWN = 3
"""Largest number of reasons that the warning names."""
LOOKS = 8
"""Calls in which reasons are looked for."""
_RNN = (
    "nn.RNN, nn.LSTM and nn.GRU are not traced by default: set torch._dynamo.config.allow_rnn = True before the first "
    "call"
)


class NothingPlanned:
    """Looks at the calls of all that is compiled by the backend, until they are seen to run a planned graph or none.

    Args:
        backend: The backend's function.
        open_calls: The calls of planned graphs in this thread whose backward has not run.
    """

    def __init__(self, backend: Callable[..., Any], open_calls: Callable[[], Mapping[int, Any]]) -> None:
        self._open_calls = open_calls
        # Those with a call that made nodes while it compiled.
        self._in_doubt: dict[int, _Compiled] = {}
        torch_compat.follow_compiled(backend, self._follow)
        atexit.register(self._say_of_the_rest)

    def _follow(self, fn: Any) -> torch_compat.BeginsCall:
        compiled = _compiled(fn)
        return lambda: self._begins(compiled)

    def _begins(self, compiled: _Compiled) -> torch_compat.EndsCall:
        if not torch.is_grad_enabled():
            return _undecided
        before = dict(self._open_calls())
        nodes, backwards, tried = _counts()
        # Later calls compile rarely, and reasons are only to name.
        compiled.calls += 1
        reasons = torch_compat.reasons_to_skip() if compiled.calls <= LOOKS else None

        def ends() -> bool:
            nodes_now, backwards_now, tried_now = _counts()
            opened = any(before.get(key) is not call for key, call in self._open_calls().items())
            planned = opened or backwards_now != backwards
            if planned:
                self._in_doubt.pop(id(compiled), None)
                compiled.was_planned = True
                return tried_now == tried
            if reasons is not None:
                compiled.reasons += torch_compat.reasons_to_skip() - reasons
            # A call that raised, such as a refused budget, may not have come to its planned graphs.
            if nodes_now == nodes or sys.exc_info()[0] is not None:
                return False
            # Tracing makes nodes, too: such a call may have recorded no gradient.
            if tried_now != tried:
                if not compiled.was_planned:
                    self._in_doubt[id(compiled)] = compiled
                return False
            self._in_doubt.pop(id(compiled), None)
            compiled.say()
            return True

        return ends

    def _say_of_the_rest(self) -> None:
        for compiled in self._in_doubt.values():
            compiled.say()


@dataclass(slots=True, eq=False)
class _Compiled:
    """Something compiled that ran no planned graph so far.

    Attributes:
        name: The module's class, or the function's name.
        recurrent: Whether it is a module with recurrent layers of torch.
        calls: How often it was called while gradients are recorded.
        was_planned: Whether a call ran a planned graph.
        reasons: How often Dynamo left a part of it to Python, by reason.
    """

    name: str
    recurrent: bool
    calls: int = 0
    was_planned: bool = False
    reasons: Counter[str] = field(default_factory=Counter)

    def say(self) -> None:
        """Warn that the budget has no effect on it."""
        reasons = [reason for reason, _ in self.reasons.most_common(SHOWN)]
        ways = [_RNN] if self.recurrent and not torch_compat.traces_recurrent_layers() else []
        ways.append('TORCH_LOGS="graph_breaks" shows why, and what to change')
        logger.warning(
            "memory_budget is not kept for %s, on which it has no effect%s: torch.compile captured nothing of it that "
            "is trained, so it runs without a plan%s; %s",
            self.name,
            " since it was traced again" if self.was_planned else "",
            f" ({'; '.join(reasons)})" if reasons else "",
            "; ".join(ways),
        )


def _compiled(fn: Any) -> _Compiled:
    """The module that `fn` is, or is a method of, also within wrappers; else the function."""
    owner = _owner(fn)
    return _Compiled(name_of(fn), owner is not None and any(isinstance(m, torch.nn.RNNBase) for m in owner.modules()))


def name_of(fn: Any) -> str:
    """The class of the module that something compiled is, or is a method of; else the function's name."""
    owner = _owner(fn)
    return type(owner).__name__ if owner is not None else getattr(fn, "__qualname__", type(fn).__name__)


def _owner(fn: Any) -> torch.nn.Module | None:
    while fn is not None and not isinstance(fn, torch.nn.Module):
        fn = getattr(fn, "__self__", None) or getattr(fn, "__wrapped__", None)
    return fn


def _counts() -> tuple[int, int, int]:
    return torch_compat.autograd_nodes_made(), torch_compat.backwards_begun(), torch_compat.frames_tried()


def _undecided() -> bool:
    return False
