"""What is compiled while the package is built is all that any plan asks for, and a build never fails by it."""

from __future__ import annotations

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[1]

COMPARE = """
import importlib, json, pkgutil, sys
from dataclasses import replace
from pathlib import Path
import remat_passes
from numba.core.dispatcher import Dispatcher
from instruments.problem_file import read_problem
from remat_passes.ahead_of_time import compile_loops
from remat_passes.planning.auto import Auto
from remat_passes.planning.coop import Coop
from remat_passes.planning.dtr import Dtr
from remat_passes.planning.save_all import SaveAll

modules = [importlib.import_module(m.name) for m in pkgutil.walk_packages(remat_passes.__path__, "remat_passes.")]
ours = [(m, n, v) for m in modules for n, v in vars(m).items() if isinstance(v, Dispatcher)]
loops = {f"{m.__name__}.{n}": v for m, n, v in ours if v.py_func.__module__ == m.__name__}
# Loops that only loops call are loaded together with their callers, and are not counted apart.
entries = {name: loop for name, loop in loops.items() if not loop.targetoptions.get("no_cpython_wrapper")}
forms = lambda: {name: sorted(map(str, loop.signatures)) for name, loop in entries.items()}

compile_loops()
before = forms()
problem = read_problem(Path(sys.argv[1]))
most, least = SaveAll().plan(problem).peak_bytes, Auto(effort=100).smallest_peak(problem).peak_bytes
tight = replace(problem, budget_bytes=(most + least) // 2)
Auto(time_limit=0.5).plan(tight), Auto().plan(tight), Dtr().plan(tight), Coop().plan(tight)
print(json.dumps([before, forms()]))
"""


@pytest.mark.parametrize(
    "name", ["gpt2_small_kernels", "lstm_small_interpreter", "unet_small_interpreter", "chain_skewed_small"]
)
def test_every_form_of_every_loop_is_compiled_before_a_plan_asks_for_it(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, str(ROOT / "benchmarks" / "instances" / f"{name}.json.gz")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    before, after = json.loads(done.stdout.splitlines()[-1])
    assert len(before) > 15
    assert [name for name, forms in before.items() if not forms] == []
    assert before == after


def test_the_loops_are_compiled_with_nothing_but_what_a_build_requires() -> None:
    """An isolated build has no other package, and goes on without the loops: only users would see it, who wait."""
    asked = "from remat_passes.ahead_of_time import compile_loops; import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    # Read by the words, since Python 3.10 has no parser for the format.
    text = (ROOT / "pyproject.toml").read_text()
    required, needed = (
        set(re.findall(r'"([a-z]+)[>=]', re.search(rf"^{key} = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)[1]))
        for key in ("requires", "dependencies")
    )
    assert {"torch", "cloudpickle"} <= needed - required
    assert loaded & needed <= required


@pytest.fixture
def build() -> SimpleNamespace:
    """What ``setup.py`` defines."""
    return SimpleNamespace(**runpy.run_path(str(ROOT / "setup.py")))


def test_a_build_whose_loops_do_not_compile_says_why_and_goes_on(
    build: SimpleNamespace, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "remat_passes"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "ahead_of_time.py").write_text("raise SystemExit('no processor')")
    build.compile_loops([tmp_path])
    assert "the planners' loops were not compiled (no processor); the first plan does it" in capfd.readouterr().err


def test_the_packages_that_are_built_are_the_ones_whose_loops_are_compiled(
    build: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "remat_passes"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    note = (
        "import os, pathlib; pathlib.Path(__file__).with_name('ran').write_text(os.environ.get('NUMBA_CACHE_DIR', ''))"
    )
    (folder / "ahead_of_time.py").write_text(note)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "of the user"))
    build.compile_loops([tmp_path])
    assert (folder / "ran").read_text() == ""
    assert not capfd.readouterr().err


@pytest.mark.parametrize(("compiles", "is_pure"), [("0", True), ("1", False)])
def test_a_wheel_is_one_for_any_machine_unless_it_has_compiled_loops(
    compiles: str, is_pure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_COMPILE_LOOPS", compiles)
    distribution = runpy.run_path(str(ROOT / "setup.py"))["WithLoops"]({"name": "any", "version": "1"})
    wheel = distribution.get_command_obj("bdist_wheel")
    wheel.ensure_finalized()
    assert (wheel.get_tag() == ("py3", "none", "any")) is is_pure
