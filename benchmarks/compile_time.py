"""Time of each stage of planning, and of torch's own partitioner, against the size of the joint graph.

    python benchmarks/compile_time.py --layers 6 12 24 48 96 120 --json compile_time.json

The graphs are GPT-2-like with narrow layers, so that size grows and tensors do not.  torch's partitioner runs at
`activation_memory_budget` 0.5 on a copy of the same joint graph, in the same run, and as Inductor runs it: graph
modules write no Python code before it is asked for.

Times are CPU seconds of the process, and the least of `--repeats` runs, since others may use the machine.  *planned* is
all from the joint graph to a verified plan; *all* adds torch's cut without a budget, which is the baseline, and the
graphs of the plan.  Both ratios are to torch's partitioner, which makes its graphs too.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

import torch
from torch import fx
from torch._functorch import config as functorch_config
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn
from torch.fx._lazy_graph_module import _use_lazy_graph_module

from remat_compiler import torch_compat
from remat_compiler.capture.graph import capture
from remat_compiler.costs.table import cost_table
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.plan import Plan
from remat_compiler.partition.partition import partition
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import Partition
from remat_compiler.partition.session import Session
from remat_compiler.simulate.timeline import simulate
from remat_passes.planning.auto import Auto
from remat_passes.registry import make_planner
from zoo.attention import gpt2_of_depth

PLANNED_STAGES = ("prepare", "capture", "costs", "plan", "verify")

Result = TypeVar("Result")


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
    """One graph; CPU seconds.

    Attributes:
        layers: Layers of the model.
        joint_nodes: Nodes of the joint graph.
        ops: Operators of the planned graph.
        stages: Time of each stage.
        planned_s: Time from the joint graph to a verified plan.
        all_s: Time of the whole partition.
        torch_s: Time of torch's partitioner.
        budget_bytes: What was asked for.
        peak_bytes: What the plan takes.
    """

    layers: int
    joint_nodes: int
    ops: int
    stages: dict[str, float]
    planned_s: float
    all_s: float
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


def least(repeats: int, joint: fx.GraphModule, run: Callable[[fx.GraphModule], Result]) -> tuple[float, Result]:
    """CPU seconds of the fastest of several runs, each on a copy of `joint`, and what it returned."""
    fastest: tuple[float, Result] | None = None
    for _ in range(repeats):
        copy = torch_compat.copy_module(joint)
        gc.collect()
        start = time.process_time()
        result = run(copy)
        seconds = time.process_time() - start
        if fastest is None or seconds < fastest[0]:
            fastest = seconds, result
    assert fastest is not None
    return fastest


def run(layers: int, inner: str, fraction: float, repeats: int, time_limit: float) -> Row:
    """Plan one graph for `fraction` of what it takes when everything is saved."""
    joint, keywords = joint_of(layers)
    static = tuple(keywords["static_lifetime_input_indices"])
    size = {"num_fwd_outputs": keywords["num_fwd_outputs"], "static_input_indices": static}
    prepared = torch_compat.copy_module(joint)
    torch_compat.prepare_joint(prepared, **size)
    captured = capture(prepared, fused=inner == "inductor", **size)
    costs = cost_table(captured, (0,) * len(captured.main), "nominal", None)
    forward = [op.id for op in captured.graph.ops if op.phase is Phase.FORWARD]
    rest = [op.id for op in captured.graph.ops if op.phase is not Phase.FORWARD]
    everything = simulate(captured.graph, costs, Plan((*forward, *rest), len(forward))).peak_bytes
    # Between what nothing can go below (gradients, roughly) and everything saved.
    kept = sum(s.size_bytes for s in captured.graph.storages if s.kept)
    budget = int(kept + fraction * (everything - kept))
    request = PartitionRequest(
        budget, take_smallest=True, planner="auto", cost_model="nominal", inner=inner, max_slowdown=None
    )
    planner = make_planner("auto", time_limit=time_limit, reorders=inner == "eager")

    def plan(copy: fx.GraphModule) -> Partition:
        with mock.patch("time.perf_counter", time.process_time):
            return partition(copy, request, plan_with=planner.plan, session=Session(), **size)

    def partition_by_torch(copy: fx.GraphModule) -> object:
        with functorch_config.patch(activation_memory_budget=0.5), _use_lazy_graph_module(True):
            return min_cut_rematerialization_partition(copy, None, **keywords)

    torch_s, _ = least(repeats, joint, partition_by_torch)
    all_s, made = least(repeats, joint, plan)
    stages: dict[str, float] = dict(made.stages)
    return Row(
        layers=layers,
        joint_nodes=made.joint_nodes,
        ops=len(made.problem.graph.ops),
        stages=stages,
        planned_s=sum(seconds for name, seconds in stages.items() if name in PLANNED_STAGES),
        all_s=all_s,
        torch_s=torch_s,
        budget_bytes=budget,
        peak_bytes=made.peak_bytes,
    )


def main() -> None:
    """Run the chosen sizes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", nargs="*", type=int, default=[6, 12, 24, 48, 96, 120])
    parser.add_argument("--inner", default="inductor", choices=["eager", "inductor"])
    parser.add_argument("--fraction", type=float, default=0.5, help="budget between what is kept and everything saved")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--time-limit", type=float, default=Auto().time_limit, help="of auto; 0: its quick search")
    arguments = parser.parse_args()
    run(
        1, arguments.inner, arguments.fraction, 1, arguments.time_limit
    )  # compiled loops and torch's lazy imports are not what is timed
    rows = []
    names = (*PLANNED_STAGES, "torch partition", "lower")
    print(
        f"{'nodes':>7} {'ops':>6} "
        + " ".join(f"{n:>9}" for n in names)
        + f" {'planned':>9} {'all':>9} {'torch@0.5':>9} planned/torch all/torch"
    )
    for layers in arguments.layers:
        row = run(layers, arguments.inner, arguments.fraction, arguments.repeats, arguments.time_limit)
        rows.append(row)
        cells = " ".join(f"{row.stages.get(n, 0.0):{max(9, len(n))}.3f}" for n in names)
        print(
            f"{row.joint_nodes:7d} {row.ops:6d} {cells} {row.planned_s:9.3f} {row.all_s:9.3f} {row.torch_s:9.3f} "
            f"{row.planned_s / row.torch_s:13.3f} {row.all_s / row.torch_s:9.3f}",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(r) for r in rows], indent=1))


if __name__ == "__main__":
    main()
