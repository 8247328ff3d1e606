"""Streams of the user within a graph, which torch traces from 2.13 on."""

from __future__ import annotations

from torch import fx
from torch._ops import OpOverload

_ORDERING = "control_deps"
"""The higher-order operator in which a wait stands, with all values that are to be there before or after it."""


def uses_streams(graph: fx.Graph) -> bool:
    """Whether parts of a graph run on different streams, or wait for streams or events."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    # What runs on the stream of the caller has no number.
    if len({(node.meta.get("custom") or {}).get("stream") for node in calls}) > 1:
        return True
    return any(_is_ordering(node.target) for node in calls)


def _is_ordering(target: object) -> bool:
    if isinstance(target, OpOverload):
        return target.namespace == "streams"
    return str(target) == _ORDERING
