"""Capture a forward and a backward graph as one graph and the plan that they execute.

Used for partitions that others made (Inductor's own), so that the same simulator judges them, and to compare the
result of a rewrite with the plan that it was made from.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph, capture
from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan


def capture_pair(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    *,
    num_fwd_outputs: int,
    static_input_indices: tuple[int, ...],
    fused: bool,
) -> tuple[CapturedGraph, Plan]:
    """The step that `forward` followed by `backward` executes; arguments as in `capture`."""
    merged = fx.Graph()
    in_forward = _append(merged, forward, {})
    forward_nodes = set(merged.nodes)
    # A saved value is a placeholder of the same name in the backward.
    in_backward = _append(merged, backward, in_forward)
    outputs = [
        # The other outputs of the forward are its saved values.
        *_mapped_outputs(forward, in_forward)[:num_fwd_outputs],
        *_mapped_outputs(backward, in_backward),
    ]
    merged.output(tuple(outputs))
    module = torch_compat.new_module({**_attributes(forward), **_attributes(backward)}, merged)
    crossing = [n for n in _mapped_outputs(forward, in_forward) if isinstance(n, fx.Node)]
    captured = capture(
        module,
        num_fwd_outputs=num_fwd_outputs,
        static_input_indices=static_input_indices,
        fused=fused,
        # A saved value is in memory, even if only loops read it.
        in_memory=crossing,
    )
    # The merged graph stands in the order of execution, so the plan is every operator once, in order.
    steps = tuple(OpId(i) for i in range(len(captured.main)))
    boundary = sum(node in forward_nodes for node in captured.main)
    return captured, Plan(steps, boundary)


def _append(graph: fx.Graph, module: fx.GraphModule, saved: dict[str, fx.Node]) -> dict[str, fx.Node]:
    """Append copies of the nodes of `module` to `graph`; placeholders named in `saved` become those nodes.

    Returns:
        The copy of each node, by the name that the node has in `module`.
    """
    copies: dict[fx.Node, fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "output":
            continue
        if node.op == "placeholder" and node.name in saved and not torch_compat.is_tangent(node):
            copies[node] = saved[node.name]
        else:
            copies[node] = graph.node_copy(node, lambda n: copies[n])
    return {node.name: copy for node, copy in copies.items()}


def _attributes(module: fx.GraphModule) -> dict[str, Any]:
    """Constants and subgraphs that the module's graph names; each half has only its own."""
    return {str(n.target): attrgetter(str(n.target))(module) for n in module.graph.nodes if n.op == "get_attr"}


def _mapped_outputs(module: fx.GraphModule, copies: dict[str, fx.Node]) -> list[Any]:
    outputs: Any = module.graph.output_node().args[0]
    return [copies[o.name] if isinstance(o, fx.Node) else o for o in outputs]
