"""Where the inputs of Dynamo's graph come from, and which of them an input of a joint graph is."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx
from torch._functorch._aot_autograd.descriptors import AOTInput, PlainAOTInput, PlainAOTOutput, TangentAOTInput


def input_sources(gm: fx.GraphModule) -> tuple[str, ...]:
    """For each input of Dynamo's graph the expression that its guards name it by, or empty where there is none."""
    found = []
    for node in gm.graph.find_nodes(op="placeholder"):
        source = getattr(node.meta.get("grapharg"), "source", None)
        # A property from torch 2.12 on.
        name = getattr(source, "name", "")
        found.append(str(name() if callable(name) else name))
    return tuple(found)


def joint_input_source(node: fx.Node, sources: Sequence[str]) -> str:
    """What an input of the joint graph is, in the words of `sources` where it is one of Dynamo's; empty if unknown."""
    origin = node.meta.get("desc")
    if isinstance(origin, PlainAOTInput):
        return sources[origin.idx] if origin.idx < len(sources) else ""
    if isinstance(origin, TangentAOTInput) and isinstance(origin.output, PlainAOTOutput):
        return f"gradient of output {origin.output.idx}"
    return origin.expr() if isinstance(origin, AOTInput) else ""
