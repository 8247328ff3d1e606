"""Time of each stage of planning, and of torch's own partitioner, against the size of the joint graph.

    python benchmarks/compile_time.py --layers 6 12 24 48 96 120 --json compile_time.json

The graphs are GPT-2-like with narrow layers, so that size grows and tensors do not.  torch's partitioner runs at
`activation_memory_budget` 0.5 on a copy of the same joint graph, in the same run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn

from remat_compiler import torch_compat
from remat_compiler.capture.graph import capture
from remat_compiler.costs.table import cost_table
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.plan import Plan
from remat_compiler.partition import PartitionRequest, partition
from remat_compiler.runtime.workspace import WorkspaceTable
from remat_compiler.simulate.timeline import simulate
from remat_passes.registry import make_planner
from zoo.attention import gpt2_of_depth

PLANNED_STAGES = ("prepare", "capture", "costs", "plan", "verify")


class _Stop(BaseException):
    """Ends a compilation once the joint graph is there."""


class _Probe(CustomPartitionerFn):
    """Keeps the joint graph that AOTAutograd hands to a partitioner."""

    def __init__(self) -> None:
        self.joint: fx.GraphModule | None = None
        self.keywords: dict[str, Any] = {}

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **keywords: Any) -> Any:
        self.joint, self.keywords = gm, keywords
        raise _Stop

    def uuid(self) -> str:
        return str(time.time())


@dataclass(frozen=True)
class Row:
    """One graph; seconds."""

    layers: int
    joint_nodes: int
    ops: int
    stages: dict[str, float]
    planned_s: float
    torch_s: float
    budget_bytes: int
    peak_bytes: int


def joint_of(layers: int) -> tuple[fx.GraphModule, dict[str, Any]]:
    """The joint graph of a GPT-2-like model, after Inductor's joint passes."""
    torch._dynamo.reset()
    module, inputs_by_name = gpt2_of_depth(layers)
    probe = _Probe()

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        return compile_fx(gm, inputs, config_patches={"custom_partitioner_fn": probe, "force_disable_caches": True})

    with contextlib.suppress(_Stop):
        torch.compile(module, backend=backend, dynamic=False)(**inputs_by_name)
    assert probe.joint is not None
    return probe.joint, probe.keywords


def run(layers: int, inner: str, fraction: float) -> Row:
    """Plan one graph for `fraction` of what it takes when everything is saved."""
    joint, keywords = joint_of(layers)
    static = tuple(keywords["static_lifetime_input_indices"])
    size = {"num_fwd_outputs": keywords["num_fwd_outputs"], "static_input_indices": static}
    prepared = torch_compat.copy_module(joint)
    torch_compat.prepare_joint(prepared)
    captured = capture(prepared, fused=inner == "inductor", **size)
    costs = cost_table(captured, (0,) * len(captured.main), "nominal", None)
    forward = [op.id for op in captured.graph.ops if op.phase is Phase.FORWARD]
    rest = [op.id for op in captured.graph.ops if op.phase is not Phase.FORWARD]
    everything = simulate(captured.graph, costs, Plan((*forward, *rest), len(forward))).peak_bytes
    # Between what nothing can go below (gradients, roughly) and everything saved.
    kept = sum(s.size_bytes for s in captured.graph.storages if s.kept)
    budget = int(kept + fraction * (everything - kept))
    copy = torch_compat.copy_module(joint)
    start = time.perf_counter()
    with functorch_config.patch(activation_memory_budget=0.5):
        min_cut_rematerialization_partition(copy, None, **keywords)
    torch_s = time.perf_counter() - start
    request = PartitionRequest(
        budget, take_smallest=True, planner="auto", cost_model="nominal", inner=inner, max_slowdown=None
    )
    made = partition(
        torch_compat.copy_module(joint),
        request,
        plan_with=make_planner("auto").plan,
        workspace=WorkspaceTable(),
        **size,
    )
    stages: dict[str, float] = dict(made.stages)
    return Row(
        layers=layers,
        joint_nodes=made.joint_nodes,
        ops=len(made.cut.problem.graph.ops),
        stages=stages,
        planned_s=sum(seconds for name, seconds in stages.items() if name in PLANNED_STAGES),
        torch_s=torch_s,
        budget_bytes=budget,
        peak_bytes=made.cut.timeline.peak_bytes,
    )


def main() -> None:
    """Run the chosen sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="*", type=int, default=[6, 12, 24, 48, 96, 120])
    parser.add_argument("--inner", default="inductor", choices=["eager", "inductor"])
    parser.add_argument("--fraction", type=float, default=0.5, help="budget between what is kept and everything saved")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    run(1, arguments.inner, arguments.fraction)  # compiled loops and torch's lazy imports are not what is timed
    rows = []
    names = ("prepare", "capture", "costs", "torch partition", "plan", "verify", "lower")
    print(f"{'nodes':>7} {'ops':>6} " + " ".join(f"{n:>9}" for n in names) + f" {'planned':>9} {'torch@0.5':>10} ratio")
    for layers in arguments.layers:
        row = run(layers, arguments.inner, arguments.fraction)
        rows.append(row)
        cells = " ".join(f"{row.stages.get(n, 0.0):9.2f}" for n in names)
        print(
            f"{row.joint_nodes:7d} {row.ops:6d} {cells} {row.planned_s:9.2f} {row.torch_s:10.2f} "
            f"{row.planned_s / row.torch_s:5.2f}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))


if __name__ == "__main__":
    main()
