"""Graphs of which parts run on streams of the user's are not planned, on graphs made by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.errors import Unplannable
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.session import Session
from remat_compiler.partition.stages import JointStages

aten = torch.ops.aten


def joint_graph(*streams: int | None, waits: bool = False) -> fx.GraphModule:
    """Two operators and their gradients on those streams; between them a wait, as torch has it in joint graphs."""
    graph, root = fx.Graph(), torch.nn.Module()
    value, tangent = graph.placeholder("primals_1"), graph.placeholder("tangents_1")
    nodes = [graph.call_function(aten.sin.default, (value,))]
    if waits:
        from torch._inductor.fx_passes.control_dependencies import control_deps

        root.wait = fx.GraphModule({}, fx.Graph())
        ordered = graph.call_function(control_deps, ((nodes[0],), graph.get_attr("wait"), nodes[0]))
        nodes.append(graph.call_function(aten.cos.default, (ordered,)))
    else:
        nodes.append(graph.call_function(aten.cos.default, (nodes[0],)))
    nodes.append(graph.call_function(aten.mul.Tensor, (tangent, nodes[0])))
    graph.output((nodes[1], nodes[2]))
    with torch_compat.FakeTensorMode():
        for node in graph.nodes:
            if node.op in ("placeholder", "call_function"):
                node.meta["val"] = torch.empty(4)
    for node, stream in zip(nodes, streams):
        if stream is not None:
            node.meta["custom"] = {"stream": stream}
    return fx.GraphModule(root, graph)


def prepared(joint: fx.GraphModule) -> int:
    return JointStages(joint, PartitionRequest(1000, inner="eager"), 1, (), Session()).prepare()


@pytest.mark.parametrize(
    "given", [{"streams": (None, 1, None)}, {"streams": (1, 1, 2)}, {"streams": (), "waits": True}]
)
def test_a_graph_on_several_streams_is_not_planned(given: dict[str, Any]) -> None:
    joint = joint_graph(*given.pop("streams"), **given)
    before = joint.graph.python_code("self").src
    with pytest.raises(Unplannable, match="runs on several streams"):
        prepared(joint)
    assert joint.graph.python_code("self").src == before, "torch cuts the graph as it is"


def test_a_graph_on_one_stream_is() -> None:
    assert prepared(joint_graph(1, 1, 1)) == prepared(joint_graph()) > 0


@pytest.mark.skipif(not hasattr(torch.ops.streams, "record_event"), reason="this torch traces no streams")
def test_an_event_alone_is_enough() -> None:
    joint = joint_graph()
    with joint.graph.inserting_before(joint.graph.output_node()):
        joint.graph.call_function(torch.ops.streams.record_event.default, (0, 0))
    assert torch_compat.uses_streams(joint.graph)
