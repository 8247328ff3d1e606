"""The direction of imports, read from the sources: a room may import what stands below it in the list, and no other.

A room is a folder of a package, or a file at its root.
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

COMPILER = (
    *(
        "cli",
        "trainers",
        "fitting",
        "compiled_module",
        "backend",
        "pipeline",
        "graphs",
        "step_budget",
        "dynamic_shapes",
        "watching",
        "compilation",
        "partition",
        "rewrite",
        "chunks",
    ),
    *(
        "dry_run",
        "plan_cache",
        "capture",
        "report",
        "costs",
        "offload",
        "gradients",
        "arena",
        "torch_compat",
        "distributed",
        "observer",
        "stats",
    ),
    *(
        "step_model",
        "simulate",
        "ir",
        "progress",
        "files",
        "options",
        "memory_budget",
        "option_values",
        "devices",
        "operators",
        "errors",
        "log",
        "units",
    ),
    "version",
)
PASSES = (
    *(
        "ahead_of_time",
        "planning",
        "layers",
        "search",
        "policies",
        "blocks",
        "chains",
        "moves",
        "orders",
        "bounds",
        "exact",
    ),
    *("eviction", "transfers", "layout", "sequences", "apart", "tables"),
)
"""Each room of both packages, from the top."""
REGISTRY = "remat_passes.registry"
"""The only module of passes that the compiler imports; it finds the others when they are asked for."""
DATA = frozenset({"simulate", "ir", "progress", "errors", "log"})
"""Rooms of the compiler that passes may import."""
WITHOUT_TORCH = (
    *("remat_compiler.errors", "remat_compiler.options", "remat_compiler.ir", "remat_compiler.simulate"),
    "remat_compiler.step_model",
    "remat_compiler.operators",
    "remat_passes",
)
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


def place(module: str) -> tuple[str, int]:
    """The package of `module`, and how far down in it its room stands."""
    package, _, _ = module.partition(".")
    rooms = {"remat_compiler": COMPILER, "remat_passes": PASSES}[package]
    if unit(module) not in rooms:
        pytest.fail(f"{package}/{unit(module)} has no place: give it one in {Path(__file__).name} and CONTRIBUTING.md")
    return package, rooms.index(unit(module))


def may_import(module: str, target: str) -> bool:
    """Whether that is the direction of imports."""
    if target == REGISTRY:
        return module.startswith("remat_compiler.")
    if module == REGISTRY:
        return unit(target) in (DATA if target.startswith("remat_compiler.") else {"tables"})
    (own, height), (other, lower) = place(module), place(target)
    if own != other:
        return own == "remat_passes" and unit(target) in DATA
    return lower >= height


def test_imports_go_down() -> None:
    ours = tuple(f"{package}." for package in PACKAGES)
    against = [
        f"{module}:{line} imports {target}"
        for module in sources()
        if module not in PACKAGES
        for target, line in imports(module)
        if target.startswith(ours) and not may_import(module, target)
    ]
    assert against == []


def test_no_module_imports_its_whole_package() -> None:
    assert [f"{m}:{line}" for m in sources() for target, line in imports(m) if target in PACKAGES] == []


def test_private_torch_goes_through_one_folder() -> None:
    private = [
        f"{module}:{line} imports {target}"
        for module in sources()
        if unit(module) != "torch_compat"
        for target, line in imports(module)
        if target.startswith("torch._") and target not in PRIVATE_BUT_TYPES
    ]
    assert private == []


def test_no_module_has_a_logger_without_a_sender() -> None:
    found = [
        f"{module}:{node.lineno}"
        for module, tree in sources().items()
        if module != "remat_compiler.log"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (ast.unparse(node.func) in ("logging.getLogger", "logging.warning", "warnings.warn"))
    ]
    assert found == []


def test_there_are_no_import_cycles() -> None:
    graph = nx.DiGraph()
    for module in sources():
        graph.add_edges_from((module, target) for target, _ in imports(module) if target in sources())
    cycles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert cycles == []


def test_planning_needs_no_torch() -> None:
    """Imported for real: what these modules import imports no torch either."""
    modules = [m for m in sources() if m.startswith(WITHOUT_TORCH)]
    path = [str(folder.parent) for folder in PACKAGES.values()]
    command = (
        f"import importlib, sys\nsys.path[:0] = {path}\n"
        f"for module in {sorted(modules)}: importlib.import_module(module)\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_helpers_of_the_tests_are_found_by_their_names() -> None:
    """A folder without `__init__.py` gives way to any module of its name, wherever on the path that stands."""
    imported = {folder.name for folder in (ROOT / "tests").iterdir() if any(helper_modules(folder))}
    modules = {file.stem for room in ("benchmarks", "examples") for file in (ROOT / room).glob("*.py")}
    assert imported & modules == set()


def helper_modules(folder: Path) -> list[Path]:
    """What tests import from `folder` as `folder.module`."""
    return [file for file in folder.glob("*.py") if not file.stem.startswith(("test_", "conftest"))]
