"""A training script under ``TORCH_TRACE``: its plans stand in the trace, and tlparse lists them where they belong."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from remat_compiler.ir.json_form import loads
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.problem import RematProblem
from remat_compiler.report.plan_report import PlanReport
from structured_trace import Artifact, read_trace
from trace_format import check_format, events_of, series_of

SCRIPT = Path(__file__).with_name("traced_script.py")
NAMES = ("summary", "report", "problem", "plan", "forward_graph", "backward_graph", "timeline")
COMPILATIONS = ["0/0", "1/0", "0/0", "1/0", "0/1", "0/1"]
"""Both graphs of the step, both again once the step is known, the graph of changing sizes, and its second variant."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace that the script leaves."""
    folder = tmp_path_factory.mktemp("trace")
    environment = {**os.environ, "TORCH_TRACE": str(folder), "REMAT_DISABLE_CACHE": "1"}
    done = subprocess.run([sys.executable, SCRIPT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = folder.iterdir()
    return file


def plans(trace: Path) -> list[dict[str, Artifact]]:
    """The artifacts of each plan by name, in order."""
    found = read_trace(trace)
    assert [one.name for one in found] == [f"remat_{name}" for _ in COMPILATIONS for name in NAMES]
    size = len(NAMES)
    return [{one.name: one for one in found[i : i + size]} for i in range(0, len(found), size)]


def test_each_plan_stands_under_its_compilation_even_if_it_was_made_after_it(trace: Path) -> None:
    found = plans(trace)
    assert [{one.compile_id for one in plan.values()} for plan in found] == [{name} for name in COMPILATIONS]
    graphs = [PlanReport.from_json(plan["remat_report"].text).graph_name for plan in found]
    assert graphs[:2] == graphs[2:4]
    assert len(set(graphs)) == 4


def test_what_stands_there_can_be_read_back(trace: Path) -> None:
    for plan in plans(trace):
        texts = {name.removeprefix("remat_"): one.text for name, one in plan.items()}
        report, problem = PlanReport.from_json(texts["report"]), loads(RematProblem, texts["problem"])
        answer, events = loads(PlanResult, texts["plan"]), events_of(texts["timeline"])
        assert texts["summary"].startswith(f"{report.graph_name}: ")
        assert answer.plan is not None
        assert report.num_ops == len(problem.graph.ops)
        check_format(events)
        assert max(series_of(events, "planned")) == report.estimated_peak_bytes == answer.peak_bytes
        assert texts["forward_graph"].startswith('"""Forward graph."""')
        assert texts["backward_graph"].startswith('"""Backward graph."""')
        assert json.loads(texts["timeline"])["otherData"]["compile_id"] == plan["remat_timeline"].compile_id


def tlparse() -> str | None:
    """The command of this environment, or of the system."""
    return shutil.which("tlparse", path=str(Path(sys.executable).parent)) or shutil.which("tlparse")


@pytest.mark.skipif(tlparse() is None, reason="tlparse is not installed")
def test_tlparse_lists_them_under_their_compilations(trace: Path, tmp_path: Path) -> None:
    command = [str(tlparse()), str(trace), "-o", str(tmp_path / "out"), "--no-browser", "--strict"]
    done = subprocess.run([*command, "--strict-compile-id"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    for compilation in set(COMPILATIONS):
        # Dynamo traces a function again after it found a break: there is a folder for each attempt, and plans in one.
        folders = (tmp_path / "out").glob(f"-_{compilation.replace('/', '_')}_*")
        (folder,) = (folder for folder in folders if any(folder.glob("remat_*")))
        for name in NAMES:
            files = list(folder.glob(f"remat_{name}_*"))
            assert len(files) == COMPILATIONS.count(compilation), (compilation, name)
            for file in files:
                assert f'href="{folder.name}/{file.name}"' in index
