"""Write the planning problems of the zoo, as the backend would put them to a planner, for `planner_frontier.py`.

    python -m instruments.capture_problems PROBLEMS [--models unet lstm] [--form decomposed] [--cost-model nominal]

Each model gives ``PROBLEMS/NAME.json``, a `RematProblem` of `remat_compiler.ir.json_form` with a budget of one byte.
With nominal costs a problem is the same on every machine, but for workspaces, which are measured where this runs.

The form says what is one operator:

    interpreter    a node of the joint graph under ``inner="eager"``
    decomposed     a node of the joint graph after Inductor's decompositions: what published frontiers are given for
    kernels        what Inductor writes to memory: the problem under ``inner="inductor"``

With ``--reference`` each problem holds torch's own partition (min-cut) as well, for the planners that start from it.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.costs.workspace import WorkspaceTable
from remat_compiler.ir.graph import Phase
from remat_compiler.ir.json_form import dumps
from remat_compiler.ir.plan import Plan, PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.options import COST_MODELS
from remat_compiler.partition.partition import partition
from remat_compiler.partition.request import PartitionRequest
from remat_compiler.partition.result import SplitGraphs
from remat_compiler.partition.session import Session
from remat_passes.sequences.sequence import Order, Placement, StepIndex, baseline_order, recompute
from zoo import ZooModel, build, names

FORMS = ("interpreter", "decomposed", "kernels")


class _Captured(BaseException):
    """Ends a compilation once the problem is there."""

    def __init__(self, problem: RematProblem) -> None:
        super().__init__()
        self.problem = problem


def _keep(problem: RematProblem) -> PlanResult:
    """A planner that only wants to see the problem."""
    raise _Captured(problem)


class _Probe(torch_compat.CustomPartitionerFn):
    """Partitions up to the planner."""

    def __init__(self, form: str, cost_model: str, workspace: WorkspaceTable, reference: bool) -> None:
        inner = "inductor" if form == "kernels" else "eager"
        # Too small for torch's own partition to be asked for, which takes longer than all the rest.
        self.request = PartitionRequest(1, cost_model=cost_model, inner=inner, max_slowdown=None)
        self.workspace = workspace
        self.reference = reference

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **keywords: Any) -> Any:
        arguments: dict[str, Any] = {
            "num_fwd_outputs": keywords["num_fwd_outputs"],
            "static_input_indices": tuple(keywords.get("static_lifetime_input_indices") or ()),
            "plan_with": _keep,
            "session": Session(workspace=self.workspace),
        }
        if not self.reference:
            return partition(gm, self.request, **arguments)
        try:
            return partition(copy.deepcopy(gm), self.request, **arguments)
        except _Captured as captured:
            native = partition(gm, replace(self.request, budget_bytes=None), **arguments).graphs
            plan = reference_plan(captured.problem, saved_names(native))
            raise _Captured(replace(captured.problem, reference=plan)) from None

    def uuid(self) -> None:
        """Nothing may be served from a cache."""


def saved_names(cut: SplitGraphs) -> frozenset[str]:
    """Names of the storages that the forward of `cut` saves."""
    lives, boundary = cut.timeline.instances, cut.timeline.boundary
    crossing = lives.storage[(lives.start < boundary) & (lives.last >= boundary)]
    return frozenset(cut.problem.graph.storages[s].name for s in crossing.tolist())


def reference_plan(problem: RematProblem, saved: Collection[str]) -> Plan:
    """The plan of `problem` that saves the storages named `saved`, and makes what else is needed just in time.

    A name that the graph does not know is a value that it does not hold in memory, and is passed over.
    """
    index = StepIndex.of(problem.graph)
    chosen = [storage.name in saved for storage in problem.graph.storages]
    early = [phase is Phase.FORWARD for phase in index.phase]
    for op in reversed(range(len(early))):
        # What is saved runs in the forward, tangent-free or not, and so does what it needs.
        if index.phase[op] is Phase.TANGENT_FREE and any(chosen[s] for s in index.writes[op]):
            early[op] = True
        for s in index.reads[op] if early[op] else ():
            early[index.producer[s]] = True
    lazy = baseline_order(index, Placement.LAZY)
    forward = tuple(op for op, runs in enumerate(early) if runs)
    return recompute(index, Order(forward, tuple(op for op in lazy.backward if not early[op])), chosen)


def capture(
    model: ZooModel, form: str, cost_model: str, workspace: WorkspaceTable, reference: bool = False
) -> RematProblem:
    """The problem of `model`.

    Args:
        model: A model whose step is one graph.
        form: What is one operator, one of `FORMS`.
        cost_model: One of `options.COST_MODELS`.
        workspace: Measured workspaces, filled as needed.
        reference: Whether to ask for torch's own partition as well, which takes a while.

    Raises:
        RuntimeError: No joint graph was made.
    """
    torch._dynamo.reset()
    probe = _Probe(form, cost_model, workspace, reference)
    by_interpreter = form == "interpreter"
    compile_with = torch_compat.compile_with_interpreter if by_interpreter else torch_compat.compile_with_inductor

    def backend(gm: fx.GraphModule, inputs: Any) -> Any:
        return compile_with(gm, inputs, probe)

    with torch_compat.partitioner_always_runs():
        try:
            torch.compile(model.module, backend=backend, dynamic=False)(**model.inputs)
        except _Captured as captured:
            return captured.problem
    raise RuntimeError(f"no joint graph was made of {model.name}; a model of the zoo must give one")


def main() -> None:
    """Write the chosen problems."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problems", type=Path, help="folder to write to")
    parser.add_argument("--models", nargs="*", default=list(names()), choices=names())
    parser.add_argument("--form", default="decomposed", choices=FORMS)
    parser.add_argument("--cost-model", default="nominal", choices=COST_MODELS)
    parser.add_argument("--reference", action="store_true", help="store torch's own partition as well")
    options = parser.parse_args()
    options.problems.mkdir(parents=True, exist_ok=True)
    workspace = WorkspaceTable()
    for name in options.models:
        problem = capture(build(name), options.form, options.cost_model, workspace, options.reference)
        (options.problems / f"{name}.json").write_text(dumps(problem), encoding="utf-8")
        print(f"{name}: {len(problem.graph.ops)} operators, {problem.costs.step_ns / 1e6:.1f} ms a step", flush=True)


if __name__ == "__main__":
    main()
