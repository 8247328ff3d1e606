"""Make the instances that planners are compared on: ``benchmarks/instances/NAME.json.gz``.

    python -m instruments.make_instances --generated [chain_uniform ...]
    python -m instruments.make_instances --captured [mlp lstm ...] [--sizes small] [--forms decomposed kernels]

Captured instances are named ``MODEL_SIZE_FORM``, generated ones ``FAMILY_SIZE``; see `instance_models` and
`generated_instances`.  Times are nominal, so that they are the same on every machine; workspaces of captured ones are
measured where this runs.  Captured ones hold torch's own partition.  Graph nodes and source lines are left out, since
no planner reads them.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from instruments.generated_instances import FAMILIES, generate
from instruments.problem_file import read_problem, without_sources, write_problem
from remat_compiler.ir.problem import RematProblem

INSTANCES = Path(__file__).parents[1] / "instances"
"""The folder of all instances."""
SUFFIX = ".json.gz"


def instance_paths(pattern: str = "*", folder: Path = INSTANCES) -> list[Path]:
    """Files of the instances whose name matches the glob `pattern`, sorted."""
    return sorted(folder.glob(pattern + SUFFIX))


def instance_name(path: Path) -> str:
    """Name of the instance in the file `path`."""
    return path.name.removesuffix(SUFFIX)


def instances(pattern: str = "*", folder: Path = INSTANCES) -> Iterator[tuple[str, RematProblem]]:
    """Name and problem of the instances whose name matches `pattern`; the budget of each is one byte."""
    for path in instance_paths(pattern, folder):
        yield instance_name(path), read_problem(path)


def _write(folder: Path, name: str, problem: RematProblem) -> None:
    path = folder / f"{name}{SUFFIX}"
    write_problem(path, without_sources(problem))
    print(f"{name}: {len(problem.graph.ops)} operators, {path.stat().st_size} bytes", flush=True)


def _generate(options: argparse.Namespace) -> None:
    for family in options.generated or FAMILIES:
        for size in options.sizes:
            _write(options.folder, f"{family}_{size}", generate(family, size))


def _capture(options: argparse.Namespace) -> None:
    # torch and transformers are loaded only where models are captured.
    from instruments.capture_problems import capture
    from instruments.instance_models import MODELS, model_of
    from remat_compiler.costs.workspace import WorkspaceTable

    workspace = WorkspaceTable()
    for name in options.captured or MODELS:
        for size in options.sizes:
            for form in options.forms:
                problem = capture(model_of(name, size), form, "nominal", workspace, reference=True)
                _write(options.folder, f"{name}_{size}_{form}", problem)


def main() -> None:
    """Write the chosen instances."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--generated", nargs="*", help="families; all where none is named")
    parser.add_argument("--captured", nargs="*", help="models; all where none is named")
    parser.add_argument("--sizes", nargs="*", default=["small", "medium", "full"])
    parser.add_argument("--forms", nargs="*", default=["interpreter", "decomposed", "kernels"])
    parser.add_argument("--folder", type=Path, default=INSTANCES)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    if options.generated is not None:
        _generate(options)
    if options.captured is not None:
        _capture(options)


if __name__ == "__main__":
    main()
