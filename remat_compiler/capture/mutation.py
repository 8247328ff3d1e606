"""Inputs that the forward changes in place.

The backward runs when such an input holds its new value, so it must neither read the input nor recompute
from it, nor may an inner compiler inline into the backward what the forward computes from it.  So where
anything that the backward reads comes from the old value, directly or through other operators, a real copy is
made at the start of the forward and saved, and all read the copy.  Operators that still read the input itself
are not recomputed (see `changed_inputs`).

    y = sin(x * buf.clone() * 3); buf.add_(1)      the backward needs buf as it was
"""

from __future__ import annotations

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.operators import is_mutable
from remat_compiler.capture.phases import find_phases
from remat_compiler.capture.storages import find_roots
from remat_compiler.ir.graph import Phase

_COPY = torch.ops.aten.copy_.default


def changed_inputs(graph: fx.Graph) -> set[fx.Node]:
    """Placeholders whose memory the forward, or the wrapper around it, changes in place."""
    changed = torch_compat.mutated_inputs(graph)
    written = [a for node in graph.nodes if node.op == "call_function" for a in _written(node)]
    if written:
        roots = find_roots(graph)
        owners = {roots[a] for a in written if a in roots}
        changed |= {n for n in owners if n.op == "placeholder"}
    return changed


def protect_changed_inputs(joint: fx.GraphModule, num_fwd_outputs: int) -> int:
    """Give the backward a copy of each changed input that it reads; returns how many copies were made."""
    graph = joint.graph
    changed = changed_inputs(graph)
    if not changed:
        return 0
    fwd_outputs, _ = torch_compat.joint_outputs(joint, num_fwd_outputs)
    needed = _needed_by_backward(graph, find_phases(graph, fwd_outputs), changed)
    for placeholder in sorted(needed, key=lambda n: n.name):
        _insert_copy(graph, placeholder)
    return len(needed)


def _needed_by_backward(graph: fx.Graph, phases: dict[fx.Node, Phase], changed: set[fx.Node]) -> set[fx.Node]:
    """Those of the `changed` inputs from whose old value something that the backward reads is computed."""
    roots = find_roots(graph)
    leads_to_backward: set[fx.Node] = set()
    needed: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node.op != "call_function":
            continue
        if phases[node] is not Phase.FORWARD or not leads_to_backward.isdisjoint(node.users):
            leads_to_backward.add(node)
            needed |= {roots[a] for a in node.all_input_nodes if roots.get(a) in changed and not _is_write_to(node, a)}
    return needed


def _insert_copy(graph: fx.Graph, placeholder: fx.Node) -> None:
    """Let every reader of `placeholder` read a saved copy."""
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(last):
        copy = graph.call_function(torch.ops.aten.clone.default, (placeholder,))
    copy.meta = {k: v for k, v in placeholder.meta.items() if k in ("stack_trace", "nn_module_stack")}
    value = placeholder.meta["val"]
    with value.fake_mode:
        copy.meta["val"] = value.clone()
    copy.meta["recompute"] = torch_compat.MUST_SAVE
    copy.meta["partitioner_tag"] = "must_be_in_forward"
    placeholder.replace_all_uses_with(
        copy,
        delete_user_cb=lambda user: user is not copy and user.op != "output" and not _is_write_to(user, placeholder),
    )


def _written(node: fx.Node) -> list[fx.Node]:
    """Arguments that the node changes in place."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not is_mutable(target):
        return []
    found = []
    for argument, value in zip(target._schema.arguments, node.args):
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, fx.Node):
            found.append(value)
    return found


def _is_write_to(node: fx.Node, argument: fx.Node) -> bool:
    """Whether `node` only writes `argument` (a plain copy into it)."""
    return node.target is _COPY and node.args[0] is argument and node.args[1] is not argument
