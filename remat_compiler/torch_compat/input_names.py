"""Sources of the inputs of Dynamo's graph, and of the inputs of a joint graph."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx
from torch._functorch._aot_autograd.descriptors import AOTInput, PlainAOTInput, PlainAOTOutput, TangentAOTInput


def input_sources(gm: fx.GraphModule) -> tuple[str, ...]:
    """For each input of Dynamo's graph the expression that its guards name it by; empty if there is none."""
    found = []
    for node in gm.graph.find_nodes(op="placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None)
        # A property from torch 2.12 on.
        name = getattr(source, "name", "")
        found.append(str(name() if callable(name) else name))
    return tuple(found)


def input_position(node: fx.Node) -> int | None:
    """Position of an input of the joint graph among those of Dynamo's graph; `None` if it is none of them as it is."""
    origin = node.meta.get("desc")
    return origin.idx if isinstance(origin, PlainAOTInput) else None


def joint_input_source(node: fx.Node, sources: Sequence[str]) -> str:
    """Description of an input of the joint graph: its entry in `sources` if it is one of Dynamo's; empty if unknown."""
    origin = node.meta.get("desc")
    if isinstance(origin, PlainAOTInput):
        # AOTAutograd may be called with a graph that is not Dynamo's, which has no sources.
        return sources[origin.idx] if origin.idx < len(sources) else ""
    if isinstance(origin, TangentAOTInput) and isinstance(origin.output, PlainAOTOutput):
        return f"gradient of output {origin.output.idx}"
    return origin.expr() if isinstance(origin, AOTInput) else ""
