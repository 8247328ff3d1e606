"""Write the planning problems of the zoo, as the backend would put them to a planner, for `planner_frontier.py`.

    python benchmarks/capture_problems.py PROBLEMS [--models unet lstm] [--form decomposed] [--cost-model nominal]

Each model gives ``PROBLEMS/NAME.json``, a `RematProblem` of `remat_compiler.ir.json_form` with a budget of one byte.
With nominal costs a problem is the same on every machine, but for workspaces, which are measured where this runs.

The form says what is one operator:

    interpreter    a node of the joint graph under ``inner="eager"``
    decomposed     a node of the joint graph after Inductor's decompositions: what published frontiers are given for
    kernels        what Inductor writes to memory: the problem under ``inner="inductor"``
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.ir.json_form import dumps
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.options import COST_MODELS
from remat_compiler.partition import PartitionRequest, partition
from remat_compiler.runtime.workspace import WorkspaceTable
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

    def __init__(self, form: str, cost_model: str, workspace: WorkspaceTable) -> None:
        inner = "inductor" if form == "kernels" else "eager"
        # Too small for torch's own partition to be asked for, which takes longer than all the rest.
        self.request = PartitionRequest(1, cost_model=cost_model, inner=inner, max_slowdown=None)
        self.workspace = workspace

    def __call__(self, gm: fx.GraphModule, joint_inputs: Sequence[object], **keywords: Any) -> Any:
        return partition(
            gm,
            self.request,
            num_fwd_outputs=keywords["num_fwd_outputs"],
            static_input_indices=tuple(keywords.get("static_lifetime_input_indices") or ()),
            plan_with=_keep,
            workspace=self.workspace,
        )

    def uuid(self) -> None:
        """Nothing may be served from a cache."""


def capture(model: ZooModel, form: str, cost_model: str, workspace: WorkspaceTable) -> RematProblem:
    """The problem of `model`.

    Args:
        model: A model whose step is one graph.
        form: What is one operator, one of `FORMS`.
        cost_model: One of `options.COST_MODELS`.
        workspace: Measured workspaces, filled as needed.

    Raises:
        RuntimeError: No joint graph was made.
    """
    torch._dynamo.reset()
    probe = _Probe(form, cost_model, workspace)
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
    options = parser.parse_args()
    options.problems.mkdir(parents=True, exist_ok=True)
    workspace = WorkspaceTable()
    for name in options.models:
        problem = capture(build(name), options.form, options.cost_model, workspace)
        (options.problems / f"{name}.json").write_text(dumps(problem), encoding="utf-8")
        print(f"{name}: {len(problem.graph.ops)} operators, {problem.costs.step_ns / 1e6:.1f} ms a step", flush=True)


if __name__ == "__main__":
    main()
