"""Warn if operators that Dynamo left to eager make a call of a compiled module exceed the step's budget on a CPU.

What they save is known as a backward begins (`behind_the_plan`), and what they hold in front of a planned graph from
its arguments (`beside_the_plan`).  What they take for a while, or hold for a backward that never runs, only shows while
they run: one call of each module is measured, once a call before it compiled nothing.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from remat_compiler import torch_compat
from remat_compiler.options import RematOptions
from remat_compiler.step_budget.behind_the_plan import OpenCalls
from remat_compiler.step_budget.compiled_graph import CompiledGraph
from remat_compiler.step_budget.coordinator import share_budget
from remat_compiler.step_budget.nothing_planned import name_of
from remat_compiler.step_model.events import Call, Event, Turn
from remat_compiler.step_model.peak import whole_step_peak
from remat_compiler.watching.open_calls import OpenCall

CALLS = 8
"""Calls of a module, gradients recorded, within which one is measured."""


class InTheCall:
    """Measures a call of all that is compiled by the backend.

    Args:
        backend: The backend's function.
        open_calls: The calls of planned graphs in this thread whose backward has not run.
    """

    def __init__(self, backend: Callable[..., Any], open_calls: OpenCalls) -> None:
        self._open_calls = open_calls
        torch_compat.follow_compiled(backend, self._follow)

    def _follow(self, fn: Any) -> torch_compat.BeginsCall:
        module = _Module(name_of(fn))
        return lambda: self._begins(module)

    def _begins(self, module: _Module) -> torch_compat.EndsCall:
        # On paper nothing takes memory.
        if not torch.is_grad_enabled() or torch_compat.is_on_paper():
            return lambda: False
        module.calls += 1
        before, counts = dict(self._open_calls()), _counts()
        measures = module.is_steady and not torch_compat.profiler_is_running()
        end = torch_compat.begin_record() if measures else None

        def ends() -> bool:
            deltas = None if end is None else end("cpu")
            opened = [call for key, call in tuple(self._open_calls().items()) if before.get(key) is not call]
            module.is_steady = bool(opened) and counts == _counts() and sys.exc_info()[0] is None
            if deltas is None or not module.is_steady:
                return module.calls >= CALLS
            return _judge(module.name, deltas, opened, [*before.values()]) or module.calls >= CALLS

        return ends


@dataclass(slots=True, eq=False)
class _Module:
    """Something compiled.

    Attributes:
        name: The module's class, or the function's name.
        calls: How often it was called while gradients are recorded.
        is_steady: Whether the latest call ran planned graphs, and compiled nothing.
    """

    name: str
    calls: int = 0
    is_steady: bool = False


def _judge(
    name: str,
    deltas: Sequence[int],
    opened: Sequence[OpenCall[CompiledGraph]],
    before: Sequence[OpenCall[CompiledGraph]],
) -> bool:
    """Warn if a call that took `deltas` exceeds the budget; whether no further one is to be measured.

    What is gathered of sharded modules, and what lies on a GPU, is not told apart from what eager operators take, and
    neither is what one plan takes at sizes that it was not made for.

    Args:
        name: The module.
        deltas: Bytes that it took and gave back.
        opened: Its calls of planned graphs.
        before: Those that waited for their backward already.
    """
    graphs = [one.graph for one in opened]
    on_cpu, of_one_size = all(one.runs_on_cpu for one in graphs), not any(one.serves_other_sizes for one in graphs)
    if not (on_cpu and of_one_size) or torch_compat.sharded_now() is not None:
        return True
    graph = opened[-1].graph
    known = [memory for one in opened if (memory := one.memory) is not None]
    if graph.beside is None or len(known) < len(opened):
        return False
    calls = [Call(i) for i in range(len(known))]
    planned = whole_step_peak(known, calls, [Event(Turn.FORWARD, i) for i in range(len(known))])
    held = [one.memory for one in before if _waits_beside(one, graph.options)]
    held_bytes = sum(memory.held_bytes for memory in held if memory is not None)
    # Values on their way out of the plan are none of the budget, though of the same memory if that is a CPU's.
    if not graph.options.offload_budget:
        peak = max(itertools.accumulate(deltas), default=0)
        graph.beside.say_in_call(name, peak, held_bytes, planned, of_part=graph.options.memory_budget.is_part)
    return True


def _waits_beside(call: OpenCall[CompiledGraph], options: RematOptions) -> bool:
    return call.node() is not None and share_budget(call.graph.options, options)


def _counts() -> tuple[int, int]:
    return torch_compat.backwards_begun(), torch_compat.frames_tried()
