"""Check what `make dist` built: it is whole, installs on any machine, and trains a step where nothing else is.

    python .ci/check_dist.py dist

The wheel is installed into a new environment, beside the packages of the interpreter that runs this: torch is there
already, and no registry is asked.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from remat_compiler.version import __version__  # noqa: E402 - found by the line above

LARGEST = {".tar.gz": 6_000_000, ".whl": 2_000_000}
"""Bytes that an archive may have, by its ending."""
LEFT_OUT = ("benchmarks/", ".gitignore")
"""Beginnings of what need not be in the archive of sources; its tests show what they need of it."""
PACKAGED = (".py", "py.typed")
TRAINS = """
import sys
from pathlib import Path
import torch
import remat_compiler

assert Path(sys.prefix) in Path(remat_compiler.__file__).parents, remat_compiler.__file__
torch.manual_seed(0)
model = torch.nn.Sequential(*(layer for _ in range(4) for layer in (torch.nn.Linear(64, 256), torch.nn.GELU(),
                                                                    torch.nn.Linear(256, 64))))
x = torch.randn(512, 64)
model(x).square().mean().backward()
expected = [parameter.grad.clone() for parameter in model.parameters()]
model.zero_grad()
compiled = torch.compile(model, backend="remat", options={"memory_budget": 0.6})
compiled(x).square().mean().backward()
for parameter, gradient in zip(model.parameters(), expected):
    torch.testing.assert_close(parameter.grad, gradient)
(report,) = remat_compiler.reports()
assert report.peak_bytes <= report.budget_bytes < report.peak_before_bytes
print(report.graph_name, report.peak_bytes, "of", report.budget_bytes, "bytes")
"""
TESTS = ("tests/test_layering.py", "tests/test_front_page.py", "tests/benchmarks/test_instances.py")
"""Tests that read most of what is in the archive of sources."""


def main(folder: Path) -> None:
    """Check the archive of sources and the wheel in `folder`."""
    (sources,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    for path in (sources, wheel):
        suffix = next(end for end in LARGEST if path.name.endswith(end))
        expect(path.stat().st_size <= LARGEST[suffix], f"{path} has {path.stat().st_size} bytes")
        expect(f"-{__version__}" in path.name, f"{path} is not of version {__version__}")
    with tempfile.TemporaryDirectory(prefix="remat-dist-") as scratch:
        check_sources(sources, Path(scratch) / "sources")
        check_wheel(wheel)
        check_installed(wheel, Path(scratch) / "environment")
    print(f"{sources} and {wheel} are whole; the wheel installs on any machine, and has trained a step")


def check_sources(archive: Path, folder: Path) -> None:
    """All that is needed to build and to test is there; the tests that read most of it pass."""
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    (top,) = folder.iterdir()
    # What was built from such an archive has no history.
    listed = run(["git", "ls-files"], ROOT) if (ROOT / ".git").exists() else ""
    wanted = [name for name in listed.splitlines() if not name.startswith(LEFT_OUT)]
    missing = [name for name in wanted if not (top / name).is_file()]
    expect(not missing, f"{archive} lacks {missing[:10]}")
    path = [str(top / name) for name in (".", "passes", "benchmarks", "tests")]
    run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS], top, {"PYTHONPATH": ":".join(path)})


def check_wheel(wheel: Path) -> None:
    """It is for any machine, and has all modules and nothing that was compiled."""
    expect(wheel.name.endswith("-py3-none-any.whl"), f"{wheel} is for some machines alone")
    with zipfile.ZipFile(wheel) as packed:
        found = {name for name in packed.namelist() if ".dist-info/" not in name}
    packages = ((ROOT, "remat_compiler"), (ROOT / "passes", "remat_passes"))
    wanted = {
        str(file.relative_to(base))
        for base, name in packages
        for file in (base / name).rglob("*")
        if file.name.endswith(PACKAGED)
    }
    expect(found == wanted, f"{wheel} has other files than the packages: {sorted(found ^ wanted)[:10]}")


def check_installed(wheel: Path, environment: Path) -> None:
    """In a new environment the command answers, and a step trains."""
    venv.create(environment, with_pip=False)
    binaries = environment / ("Scripts" if os.name == "nt" else "bin")
    install = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    run([*install, "--python", str(binaries / "python"), "install", "--no-deps", "--no-index", str(wheel)], ROOT)
    own = Path(sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)}))
    # Packages of this interpreter are found behind the new environment's own; what they install beside is not run.
    (own / "packages-of-the-build.pth").write_text(f"{sysconfig.get_path('purelib')}\n", encoding="utf-8")
    said = run([str(binaries / "remat"), "--version"], environment)
    expect(said == f"remat {__version__}\n", f"remat --version says {said!r}")
    print(run([str(binaries / "python"), "-c", TRAINS], environment, {"REMAT_CACHE_DIR": str(environment / "cache")}))


def run(command: list[str], folder: Path, variables: dict[str, str] | None = None) -> str:
    """What a command prints; ends this program with its messages if it fails."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=folder, env={**kept, **(variables or {})}, capture_output=True, text=True, check=False
    )
    expect(done.returncode == 0, f"{' '.join(command[:4])} ... failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def expect(holds: bool, otherwise: str) -> None:
    """End this program with a message unless something holds."""
    if not holds:
        raise SystemExit(f"check_dist: {otherwise}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
