"""Random operators that run again: the first execution keeps the generator's state, the others replay it.

torch's higher-order operators do both halves; one saved state serves any number of repetitions:

    state, out = run_and_save_rng_state(op, *args)      first execution
    out'       = run_with_rng_state(state, op, *args)   every repetition
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.ir.plan import Plan


class ReplayedRandom:
    """Emits the executions of random operators that a plan repeats."""

    def __init__(self, captured: CapturedGraph, plan: Plan, graph: fx.Graph) -> None:
        executions = Counter(plan.steps)
        ops = captured.graph.ops
        self._repeated = {op.id for op in ops if op.replay is not None and executions[op.id] > 1}
        self._state: dict[int, fx.Node] = {}
        self._graph = graph

    def replays(self, op_id: int) -> bool:
        """Whether the operator is random and runs more than once."""
        return op_id in self._repeated

    def emit(
        self, op_id: int, node: fx.Node, look_up: Callable[[fx.Node], fx.Node], execution: int, name: str
    ) -> fx.Node:
        """Emit one execution; the node returned holds what `node` would hold."""
        args = fx.map_arg(node.args, look_up)
        kwargs = fx.map_arg(node.kwargs, look_up)
        if execution > 0:
            target = torch_compat.run_with_rng_state()
            new = self._graph.call_function(target, cast("Any", (self._state[op_id], node.target, *args)), kwargs)
            new.meta = dict(node.meta)
            new._rename(name)
            return new
        both = self._graph.call_function(
            torch_compat.run_and_save_rng_state(), cast("Any", (node.target, *args)), kwargs
        )
        both.meta = dict(node.meta)
        both.meta["val"] = (torch_compat.rng_state_value(node), node.meta.get("val"))
        state = self._graph.call_function(operator.getitem, (both, 0))
        state.meta = {**node.meta, "val": both.meta["val"][0]}
        state._rename(f"{name}_rng_state")
        self._state[op_id] = state
        out = self._graph.call_function(operator.getitem, (both, 1))
        out.meta = dict(node.meta)
        out._rename(name)
        return out
