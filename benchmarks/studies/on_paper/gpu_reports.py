"""Memory of training steps that others measured on GPUs, beside what `remat_compiler.fit` says of them on paper.

    python -m studies.on_paper.gpu_reports                       every report, about 10 minutes
    python -m studies.on_paper.gpu_reports --only small-gpt      those whose name has it
    python -m studies.on_paper.gpu_reports --json results/gpu_reports.json

Nobody here ran these steps.  Each report names its source, what was measured, and what is known to differ.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from remat_compiler.devices.allocator_setting import EXPANDABLE
from remat_compiler.errors import RematError
from remat_compiler.fitting.fit_report import FitPoint
from remat_compiler.fitting.made_step import made_step
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.paper_step import counted_point, on_paper
from remat_compiler.fitting.request import FitRequest
from studies.on_paper.gpu_report_steps import REPORTS, Report
from studies.on_paper.gpu_report_steps_read import READ

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Compared:
    """A report, and what the model says."""

    name: str
    device: str
    of: str
    measured_bytes: float
    modelled_bytes: int
    other_bytes: int
    seconds: float
    source: str
    differs: str

    @property
    def error_percent(self) -> float:
        """By how much the model is above what was measured."""
        return 100 * (self.modelled_bytes / self.measured_bytes - 1)


def compared(report: Report) -> Compared:
    """What the model says of the step of a report; for a process that sees no GPU."""
    start = time.perf_counter()
    if report.expandable:
        # The process is the report's own.
        os.environ.update([EXPANDABLE.split("=", 1)])
    with on_paper(report.device) as (gpu, mode):
        request = FitRequest(report.make, report.device, None, (), report.autocast, report.optimizer, {})
        step = made_step(request, None)
        step.leave_eager()
        point = counted_point(step, gpu, mode, None, start)
    allocated = _with_old(point, point.gradient_bytes if report.old_gradients else 0, report.held_bytes)
    allocated -= point.library_bytes * (2 - report.handles) // 2
    modelled = {"allocated": allocated, "reserved": point.reserved_bytes + allocated - point.peak_bytes}
    other = "reserved" if report.of == "allocated" else "allocated"
    return Compared(
        *(report.name, report.device, report.of, report.bytes, modelled[report.of], modelled[other]),
        *(time.perf_counter() - start, report.source, report.differs),
    )


def _with_old(point: FitPoint, gradients: int, held: int) -> int:
    """The peak if gradients of the step before are alive during the forward, and outputs until the next ones."""
    in_pieces = point.peak_bytes - point.resident_bytes - point.step_bytes
    most = max(point.forward_bytes + gradients + held, point.backward_bytes, point.update_bytes + held)
    return point.resident_bytes + most + in_pieces


def main() -> None:
    """Compare the chosen reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", help="part of the names of the reports")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print(f"{'step':32} {'GPU':8} {'figure':9} {'measured':>10} {'modelled':>10} {'off':>8} {'s':>5}")
    found = []
    for report in (*REPORTS, *READ):
        if arguments.only not in report.name:
            continue
        try:
            one: Compared = call_in_process(compared, report)
        except RematError as error:
            print(f"{report.name:32} {report.device:8} failed: {str(error)[-300:]}", flush=True)
            continue
        found.append(one)
        print(
            f"{one.name:32} {one.device:8} {one.of:9} {one.measured_bytes / GIB:10.3f} "
            f"{one.modelled_bytes / GIB:10.3f} {one.error_percent:+7.1f}% {one.seconds:5.0f}",
            flush=True,
        )
    if arguments.json:
        records = [{**asdict(one), "error_percent": one.error_percent} for one in found]
        arguments.json.write_text(json.dumps(records, indent=1))


if __name__ == "__main__":
    main()
