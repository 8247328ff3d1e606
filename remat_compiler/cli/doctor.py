"""`remat doctor`: versions, compilers, devices, the cache folder, and the patches that this project makes in torch."""

from __future__ import annotations

import argparse
import os
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remat_compiler.errors import UnsupportedTorch
from remat_compiler.ir.text_form import table
from remat_compiler.options import Environment
from remat_compiler.units import format_bytes
from remat_compiler.version import TESTED_TORCH, __version__, installed_version

_PACKAGES = ("torch", "triton", "numpy", "numba", "networkx", "PuLP")


@dataclass(frozen=True, slots=True)
class Findings:
    """The result of `remat doctor`.

    Attributes:
        text: The text to print.
        exit_code: 0 if all is well, 1 if something is missing that results or budgets depend on.
    """

    text: str
    exit_code: int


def add_doctor_command(commands: Any) -> None:
    """Add `doctor` to the parser's subcommands."""
    text = "print versions, compilers, devices, the cache folder, and what is changed of torch"
    commands.add_parser("doctor", help=text).set_defaults(command=_doctor)


def _doctor(_: argparse.Namespace) -> Findings:
    """The text of all sections, and exit code 1 if a patch is missing that results or budgets depend on."""
    sections = [("Versions", _versions()), ("Solvers", _solvers()), ("Cache", _cache(Environment.read().cache_dir))]
    try:
        from remat_compiler import torch_compat
    except (ImportError, AttributeError) as error:
        problem = UnsupportedTorch(
            installed_version("torch") or "(not installed)", str(error), "nothing can be compiled"
        )
        return Findings(_shown([*sections, ("Changes of torch", [str(problem)])]), 1)
    patches, missing = _patches(torch_compat.PATCHES)
    verdict = f"missing, though results or budgets depend on it: {', '.join(missing)}" if missing else "nothing"
    # These import torch, so they are added only once that is known to work.
    sections[1:1] = [("Inner compilers", _compilers()), ("Devices", _devices())]
    sections += [("Changes of torch", patches), ("Missing", [verdict])]
    return Findings(_shown(sections), 1 if missing else 0)


def _shown(sections: list[tuple[str, list[str]]]) -> str:
    return "\n".join("".join(f"{line}\n" for line in (title, *(f"  {x}" for x in lines))) for title, lines in sections)


def _versions() -> list[str]:
    """Versions of this project, of Python, and of the packages that the project uses."""
    oldest, newest = (".".join(map(str, version)) for version in TESTED_TORCH)
    rows = [("remat", __version__), ("Python", f"{platform.python_version()} on {platform.platform()}")]
    notes = {"torch": f"  (tested: {oldest} to {newest})"}
    rows += [(name, (installed_version(name) or "not installed") + notes.get(name, "")) for name in _PACKAGES]
    return table(rows)


def _solvers() -> list[str]:
    """Solvers that the planner `ilp` can use."""
    highs = installed_version("highspy")
    hint = "not installed: pip install remat-compiler[highs]"
    return table([("CBC", _cbc()), ("HiGHS", f"highspy {highs}" if highs else hint)])


def _cbc() -> str:
    """Path of CBC, which PuLP carries for common platforms."""
    try:
        import pulp
    except ImportError:
        return "not found: PuLP brings it"
    # If PuLP carries no CBC, one from the PATH serves.
    carried = getattr(getattr(pulp, "PULP_CBC_CMD", None), "pulp_cbc_path", None)
    return str(pulp.COIN_CMD(path=carried, msg=False).available() or "not found")


def _compilers() -> list[str]:
    """Inner compilers that the option `inner` can name, and what each needs."""
    from remat_compiler import torch_compat

    compiler = torch_compat.cpp_compiler()
    triton = installed_version("triton")
    rows = [
        ("inductor", "CPU", f"C++ compiler {compiler}" if compiler else "no C++ compiler: install one, or set CXX"),
        ("inductor", "CUDA", f"triton {triton}" if triton else "no triton"),
        ("eager", "any", "needs nothing"),
    ]
    return table(rows)


def _devices() -> list[str]:
    """Memory of the machine and of each accelerator."""
    import torch

    from remat_compiler import torch_compat

    memory = torch_compat.total_device_bytes(())
    size = "memory unknown" if memory is None else format_bytes(memory)
    rows = [("cpu", f"{torch.get_num_threads()} threads", size)]
    for index in range(torch.cuda.device_count()):
        device = torch.cuda.get_device_properties(index)
        rows.append((f"cuda:{index}", device.name, format_bytes(device.total_memory)))
    return table(rows)


def _cache(folder: Path | None) -> list[str]:
    """State and size of the folder that holds plans and measured costs."""
    if folder is None:
        return ["nothing is kept: no folder is named, or caching is off; name one by REMAT_CACHE_DIR"]
    if not folder.exists():
        # A folder can be made where the nearest existing one above it can be written.
        above = next((parent for parent in folder.parents if parent.exists()), folder)
        state = "is not there yet" if os.access(above, os.W_OK) else f"cannot be made: {above} cannot be written"
        return [f"{folder} {state}"]
    if not folder.is_dir():
        return [f"{folder} is no folder: name another one by REMAT_CACHE_DIR"]
    sizes = list(_sizes(folder))
    state = "can be written" if os.access(folder, os.W_OK) else "cannot be written: nothing is kept"
    return [f"{folder} {state}; {len(sizes)} files, {format_bytes(sum(sizes))}"]


def _sizes(folder: Path) -> Iterator[int]:
    for path in folder.rglob("*"):
        try:
            if path.is_file():
                yield path.stat().st_size
        # Another process may remove files meanwhile.
        except OSError:
            continue


def _patches(patches: Any) -> tuple[list[str], list[str]]:
    """The table of patches, and the names of missing ones that results or budgets depend on."""
    rows, missing = [], []
    for patch in patches:
        state = _state(patch)
        rows.append((patch.name, patch.purpose.value, state, patch.target))
        # A missing patch that only saves time switches itself off.
        if state not in ("found", "not needed") and patch.purpose.value == "correctness":
            missing.append(patch.name)
    return table(rows), missing


def _state(patch: Any) -> str:
    if not patch.needed:
        return "not needed"
    try:
        patch.place()
    except LookupError as error:
        return f"{error}, so {patch.without}"
    return "found"
