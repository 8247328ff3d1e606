"""The direction of imports, read from the sources: lower tiers know nothing of higher ones.

    cli, backend → pipeline → {capture, rewrite, runtime, report} → {costs, simulate} → ir → errors, options

and `remat_passes → remat_compiler.{ir, simulate, costs, rewrite}`; the way back is the registry alone.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"remat_compiler": ROOT / "remat_compiler", "remat_passes": ROOT / "passes" / "remat_passes"}

TIERS: tuple[frozenset[str], ...] = (
    frozenset({"files", "progress", "units", "version"}),
    frozenset({"errors"}),
    frozenset({"option_values"}),
    frozenset({"options"}),
    frozenset({"ir"}),
    frozenset({"torch_compat"}),
    frozenset({"beside_the_plan", "costs", "declared", "simulate"}),
    frozenset({"capture", "rewrite", "runtime", "report"}),
    frozenset({"cutter", "cached_planner", "planner_loops"}),
    frozenset({"partition", "partitioner", "adjust", "graph_key", "refusal", "reporting", "search", "shares"})
    | frozenset({"outcome", "planned_graph", "several_graphs", "pipeline"})
    | frozenset({"changing_graph", "first_step", "graph_levels", "nothing_planned", "size_shares"})
    | frozenset({"compiler", "recompilations", "sheltered", "trade_off", "variants"}),
    frozenset({"backend", "cli"}),
)
"""Files and folders of remat_compiler, lowest first; each may import the tiers below it."""

NEIGHBOURS = frozenset(
    {
        ("errors", "version"),
        ("rewrite", "capture"),
        ("partitioner", "partition"),
        ("adjust", "partition"),
        ("reporting", "partition"),
        ("search", "partition"),
        ("search", "adjust"),
        ("search", "refusal"),
        *(("planned_graph", name) for name in ("changing_graph", "partition", "search")),
        ("changing_graph", "search"),
        *(("first_step", name) for name in ("changing_graph", "planned_graph")),
        ("size_shares", "shares"),
        *(("graph_levels", name) for name in ("planned_graph", "search", "shares", "size_shares")),
        *(("several_graphs", name) for name in ("graph_levels", "size_shares")),
        *(("pipeline", name) for name in ("changing_graph", "first_step")),
        *(("several_graphs", name) for name in ("partition", "partitioner", "planned_graph", "search", "shares")),
        *(("pipeline", name) for name in ("adjust", "graph_key", "partition", "search", "compiler")),
        *(("pipeline", name) for name in ("outcome", "planned_graph", "several_graphs", "variants")),
        *(("compiler", name) for name in ("graph_key", "partition", "partitioner", "search")),
        ("trade_off", "partition"),
        *(("variants", name) for name in ("adjust", "partition", "search", "sheltered", "trade_off")),
        *(("sheltered", name) for name in ("partition", "search")),
        *(("outcome", name) for name in ("graph_key", "partition", "reporting", "search")),
    }
)
"""Imports within a tier: importer and imported."""

PASSES_MAY_IMPORT = {
    "planning": frozenset({"errors", "progress", "ir", "simulate", "costs"}),
    "exact": frozenset({"errors", "ir", "simulate"}),
    "reductions": frozenset({"ir", "simulate"}),
    "bounds": frozenset({"ir", "simulate"}),
    "rewriting": frozenset({"errors", "options", "ir", "simulate", "costs", "rewrite", "torch_compat"}),
    "registry": frozenset({"errors"}),
    "ahead_of_time": frozenset({"ir"}),
    "apart": frozenset(),
}
MAY_IMPORT_PASSES = TIERS[-1] | TIERS[-2] | {"cached_planner"}
REGISTRY_SIDE = frozenset(
    {"remat_passes.registry", "remat_passes.planning.interface", "remat_passes.bounds.lower_bound"}
    | {"remat_passes.reductions.fingerprint", "remat_passes.planning.saved_layers"}
)
NO_TORCH_PASSES = tuple(f"remat_passes.{name}" for name in ("planning", "exact", "reductions", "ahead_of_time"))
WITHOUT_TORCH = ("remat_compiler.errors", "remat_compiler.options", "remat_compiler.ir", "remat_compiler.simulate")
PRIVATE_BUT_TYPES = frozenset({"torch._ops"})
"""Classes of operators that torch names in no public module; needed in annotations and isinstance."""


@cache
def sources() -> dict[str, ast.Module]:
    """Every module of both packages, parsed."""
    found = {}
    for package, folder in PACKAGES.items():
        for file in sorted(folder.rglob("*.py")):
            parts = [package, *file.relative_to(folder).with_suffix("").parts]
            name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
            found[name] = ast.parse(file.read_text(encoding="utf-8"), str(file))
    return found


@cache
def imports(module: str) -> tuple[tuple[str, int], ...]:
    """What `module` imports anywhere in it, with lines; modules where they can be told from names."""
    found: list[tuple[str, int]] = []
    for node in ast.walk(sources()[module]):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}:{node.lineno}: relative import; write the whole name"
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                found.append((submodule if submodule in sources() else str(node.module), node.lineno))
    return tuple(found)


def unit(module: str) -> str:
    """The file or folder of its package that `module` belongs to."""
    return module.split(".")[1] if "." in module else ""


def tier(name: str) -> int:
    for number, names in enumerate(TIERS):
        if name in names:
            return number
    pytest.fail(f"remat_compiler/{name} has no tier: give it one in {Path(__file__).name} and in CONTRIBUTING.md")


COMPILER = sorted(m for m in sources() if m.startswith("remat_compiler."))
PASSES = sorted(m for m in sources() if m.startswith("remat_passes."))


@pytest.mark.parametrize("module", COMPILER)
def test_the_compiler_imports_downwards(module: str) -> None:
    own = unit(module)
    for target, line in imports(module):
        where = f"{module}:{line} imports {target}"
        if target.split(".")[0] == "remat_compiler":
            other = unit(target)
            assert other, f"{where}: the package itself; import the module that defines the name"
            lower = tier(other) < tier(own)
            assert other == own or lower or (own, other) in NEIGHBOURS, f"{where}: against the direction"
        if target.split(".")[0] == "remat_passes":
            assert own in MAY_IMPORT_PASSES, f"{where}: passes are found by the pipeline, through the registry"
            assert target in REGISTRY_SIDE, f"{where}: ask the registry for it by name"


@pytest.mark.parametrize("module", PASSES)
def test_passes_know_the_compilers_data_only(module: str) -> None:
    own = unit(module)
    assert own in PASSES_MAY_IMPORT, f"remat_passes/{own} has no rule: give it one in {Path(__file__).name}"
    for target, line in imports(module):
        if target.split(".")[0] == "remat_compiler":
            assert unit(target) in PASSES_MAY_IMPORT[own], f"{module}:{line} imports {target}: against the direction"


@pytest.mark.parametrize("module", [*COMPILER, *PASSES])
def test_private_torch_goes_through_one_file(module: str) -> None:
    if unit(module) == "torch_compat":
        return
    private = [(t, line) for t, line in imports(module) if t.startswith("torch._") and t not in PRIVATE_BUT_TYPES]
    assert not private, f"{module} imports {private}: go through torch_compat.py"


def test_there_are_no_import_cycles() -> None:
    graph = nx.DiGraph()
    for module in sources():
        graph.add_edges_from((module, target) for target, _ in imports(module) if target in sources())
    cycles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert cycles == []


def test_planning_needs_no_torch() -> None:
    """Imported for real: what these modules import imports no torch either."""
    planning = [m for m in sources() if m.startswith(NO_TORCH_PASSES)]
    modules = [m for m in sources() if m.startswith(WITHOUT_TORCH)] + planning
    path = [str(folder.parent) for folder in PACKAGES.values()]
    command = (
        f"import importlib, sys\nsys.path[:0] = {path}\n"
        f"for module in {sorted(modules)}: importlib.import_module(module)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
