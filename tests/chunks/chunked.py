"""Programs compiled with their losses or layers in chunks, and nothing planned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from functorch.compile import make_boxed_func
from torch import Tensor, fx, nn
from torch._dynamo.utils import detect_fake_mode
from torch._functorch.aot_autograd import aot_module_simplified
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.fx_passes.joint_graph import joint_graph_passes
from torch._inductor.virtualized import V

from remat_compiler import torch_compat
from remat_compiler.chunks.losses import ChunkedRegion, chunk_losses


@dataclass
class Chunked:
    """A backend that runs joint graphs with their losses, or their layers, in chunks.

    Attributes:
        chunks: How many chunks are asked for.
        decomposed: Whether operators are decomposed as for Inductor.
        cut: What is cut: losses or layers.
        made: What was cut in each graph that was compiled.
        graph: The last joint graph afterwards.
    """

    chunks: int
    decomposed: bool = False
    cut: Callable[[fx.GraphModule, int, int], tuple[ChunkedRegion, ...]] = chunk_losses
    made: list[tuple[ChunkedRegion, ...]] = field(default_factory=list)
    graph: fx.Graph = field(default_factory=fx.Graph)

    @property
    def found(self) -> tuple[ChunkedRegion, ...]:
        """What was cut in the first graph."""
        return self.made[0]

    def __call__(self, module: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
        table = select_decomp_table() if self.decomposed else {}
        return aot_module_simplified(
            module, inputs, fw_compiler=_interpreted, partition_fn=self._cut, decompositions=table
        )

    def _cut(
        self, joint: fx.GraphModule, inputs: Sequence[Any], *, num_fwd_outputs: int, **keywords: Any
    ) -> tuple[fx.GraphModule, fx.GraphModule]:
        if self.decomposed:
            with V.set_fake_mode(detect_fake_mode(inputs)):
                joint_graph_passes(joint)
        torch_compat.prepare_joint(joint, num_fwd_outputs)
        self.made.append(self.cut(joint, num_fwd_outputs, self.chunks))
        joint.graph.lint()
        joint.recompile()
        self.graph = joint.graph
        return torch_compat.native_partition(joint, num_fwd_outputs=num_fwd_outputs, static_input_indices=())


def _interpreted(module: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
    return make_boxed_func(module.forward)


def step(model: Callable[..., Any], parameters: nn.Module, inputs: Sequence[Tensor]) -> list[Tensor]:
    """What the program returns, and the gradients of its parameters and inputs."""
    parameters.zero_grad()
    leaves = [one.detach().requires_grad_(one.is_floating_point()) for one in inputs]
    made = model(*leaves)
    results = list(made) if isinstance(made, tuple) else [made]
    # Another factor than 1, so that a tangent that was taken out is seen.
    sum((i + 1.5) * one.float().sum().to(one.dtype) for i, one in enumerate(results) if one.requires_grad).backward()
    gradients = [one.grad for one in (*leaves, *parameters.parameters()) if one.grad is not None]
    return [one.detach().clone() for one in (*results, *gradients)]


def beside_eager(backend: Chunked, model: nn.Module, given: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """What a step gives in chunks, and what it gives eagerly, by the same random numbers."""
    torch.manual_seed(1)
    made = step(torch.compile(model, backend=backend), model, given)
    torch.manual_seed(1)
    return made, step(model, model, given)
