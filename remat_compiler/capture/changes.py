"""The inputs that the step changes in place.

Parameters that hooks change once their gradient has left do not count: nothing reads them from there on (`Op.ends`).
"""

from __future__ import annotations

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.storages import find_roots
from remat_compiler.gradients.leave import LEAVE

_COPY = torch.ops.aten.copy_.default


def changed_inputs(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders whose memory the step, or the wrapper around it, changes in place."""
    return changed_by_forward(graph) | changed_by_backward(graph)


def changed_by_forward(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders whose memory the forward, or the wrapper around it, changes in place."""
    calls = [n for n in graph.nodes if n.op == "call_function" and not torch_compat.must_be_in_backward(n)]
    # Two ways to change an input: AOTAutograd's wrapper copies a new value back, or an operator of the graph writes it.
    return torch_compat.mutated_inputs(graph) | _placeholders_written(graph, calls)


def changed_by_backward(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders whose memory operators of the backward change in place."""
    calls = [n for n in graph.nodes if n.op == "call_function" and torch_compat.must_be_in_backward(n)]
    return _placeholders_written(graph, calls)


def given_other_memory(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders that the step gives other memory, as ``x.data = y`` does, rather than other values."""
    calls = (n for n in graph.nodes if n.op == "call_function" and n.target is not _COPY)
    return {argument for node in calls for argument in written_arguments(node) if argument.op == "placeholder"}


def _placeholders_written(graph: fx.Graph, calls: list[fx.Node]) -> set[fx.Node]:
    """Placeholders that own memory that one of the calls changes."""
    written = [argument for node in calls for argument in written_arguments(node)]
    # Most graphs change nothing; finding roots walks the whole graph.
    if not written:
        return set()
    roots = find_roots(graph)
    # A write through a view changes the input that owns the memory.
    return {n for n in (roots[a] for a in written if a in roots) if n.op == "placeholder"}


def written_arguments(node: fx.Node) -> list[fx.Node]:
    """Arguments that the node changes in place."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not target._schema.is_mutable or target is LEAVE:
        return []
    written = [one.name for one in target._schema.arguments if one.alias_info is not None and one.alias_info.is_write]
    given = torch_compat.arguments_by_name(node)
    return [given[name] for name in written if isinstance(given.get(name), fx.Node)]
