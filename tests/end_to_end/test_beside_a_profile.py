"""Plans beside what torch's profiler really recorded of their step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from end_to_end.compiling import compile_with
from end_to_end.traced_script import Halves
from remat_compiler.cli.main import main
from trace_format import check_format, events_of, slices_on


def test_each_graph_of_a_step_stands_where_it_ran(tmp_path: Path) -> None:
    dump, recorded, output = tmp_path / "dump", tmp_path / "profile.json", tmp_path / "merged.json"
    step = compile_with(Halves(broken=True), memory_budget=0.7, cost_model="nominal", dump=str(dump))
    batch = torch.randn(256, 16)
    for _ in range(2):
        step(batch).backward()
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        step(batch).backward()
    profiler.export_chrome_trace(str(recorded))
    assert main(["trace", str(dump), "--with", str(recorded), "-o", str(output)]) == 0
    events = events_of(output.read_bytes())
    plans = [event for event in events if isinstance(event["pid"], int) and event["pid"] >= 5_000_000]
    check_format(plans)
    begins = {
        name: sorted(event["ts"] for event in events if event["name"] == name)
        for name in ("CompiledFunction", "CompiledFunctionBackward")
    }
    parts = slices_on(plans, "step")
    forwards = sorted(event["ts"] for event in parts if event["cat"] == "forward")
    backwards = sorted(event["ts"] for event in parts if event["cat"] == "backward")
    assert len(forwards) == 2
    assert forwards == pytest.approx(begins["CompiledFunction"], abs=0.13)
    # The backward of the graph behind runs first; both run after the modelled forward is over, which takes less time.
    assert backwards == pytest.approx(begins["CompiledFunctionBackward"], abs=0.13)
