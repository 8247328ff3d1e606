"""The part of the step that each FX node belongs to."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.changes import changed_by_backward
from remat_compiler.capture.operators import is_random
from remat_compiler.capture.storages import find_roots
from remat_compiler.ir.graph import Phase


def find_phases(graph: fx.Graph, fwd_outputs: Iterable[Any]) -> dict[fx.Node, Phase]:
    """Phase of every node but the output.

    FORWARD nodes are those that the forward outputs or forward-only mutations need.  BACKWARD nodes depend on a tangent
    or mutate in the backward.  The rest is TANGENT_FREE.  An operator that draws random numbers stays in the part in
    which the user's program draws them, or every later draw would differ.  An operator that reads an input which the
    backward changes stays in the backward, too, on its side of the change.
    """
    changing = _readers_of_changed(graph)
    forward = ancestors([n for n in fwd_outputs if isinstance(n, fx.Node)])
    # Effects of the forward have no output that needs them.
    forward |= ancestors([n for n in graph.nodes if n.op == "call_function" and _starts_in_forward(n)])
    # In graph order, so that all arguments of a node have their phase.
    phases: dict[fx.Node, Phase] = {}
    for node in graph.nodes:
        if node.op == "output":
            continue
        starts_backward = (
            torch_compat.is_tangent(node)
            or torch_compat.is_backward_seed_offset(node)
            or torch_compat.must_be_in_backward(node)
            # Drawn in the backward by the program: earlier in the forward, it would shift every later draw.
            or (is_random(node) and torch_compat.made_by_backward(node))
            or (node in changing and node not in forward)
        )
        if starts_backward or any(phases[a] is Phase.BACKWARD for a in node.all_input_nodes):
            phases[node] = Phase.BACKWARD
        # An input that only the backward reads is still handed to the forward.
        elif node in forward or node.op == "placeholder":
            phases[node] = Phase.FORWARD
        else:
            phases[node] = Phase.TANGENT_FREE
    return phases


def _readers_of_changed(graph: fx.Graph) -> set[fx.Node]:
    """Nodes that read the memory of an input that the backward changes in place."""
    changed = changed_by_backward(graph)
    if not changed:
        return set()
    roots = find_roots(graph)
    calls = [n for n in graph.nodes if n.op == "call_function"]
    return {n for n in calls if any(roots.get(a) in changed for a in n.all_input_nodes)}


def _starts_in_forward(node: fx.Node) -> bool:
    """Whether the node runs in the forward even if no forward output needs it."""
    if torch_compat.must_be_in_forward(node):
        return True
    # A check of numbers cannot move: autograd hands sizes to the backward, but no truth values.
    return (is_random(node) or _checks_numbers(node)) and not torch_compat.made_by_backward(node)


def _checks_numbers(node: fx.Node) -> bool:
    """Whether the node is an assertion on numbers that are known only when the program runs."""
    return node.target in (torch.ops.aten._assert_scalar.default, torch.ops.aten.sym_constrain_range_for_size.default)


def ancestors(seeds: Iterable[fx.Node], among: Container[fx.Node] | None = None) -> set[fx.Node]:
    """The nodes and everything that they are computed from, by way of nodes in `among` alone if it is given."""
    found: set[fx.Node] = set()
    stack = list(seeds)
    while stack:
        node = stack.pop()
        if node not in found:
            found.add(node)
            stack += [one for one in node.all_input_nodes if among is None or one in among]
    return found
