"""The end of a graph, which shows whether the step continues in other graphs."""

from __future__ import annotations

import torch
import torch._dynamo.convert_frame
from torch import fx


def returns_scalar(gm: fx.GraphModule) -> bool:
    """Whether a result of the graph is a single number that may be a loss."""
    values = [node.meta.get("example_value") for node in gm.graph.output_node().all_input_nodes]
    return any(is_scalar(value) for value in values if isinstance(value, torch.Tensor))


def is_scalar(value: torch.Tensor) -> bool:
    """Whether a tensor is a single number at any sizes."""
    # As text: comparing a symbolic size with 1 would put a guard on it.
    return all(str(n) == "1" for n in value.shape)


def ends_at_graph_break(gm: fx.GraphModule) -> bool:
    """Whether Dynamo ended the graph before the user's function did, so that the step continues after it."""
    reason = getattr(gm, "compile_subgraph_reason", None)
    return bool(reason is not None and reason.graph_break)
