"""The joint graph: how torch prepares, classifies and splits it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch import partitioners
from torch._functorch._aot_autograd.descriptors import (
    InputMutationAOTOutput,
    SubclassGetAttrAOTInput,
    SubclassGetAttrAOTOutput,
)
from torch._functorch._aot_autograd.utils import _is_bwd_seed_offset, _is_primal
from torch.utils.checkpoint import CheckpointPolicy

from remat_compiler.torch_compat.duplicates import merge_duplicates
from remat_compiler.torch_compat.mincut import quick_partitioning
from remat_compiler.torch_compat.modules import erase_dead_code, new_module, without_code
from remat_compiler.torch_compat.operators import COLLECTIVE_NAMESPACES
from remat_compiler.torch_compat.patches import MERGING, OWN_BUDGET
from remat_compiler.torch_compat.patching import settings
from remat_compiler.torch_compat.size_nodes import sizes_from_inputs

MUST_SAVE = CheckpointPolicy.MUST_SAVE
RECOMPUTE_SUFFIX = "_recompute"
"""Suffix of the name of a node that is executed again (a number may follow)."""


@cache
def fusible_ops() -> frozenset[Any]:
    """Operator packets that torch's own partitioner considers fusible."""
    return frozenset(op for op in partitioners.get_default_op_list().fusible_ops if not callable_builtin(op))


def callable_builtin(op: Any) -> bool:
    """Whether `op` is a Python function on scalars rather than an operator of torch."""
    return not isinstance(op, (torch._ops.OpOverloadPacket, torch._ops.OpOverload))


def prepare_joint(joint: fx.GraphModule, num_fwd_outputs: int, static_input_indices: Iterable[int] = ()) -> None:
    """Bring the joint graph to the form in which torch's own partitioner would cut it (in place).

    Args:
        joint: Joint graph.
        num_fwd_outputs: How many of its outputs belong to the forward.
        static_input_indices: Positions of the primals that are parameters or buffers.
    """
    # The steps of `min_cut_rematerialization_partition` in its order, but for the sizes.
    erase_dead_code(joint.graph)
    sizes_from_inputs(joint.graph)
    if functorch_config.cse:
        merge_duplicates(joint.graph, joint_outputs(joint, num_fwd_outputs)[1])
    save_collectives(joint)
    # Saves the value between two checkpointed regions, which would else be recomputed with both.
    if partitioners.has_recomputable_ops(joint):
        partitioners.cleanup_recompute_tags(joint, is_default_partition=False)
    partitioners.force_save_effectful_ops(joint)
    partitioners.force_save_bw_mutation_src(joint)
    _note_static_inputs(joint.graph, frozenset(static_input_indices))
    joint.recompile()


def save_collectives(joint: fx.GraphModule) -> None:
    """Have every collective run once, those of checkpoint regions included.

    torch communicates again where the user recomputes a region.  A rank that has a plan saves the results, so one that
    follows torch's partition (more room, a planner that failed) would wait for it without end.
    """
    for node in joint.graph.nodes:
        if isinstance(node.target, torch._ops.OpOverload) and node.target.namespace in COLLECTIVE_NAMESPACES:
            node.meta["recompute"] = MUST_SAVE


def _note_static_inputs(graph: fx.Graph, static: frozenset[int]) -> None:
    """Note on each primal whether it has the same address in every call.

    Since 2.15 Inductor reads the note from the backward's inputs; before, it takes all saved primals for static.
    """
    primals = [node for node in graph.find_nodes(op="placeholder") if _is_primal(node)]
    for position, node in enumerate(primals):
        node.meta["is_static_input"] = position in static


def joint_outputs(joint: fx.GraphModule, num_fwd_outputs: int) -> tuple[list[Any], list[Any]]:
    """Outputs of the forward and of the backward (nodes, or constants such as `None`)."""
    # The last two are descriptions of the outputs.
    fwd, bwd, _, _ = partitioners._extract_fwd_bwd_outputs(joint, num_fwd_outputs=num_fwd_outputs)
    return list(fwd), list(bwd)


def is_tangent(node: fx.Node) -> bool:
    """Whether the placeholder is a gradient that autograd hands to the backward."""
    return node.op == "placeholder" and "tangents" in str(node.target)


