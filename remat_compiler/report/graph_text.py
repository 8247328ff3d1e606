"""A rewritten graph as readable Python: each value with its bytes, its decision and its source line."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import fx

from remat_compiler import torch_compat


def graph_text(gm: fx.GraphModule, title: str, origins: Mapping[str, str] | None = None) -> str:
    """Text of `gm`, one line per node.

    Args:
        gm: The graph.
        title: First line.
        origins: Origin of nodes, by name: the user's name of an input, else module and source line.
    """
    saved = _outputs(gm)
    lines = [_line(node, node in saved, (origins or {}).get(node.name, "")) for node in gm.graph.nodes]
    return "\n".join([f'"""{title}"""', "", *lines]) + "\n"


def _outputs(gm: fx.GraphModule) -> set[fx.Node]:
    output = gm.graph.output_node()
    # Inputs that are handed through are no decision of the plan.
    return {a for a in output.all_input_nodes if a.op == "call_function"}


def _line(node: fx.Node, returned: bool, origin: str) -> str:
    """One node: its code, then what is known about its value as a comment."""
    # The output has no value of its own to note.
    if node.op == "output":
        return f"return {node.args[0]!r}"
    if node.op == "placeholder":
        code = f"{node.name} = <input>"
    else:
        arguments = [repr(a) for a in node.args] + [f"{k}={v!r}" for k, v in node.kwargs.items()]
        code = f"{node.name} = {_target(node)}({', '.join(arguments)})"
    notes = [_value(node)]
    # The suffix is the only trace of a repetition in the graph.
    if torch_compat.RECOMPUTE_SUFFIX in node.name:
        notes.append("recompute")
    elif returned:
        notes.append("returned")
    notes.append(origin)
    known = ", ".join(n for n in notes if n)
    return f"{code}  # {known}" if known else code


def _target(node: fx.Node) -> str:
    return (
        str(node.target)
        if isinstance(node.target, torch._ops.OpOverload)
        else getattr(node.target, "__name__", str(node.target))
    )


def _value(node: fx.Node) -> str:
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return ""
    shape = "x".join(str(s) for s in value.shape)
    dtype = str(value.dtype).removeprefix("torch.")
    return f"{dtype}[{shape}] {torch_compat.allocated_bytes(value):,} B"
