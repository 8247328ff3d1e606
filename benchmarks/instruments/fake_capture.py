"""Planning problems of networks of any size, captured on fake tensors: no tensor of them is ever allocated.

An operator is a node of the joint graph, as in eager PyTorch.  Workspaces of a GPU's kernels are not known here, and
counted as nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from remat_compiler import torch_compat
from remat_compiler.capture.graph import capture
from remat_compiler.costs.rates import Rates
from remat_compiler.costs.roofline import Roofline
from remat_compiler.ir.problem import CostTable, RematProblem


class _Joint(BaseException):
    """Ends a compilation once the joint graph is there."""

    def __init__(self, graph: fx.GraphModule, keywords: dict[str, Any]) -> None:
        super().__init__()
        self.graph, self.keywords = graph, keywords


class _Probe(torch_compat.CustomPartitionerFn):
    """Takes the joint graph."""

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **keywords: Any) -> Any:
        raise _Joint(gm, keywords)

    def uuid(self) -> None:
        """Nothing may be served from a cache."""


@dataclass(frozen=True, slots=True)
class Captured:
    """A network as planners see it.

    Attributes:
        joint_nodes: Nodes of the joint graph.
        problems: The problem under the rates of each GPU, by its name, with a budget of one byte.
    """

    joint_nodes: int
    problems: dict[str, RematProblem]


def captured_on_fakes(
    name: str, build: Callable[[], tuple[nn.Module, dict[str, Tensor]]], rates: Mapping[str, Rates]
) -> Captured:
    """A network captured without its memory.

    Args:
        name: Name of the network, for errors.
        build: Makes the network under its loss, and its inputs by keyword.
        rates: Rates of each GPU.

    Raises:
        RuntimeError: No joint graph was made.
    """
    torch._dynamo.reset()

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        return torch_compat.compile_with_interpreter(gm, inputs, _Probe())

    with FakeTensorMode(), torch_compat.partitioner_always_runs():
        module, inputs = build()
        try:
            torch.compile(module, backend=backend, dynamic=False)(**inputs)
        except _Joint as found:
            joint, keywords = found.graph, found.keywords
        else:
            raise RuntimeError(f"no joint graph was made of {name}")
    static = tuple(keywords.get("static_lifetime_input_indices") or ())
    torch_compat.prepare_joint(joint, keywords["num_fwd_outputs"], static)
    captured = capture(joint, num_fwd_outputs=keywords["num_fwd_outputs"], static_input_indices=static, fused=False)
    count = len(captured.graph.ops)
    problems = {}
    for gpu, speeds in rates.items():
        roofline = Roofline(captured, None, speeds)
        times = tuple(roofline.time_ns(op) for op in range(count))
        costs = CostTable(times, (0,) * count, tuple(roofline.provenance(op) for op in range(count)))
        problems[gpu] = RematProblem(captured.graph, costs, 1)
    return Captured(len(joint.graph.nodes), problems)
