"""Copies of inputs that the forward changes in place.

The backward runs when such an input holds its new value, so it must neither read the input nor recompute
from it, nor may an inner compiler inline into the backward what the forward computes from it.  So where
anything that the backward reads comes from the old value, directly or through other operators, a real copy is
made at the start of the forward and saved, and all read the copy.  Operators that still read the input itself
are not recomputed (see `changes`).

    y = sin(x * buf.clone() * 3); buf.add_(1)      the backward needs buf as it was

What the backward alone changes needs no copy: what reads the old value runs before the change, in the forward, or in
the backward in the order of the program (see `phases`), and is not recomputed either.
"""

from __future__ import annotations

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.changes import changed_by_forward
from remat_compiler.capture.phases import find_phases
from remat_compiler.capture.source import input_names
from remat_compiler.capture.storages import find_roots
from remat_compiler.errors import Unplannable
from remat_compiler.ir.graph import Phase

_COPY = torch.ops.aten.copy_.default


def protect_changed_inputs(joint: fx.GraphModule, num_fwd_outputs: int) -> int:
    """Give the backward a copy of each input that it reads and the forward changes; returns how many were made.

    Raises:
        Unplannable: Such an input overlaps itself, as sliding windows do: no copy is like it.
    """
    graph = joint.graph
    changed = changed_by_forward(graph)
    if not changed:
        return 0
    fwd_outputs, _ = torch_compat.joint_outputs(joint, num_fwd_outputs)
    needed = sorted(_needed_by_backward(graph, find_phases(graph, fwd_outputs), changed), key=lambda n: n.name)
    for placeholder in needed:
        if _overlaps_itself(placeholder.meta["val"]):
            name = input_names(joint)[placeholder.name] or placeholder.name
            raise Unplannable(f"the input {name}, which overlaps itself, is changed in place")
    for placeholder in needed:
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


def _overlaps_itself(value: torch.Tensor) -> bool:
    """Whether two elements may lie at one address.

    A part of such a tensor that is written shows in other parts, of which only the tensor itself knows.
    """
    if value.layout is not torch.strided or not torch_compat.size_hint(value.numel()):
        return False
    reach = 0
    for stride, size in sorted(
        zip(map(torch_compat.size_hint, value.stride()), map(torch_compat.size_hint, value.shape))
    ):
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _is_write_to(node: fx.Node, argument: fx.Node) -> bool:
    """Whether `node` only writes `argument` (a plain copy into it)."""
    return node.target is _COPY and node.args[0] is argument and node.args[1] is not argument
