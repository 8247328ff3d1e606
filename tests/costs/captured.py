"""Joint graphs of small functions, captured for the cost models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from torch._inductor.decomposition import select_decomp_table

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph, capture


def captured(
    function: Callable[..., torch.Tensor],
    inputs: tuple[torch.Tensor, ...],
    *,
    fused: bool,
    dynamic: bool = False,
    look: Callable[[CapturedGraph], object] = lambda graph: None,
) -> CapturedGraph:
    """The joint graph of `function`; `look` sees it while the compilation is under way."""
    found: list[CapturedGraph] = []

    def cut(joint: fx.GraphModule, joint_inputs: Any, **keywords: Any) -> Any:
        static = tuple(keywords.get("static_lifetime_input_indices") or ())
        torch_compat.prepare_joint(joint, keywords["num_fwd_outputs"], static)
        graph = capture(joint, num_fwd_outputs=keywords["num_fwd_outputs"], static_input_indices=static, fused=fused)
        look(graph)
        found.append(graph)
        return default_partition(joint, joint_inputs, num_fwd_outputs=keywords["num_fwd_outputs"])

    torch._dynamo.reset()
    table = select_decomp_table() if fused else None
    backend = aot_autograd(fw_compiler=_keep, bw_compiler=_keep, partition_fn=cut, decompositions=table)
    total = torch.compile(function, backend=backend, dynamic=dynamic)(*inputs).sum()
    torch.autograd.backward(total)
    (graph,) = found
    return graph


def _keep(gm: fx.GraphModule, inputs: Any) -> Callable[[list[Any]], Any]:
    def run(arguments: list[Any]) -> Any:
        return fx.Interpreter(gm).boxed_run(arguments)

    setattr(run, "_boxed_call", True)  # noqa: B010
    return run
