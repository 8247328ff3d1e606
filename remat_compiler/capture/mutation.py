"""Copies of inputs that the forward changes in place.

When the backward runs, such an input holds its new value.  So the backward must neither read the input nor recompute
from it, and an inner compiler must not inline into the backward a value that the forward computes from it.  If
anything that the backward reads comes from the old value, directly or through other operators, a real copy is
made at the start of the forward and saved, and all operators read the copy.  Operators that still read the input
itself are not recomputed (see `changes`).

    y = sin(x * buf.clone() * 3); buf.add_(1)      the backward needs buf as it was

An input that only the backward changes needs no copy: operators that read the old value run before the change, either
in the forward, or in the backward in the order of the program (see `phases`), and are not recomputed either.
"""

from __future__ import annotations

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.changes import changed_by_forward, changed_inputs, written_arguments
from remat_compiler.capture.phases import find_phases
from remat_compiler.capture.source import input_names, is_buffer
from remat_compiler.capture.storages import find_roots, storage_bytes
from remat_compiler.capture.view_scatters import read_by_place
from remat_compiler.errors import Unplannable
from remat_compiler.ir.graph import Phase


def protect_changed_inputs(joint: fx.GraphModule, num_fwd_outputs: int) -> int:
    """Give the backward a copy of each input that it reads and the forward changes; returns the number of copies.

    Raises:
        Unplannable: Such an input overlaps itself, as sliding windows do; a copy would not.  Or it is a part of its
            memory, and read by places in that (`as_strided`), which a copy has not.
    """
    graph = joint.graph
    changed = changed_by_forward(graph)
    if not changed:
        return 0
    fwd_outputs, _ = torch_compat.joint_outputs(joint, num_fwd_outputs)
    # Sorted, so that the copies stand in the same order in every process.
    needed = sorted(_needed_by_backward(graph, find_phases(graph, fwd_outputs), changed), key=lambda n: n.name)
    by_place = read_by_place(graph)
    # All are checked before the first copy is inserted: a refused graph stays as it was.
    for placeholder in needed:
        name = input_names(joint)[placeholder.name] or placeholder.name
        if _overlaps_itself(placeholder.meta["val"]):
            raise Unplannable(f"the input {name}, which overlaps itself, is changed in place")
        if placeholder in by_place and not torch_compat.is_whole_storage(placeholder.meta["val"]):
            raise Unplannable(f"the input {name}, which as_strided reads by places in its memory, is changed in place")
    for placeholder in needed:
        _insert_copy(graph, placeholder)
    return len(needed)


def copy_small_buffers(joint: fx.GraphModule, num_fwd_outputs: int, most_bytes: int) -> int:
    """Copy buffers that the program may update between the forward and the backward; returns how many are copied.

    PyTorch's own backward computes nothing again from a buffer, so it trains such programs: a counter or a queue that
    is updated behind a graph break, the bias of an expert.  A buffer that operators of the backward read in any case is
    not copied: PyTorch saves it, too, and refuses a backward that finds it changed.

    Args:
        joint: The joint graph.
        num_fwd_outputs: How many of its outputs belong to the forward.
        most_bytes: Bytes of all copies; the smallest buffers come first.
    """
    graph = joint.graph
    buffers = {n for n in graph.find_nodes(op="placeholder") if is_buffer(n)} - changed_inputs(graph)
    if not buffers:
        return 0
    phases = find_phases(graph, torch_compat.joint_outputs(joint, num_fwd_outputs)[0])
    roots = find_roots(graph)
    later = [n for n in graph.nodes if n.op == "call_function" and phases[n] is Phase.BACKWARD]
    saved_anyway = {roots[a] for node in later for a in node.all_input_nodes if a in roots}
    sizes = {n: storage_bytes(n) for n in _needed_by_backward(graph, phases, buffers - saved_anyway)}
    copied = 0
    for placeholder in sorted(sizes, key=lambda n: (sizes[n], n.name)):
        most_bytes -= sizes[placeholder]
        if most_bytes >= 0 and not _overlaps_itself(placeholder.meta["val"]):
            _insert_copy(graph, placeholder)
            copied += 1
    return copied


def _needed_by_backward(graph: fx.Graph, phases: dict[fx.Node, Phase], changed: set[fx.Node]) -> set[fx.Node]:
    """The `changed` inputs whose old value the backward needs, directly or through values computed from it."""
    roots = find_roots(graph)
    leads_to_backward: set[fx.Node] = set()
    needed: set[fx.Node] = set()
    # Backwards, so that a node's readers are known before the node.
    for node in reversed(graph.nodes):
        if node.op != "call_function":
            continue
        # Tangent-free nodes count, too: they may run in the backward.
        if phases[node] is not Phase.FORWARD or not leads_to_backward.isdisjoint(node.users):
            leads_to_backward.add(node)
            needed |= {roots[a] for a in node.all_input_nodes if roots.get(a) in changed and not _is_write_to(node, a)}
    return needed


def _insert_copy(graph: fx.Graph, placeholder: fx.Node) -> None:
    """Let every reader of `placeholder` read a saved copy."""
    # Before every operator, and so before the change.
    last = [n for n in graph.nodes if n.op == "placeholder"][-1]
    with graph.inserting_after(last):
        copy = graph.call_function(torch.ops.aten.clone.default, (placeholder,))
    copy.meta = {k: v for k, v in placeholder.meta.items() if k in ("stack_trace", "nn_module_stack")}
    value = placeholder.meta["val"]
    with value.fake_mode:
        copy.meta["val"] = value.clone()
    # Recomputed in the backward, it would copy the new value.
    copy.meta["recompute"] = torch_compat.MUST_SAVE
    copy.meta["partitioner_tag"] = "must_be_in_forward"
    placeholder.replace_all_uses_with(
        copy,
        # The change itself still goes to the input.
        delete_user_cb=lambda user: user is not copy and user.op != "output" and not _is_write_to(user, placeholder),
    )


def _overlaps_itself(value: torch.Tensor) -> bool:
    """Whether two elements may lie at one address.

    A write to one part of such a tensor shows in other parts, and a copy would lose that.
    """
    # Nothing to overlap, or no strides to judge by.
    if value.layout is not torch.strided or not torch_compat.size_hint(value.numel()):
        return False
    reach = 0
    for stride, size in sorted(
        zip(map(torch_compat.size_hint, value.stride()), map(torch_compat.size_hint, value.shape))
    ):
        # Sorted by stride, `reach` is the largest offset of all smaller dimensions: a step must go beyond it.
        if size > 1 and stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def _is_write_to(node: fx.Node, argument: fx.Node) -> bool:
    """Whether `node` changes `argument` itself: by a copy into it, or by other memory or another size for it."""
    return argument in written_arguments(node)