def is_backward_seed_offset(node: fx.Node) -> bool:
    """Whether the placeholder is a random seed or offset of the backward."""
    return node.op == "placeholder" and bool(_is_bwd_seed_offset(node))


def must_be_in_forward(node: fx.Node) -> bool:
    """Whether torch pins the node to the forward (an in-place change made there)."""
    return bool(partitioners._must_be_in_forward(node))


def must_be_in_backward(node: fx.Node) -> bool:
    """Whether torch pins the node to the backward (an in-place change made there)."""
    return bool(partitioners._must_be_in_backward(node))


def made_by_backward(node: fx.Node) -> bool:
    """Whether torch traced the node while it ran the backward."""
    return bool(partitioners._has_tag_is_backward(node))


def mutated_inputs(joint_graph: fx.Graph) -> set[fx.Node]:
    """Placeholders whose new data the forward returns, for the wrapper around it to copy into them.

    AOTAutograd describes every input and output of the joint graph; pieces of a tensor subclass count as changed
    together.
    """
    output = joint_graph.output_node()
    # By description, since neither names nor positions link an output to the input that it replaces.
    described = (_of_whole_tensor(d) for d in output.meta.get("desc", ()))
    changed = {d.mutated_input for d in described if isinstance(d, InputMutationAOTOutput)}
    placeholders = [n for n in joint_graph.nodes if n.op == "placeholder"]
    return {n for n in placeholders if _of_whole_tensor(n.meta.get("desc")) in changed}


def _of_whole_tensor(description: Any) -> Any:
    """The description of the tensor subclass that a described tensor is a piece of, else the description itself."""
    # Subclasses nest.
    while isinstance(description, (SubclassGetAttrAOTInput, SubclassGetAttrAOTOutput)):
        description = description.base
    return description


def native_partition(
    joint: fx.GraphModule,
    *,
    num_fwd_outputs: int,
    static_input_indices: tuple[int, ...],
    saved: Iterable[fx.Node] = (),
) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut a prepared joint graph as Inductor does without a budget; `joint` stays as it is.

    Args:
        joint: Joint graph.
        num_fwd_outputs: How many of its outputs belong to the forward.
        static_input_indices: Positions of the primals that are parameters or buffers.
        saved: Values of the forward that the backward never computes again.
    """
    as_prepared = settings({OWN_BUDGET: 1.0, MERGING: False})  # a prepared graph has no duplicates
    with as_prepared, _tags_kept(joint.graph), without_code(), quick_partitioning():
        for node in saved:
            node.meta["recompute"] = MUST_SAVE
        modules = partitioners.min_cut_rematerialization_partition(
            joint,
            None,
            compiler="inductor",
            num_fwd_outputs=num_fwd_outputs,
            static_lifetime_input_indices=list(static_input_indices),
        )
        return _separated(modules)


def stock_partition(joint: fx.GraphModule, joint_inputs: Any, **keywords: Any) -> tuple[fx.GraphModule, fx.GraphModule]:
    """Cut a joint graph as Inductor does by default, with torch's own code alone; arguments as torch gives.

    Only collectives of checkpoint regions are saved, see `save_collectives`.
    """
    save_collectives(joint)
    # The argument that Inductor's own partition function adds.
    asked = {**keywords, "compiler": "inductor"}
    halves: tuple[fx.GraphModule, fx.GraphModule] = partitioners.min_cut_rematerialization_partition(
        joint, joint_inputs, **asked
    )
    return halves


@contextmanager
def _tags_kept(graph: fx.Graph) -> Iterator[None]:
    """Put back the checkpoint tags that torch's partitioner changes, since changing them twice would save more."""
    before = [(node, node.meta["recompute"]) for node in graph.nodes if "recompute" in node.meta]
    try:
        yield
    finally:
        for node in graph.nodes:
            node.meta.pop("recompute", None)
        for node, tag in before:
            node.meta["recompute"] = tag


def _separated(modules: tuple[fx.GraphModule, fx.GraphModule]) -> tuple[fx.GraphModule, fx.GraphModule]:
    """The modules made callable, with `meta` of their own on the placeholders."""
    # torch gives them the dictionaries of the joint graph's placeholders.
    for module in modules:
        for node in module.graph.find_nodes(op="placeholder"):
            node.meta = dict(node.meta)
    forward, backward = modules
    return new_module(forward, forward.graph), new_module(backward, backward.graph)
