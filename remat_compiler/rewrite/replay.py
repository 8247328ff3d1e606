"""Random operators that run again: the first execution keeps the generator's state, the others replay it.

torch's higher-order operators do both halves; one saved state serves any number of repetitions:

    state, out = run_and_save_rng_state(op, *args)      first execution
    out'       = run_with_rng_state(state, op, *args)   every repetition
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.ir.plan import Plan
from remat_compiler.rewrite.emission import Emission


class ReplayedRandom:
    """Emits the executions of random operators that a plan repeats."""

    def __init__(self, captured: CapturedGraph, plan: Plan, out: Emission) -> None:
        executions = Counter(plan.steps)
        ops = captured.graph.ops
        # An operator that runs once stays as it is: saving a state costs memory.
        self._repeated = {op.id for op in ops if op.replay is not None and executions[op.id] > 1}
        self._state: dict[int, fx.Node] = {}
        self._fused = captured.fused
        self._out = out

    def replays(self, op_id: int) -> bool:
        """Whether the operator is random and runs more than once."""
        return op_id in self._repeated

    def emit(
        self, op_id: int, node: fx.Node, look_up: Callable[[fx.Node], fx.Node], execution: int, name: str
    ) -> fx.Node:
        """Emit one execution; the node that is returned has the value of `node`."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda argument: self._ordered(argument, look_up(argument)))
        new = self._out.node
        # A repetition in the backward makes the state cross, like any value that it reads.
        if execution > 0:
            target = torch_compat.run_with_rng_state()
            state = self._out.here(self._state[op_id])
            return new(target, (state, node.target, *args), kwargs, name=name, meta=node.meta)
        state_value = torch_compat.rng_state_value(node)
        both = new(
            torch_compat.run_and_save_rng_state(),
            (node.target, *args),
            kwargs,
            name="run_and_save_rng_state",
            meta={**node.meta, "val": (state_value, node.meta.get("val"))},
        )
        meta = {**node.meta, "val": state_value}
        self._state[op_id] = new(operator.getitem, (both, 0), {}, name=f"{name}_rng_state", meta=meta)
        # Under the operator's own name, so that readers see no difference.
        return new(operator.getitem, (both, 1), {}, name=name, meta=node.meta)

    def _ordered(self, argument: fx.Node, value: fx.Node) -> fx.Node:
        """The value in the program's order of memory, in which random numbers are drawn; Inductor takes any other."""
        traced = torch_compat.traced_value(argument)
        if not self._fused or not isinstance(traced, torch.Tensor) or traced.dim() < 2:
            return value
        arguments = (value, torch_compat.memory_order(traced))
        meta = torch_compat.meta_of_copy(argument)
        return self._out.node(torch_compat.PUT_IN_ORDER.default, arguments, {}, name="in_order", meta=meta)
