"""Calls that may be executed on made-up values while a program is compiled, since they are safe on any.

The table of operators names the operators (`safe` in `operators/row`).  All are torch's own: those of other libraries
might do anything.  A new operator of torch is not executed until the table has it.
"""

from __future__ import annotations

import operator
from functools import cache

import torch
from torch import fx, nn
from torch._ops import HigherOrderOperator, OpOverload

from remat_compiler import torch_compat
from remat_compiler.costs.clock import DEVICE_TYPES
from remat_compiler.costs.op_call import OpCall, allocates_results_only

NAMESPACES = frozenset({"aten", "prims"})


def is_measurable(call: OpCall) -> bool:
    """Whether a call may be executed on made-up values, on a device whose times and allocations can be read.

    An operator that runs another one with a random state saved or set is as safe as that one, and one that runs graphs
    is as safe as all operators in these.
    """
    if call.device_type not in DEVICE_TYPES:
        return False
    if call.bodies:
        # A loop can be run a number of times that no value decides, see `workspace`.
        runs_graphs = torch_compat.facts_of(call.func).runs in ("graphs", "graphs in a loop")
        return runs_graphs and all(_is_safe_body(body.module) for body in call.bodies)
    return _is_safe(call.executed.func)


def _is_safe_body(module: nn.Module) -> bool:
    graphs = [one.graph for one in module.modules() if isinstance(one, fx.GraphModule)]
    return bool(graphs) and all(_is_safe_within(node) for graph in graphs for node in graph.nodes)


def _is_safe_within(node: fx.Node) -> bool:
    if node.op != "call_function":
        return node.op in ("placeholder", "get_attr", "output")
    func = node.target
    # Their own graphs are looked at with those of the outermost one.
    if isinstance(func, HigherOrderOperator):
        return torch_compat.facts_of(func).runs == "graphs"
    if not isinstance(func, OpOverload):
        return getattr(func, "__module__", "") == operator.add.__module__
    reads_values = torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
    return _is_safe(func) or (func.namespace in NAMESPACES and allocates_results_only(func) and not reads_values)


@cache
def _is_safe(func: object) -> bool:
    if not isinstance(func, OpOverload) or func.namespace not in NAMESPACES:
        return False
    name = func._schema.name
    # Operators that work in place are as safe as those that make a result.
    siblings = torch_compat.overloads_of(name.removesuffix("_")) if name.endswith("_") else ()
    return torch_compat.facts_of(func).safe or any(torch.Tag.pointwise in one.tags for one in (func, *siblings))
