"""Compile the planners' loops while the package is built, so that nobody's first plan waits for it.

All else about the package stands in ``pyproject.toml``.  Compiled loops are of the machine that builds, so a wheel with
them is one for this platform.  ``REMAT_COMPILE_LOOPS=0`` leaves them out, as `make dist` does: such a wheel installs on
any machine, and the first plan compiles, as it does where compiling fails here.
"""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.build_py import build_py

COMPILES = os.environ.get("REMAT_COMPILE_LOOPS", "1") != "0"


class WithLoops(Distribution):
    """A distribution with compiled loops, which is one for this platform."""

    def has_ext_modules(self) -> bool:
        """Whether it has compiled parts; what the tags of a wheel follow from."""
        return COMPILES


class BuildAndCompile(build_py):
    """`build_py`, and then the loops: beside the built sources, or beside those of an editable installation."""

    def run(self) -> None:
        """Build; what `setuptools` calls."""
        super().run()
        root = Path(__file__).resolve().parent
        folders = [root, root / "passes"] if self.editable_mode else [Path(self.build_lib).resolve()]
        if COMPILES:
            compile_loops(folders)


def compile_loops(folders: list[Path]) -> None:
    """Compile the loops of the packages in `folders`; only said where it fails."""
    path = [*map(str, folders), *filter(None, sys.path)]
    # Numba's own folder is the user's; what is built belongs to the package.
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"PYTHONPATH": os.pathsep.join(path), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "remat_passes.ahead_of_time"]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        why = (result.stderr.strip().splitlines() or ["no message"])[-1]
        print(f"remat: the planners' loops were not compiled ({why}); the first plan does it", file=sys.stderr)


if __name__ == "__main__":
    setup(cmdclass={"build_py": BuildAndCompile}, distclass=WithLoops)
