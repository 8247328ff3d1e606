"""Ask a GPU what holds on it: questions in processes of their own, and a table of their answers; see README.md.

python benchmarks/gpu/run.py --json results.json [--only rivals,masks] [--deadline 480] [--device cuda] [--slots 8]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import tomllib

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
EXPANDABLE = dict.fromkeys(("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"), "expandable_segments:True")
LOOPS = "GPU_LOOPS"
"""Variable that says where a file is made once the planners' loops are compiled; `asked.py` reads it."""
QUIET_AT = 0.7
"""Part of the deadline after which steps are timed, and nothing else runs."""


@dataclass(frozen=True)
class Question:
    """A process.

    Attributes:
        name: Its name.
        asked: Function of `questions`, and its arguments.
        gigabytes: Memory of the GPU that it may take.
        timed: Whether it times steps at its end, for which it waits until nothing else runs.
        environment: Variables that it needs.
    """

    name: str
    asked: tuple[Any, ...]
    gigabytes: int
    timed: bool = False
    environment: dict[str, str] = field(default_factory=dict)


QUESTIONS = (
    Question("card", ("card",), 1),
    # Those that compile longest first.
    Question("large-13b", ("large", "13b", 40, 6 << 30), 92),
    Question("large-32", ("large", "8b", 32, 6 << 30), 55),
    Question("rivals-gpt2-12", ("rivals", "gpt2-12", 0.5), 6, timed=True),
    Question("updates-gpt2", ("updates", "gpt2"), 10, timed=True),
    Question("chunks-adapted", ("chunks", "adapted", "min", 0.2), 40, timed=True),
    Question("chunks-llama", ("chunks", "llama", 0.25), 7, timed=True),
    Question("chunks-gpt2", ("chunks", "gpt2", 0.25), 5, timed=True),
    Question("chunks-vit", ("chunks", "vit", "min", 0.25), 9, timed=True),
    Question("chunked-lengths", ("chunked_lengths", "gpt2", 0.25), 5),
    Question("large-4", ("large", "8b", 4, 4 << 30), 17),
    Question("rivals-gpt2", ("rivals", "gpt2", 0.5), 9, timed=True),
    Question("accumulated", ("accumulated", "gpt2"), 6),
    Question("budgets-gpt2", ("budgets", "gpt2", 0.6, "min"), 9),
    Question("budgets-resnet", ("budgets", "resnet", 0.6), 9),
    Question("masks", ("masks",), 2),
    Question("moves", ("moves",), 6, timed=True),
    Question("budgets-bert", ("budgets", "bert", 0.6), 10),
    Question("lengths", ("lengths",), 6),
    Question("rivals-vit", ("rivals", "vit", 0.5), 9, timed=True),
    Question("budgets-unet", ("budgets", "unet", 0.6, "min"), 14),
    Question("budgets-llama", ("budgets", "llama", 0.9, "min"), 12),
    Question("reserved", ("reserved", False), 6),
    Question("expandable", ("reserved", True), 6, environment=EXPANDABLE),
    Question("early", ("reserved", True, True), 6, environment=EXPANDABLE),
    Question("auto", ("auto",), 40),
    Question("paper", ("paper",), 8),
    Question("tests", ("tests",), 6),
    *(Question(f"drawn-{i}", ("drawn", "eager", i, 500, 4), 2) for i in range(4)),
    *(Question(f"compiled-{i}", ("drawn", "inductor", 1000 + i, 100, 3), 2) for i in range(3)),
)


def environment(folder: Path) -> dict[str, str]:
    """Variables of all processes, in which the backend is found by its name without an installation."""
    found = folder / "site" / "remat-0.dist-info"
    if not found.exists():
        found.mkdir(parents=True)
        (found / "METADATA").write_text("Metadata-Version: 2.1\nName: remat\nVersion: 0\n")
        entry_points = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["entry-points"]
        sections = (
            f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in of.items()) for group, of in entry_points.items()
        )
        (found / "entry_points.txt").write_text("\n".join(sections))
    here = [found.parent, ROOT, ROOT / "passes", ROOT / "benchmarks", ROOT / "tests", os.environ.get("PYTHONPATH", "")]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, here)),
        "OMP_NUM_THREADS": "2",
        "TORCHINDUCTOR_COMPILE_THREADS": "4",
        LOOPS: str(folder / "loops"),
    }


def compile_loops(folder: Path) -> subprocess.Popen[bytes]:
    """Compile the planners' loops, once for all questions, which wait for it where they need them."""
    program = "import pathlib, sys, remat_passes.ahead_of_time as loops; "
    program += "print('the loops were compiled in', loops.compile_side_by_side()); pathlib.Path(sys.argv[1]).touch()"
    command = [sys.executable, "-c", program, str(folder / "loops")]
    return subprocess.Popen(command, env=environment(folder), start_new_session=True)


def signal_all(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a process that leads a group, and to all that it started."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


class Running:
    """The process of a question."""

    def __init__(self, question: Question, folder: Path, options: argparse.Namespace) -> None:
        self.question, self.ready, self.go = question, folder / f"{question.name}.ready", folder / f"{question.name}.go"
        self.log = folder / f"{question.name}.log"
        command = [sys.executable, "-m", "gpu.questions", question.name, json.dumps(question.asked)]
        command += ["--device", options.device, "--folder", str(folder)]
        with self.log.open("wb") as log:
            # In a group of its own, to be stopped together with the processes that it starts.
            self.process = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=environment(folder) | question.environment,
                start_new_session=True,
            )

    def signal(self, number: int) -> None:
        """Send a signal to all of its processes."""
        signal_all(self.process, number)

    @property
    def waits(self) -> bool:
        """Whether it is ready to time steps, and may not yet."""
        return self.ready.exists() and not self.go.exists()


def ask(questions: list[Question], folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All answers, as rows."""
    began, running = time.monotonic(), list[Running]()
    waiting = [one for one in questions if one.gigabytes <= options.gigabytes]
    loops = compile_loops(folder)
    while (waiting or running) and time.monotonic() - began < options.deadline:
        if loops.poll():
            print("nothing is asked further, since the planners cannot run: see above", flush=True)
            break
        running = [one for one in running if one.process.poll() is None]
        quiet = time.monotonic() - began > QUIET_AT * options.deadline
        timing = next((one for one in running if one.go.exists()), None)
        ready = [one for one in running if one.waits]
        if timing is None and ready and (quiet or (len(ready) == len(running) and not waiting)):
            for one in running:
                one.signal(signal.SIGSTOP if one is not ready[0] else signal.SIGCONT)
            ready[0].go.touch()
        elif timing is None:
            for one in running:
                one.signal(signal.SIGCONT)
            busy = [one for one in running if not one.waits]
            used = sum(one.question.gigabytes for one in running)
            if waiting and len(busy) < options.slots and used + waiting[0].gigabytes <= options.gigabytes:
                running.append(Running(waiting.pop(0), folder, options))
                print(f"{time.monotonic() - began:5.0f} s  {running[-1].question.name}", flush=True)
        time.sleep(0.2)
    for one in running:
        one.signal(signal.SIGKILL)
    signal_all(loops, signal.SIGKILL)
    rows = [json.loads(line) for path in sorted(folder.glob("*.rows")) for line in path.read_text().splitlines()]
    cut = [{"question": one.question.name, "case": "", "status": "failed", "why": "time was up"} for one in running]
    why = {one.name: "not asked in time" for one in waiting}
    why |= {one.name: f"needs {one.gigabytes} GB" for one in questions if one.gigabytes > options.gigabytes}
    return rows + cut + [{"question": name, "case": "", "status": "told", "why": text} for name, text in why.items()]


def table(rows: list[dict[str, Any]]) -> str:
    """The answers, those that fall short first."""
    order = ("failed", "short", "ok", "told")
    lines = []
    for row in sorted(rows, key=lambda one: order.index(one["status"])):
        figures = {k: v for k, v in row.items() if k not in ("question", "case", "status", "why")}
        text = ", ".join(f"{k} {v:,}" if isinstance(v, int) else f"{k} {v}" for k, v in figures.items())
        lines.append(f"{row['status']:6}  {row['question']}: {row['case']}  {row.get('why', '')}  {text}"[:300])
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="file for all rows")
    parser.add_argument("--keep", type=Path, help="folder for what the questions printed and wrote, and traces")
    parser.add_argument("--only", default="", help="questions by the beginning of their names, with commas between")
    parser.add_argument("--deadline", type=float, default=470, help="seconds after which all is ended")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--slots", type=int, default=8, help="processes at once")
    parser.add_argument("--gigabytes", type=int, default=76, help="memory of the GPU for all of them")
    options = parser.parse_args()
    wanted = tuple(filter(None, options.only.split(",")))
    questions = [one for one in QUESTIONS if not wanted or one.name.startswith(wanted)]
    with tempfile.TemporaryDirectory() as name:
        rows = ask(questions, Path(name), options)
        for row in rows:
            if row["status"] == "failed":
                log = Path(name) / f"{row['question']}.log"
                print(f"--- {row['question']}\n{log.read_text(errors='replace')[-1500:]}" if log.exists() else "")
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            with tarfile.open(options.keep / "logs.tar.gz", "w:gz") as logs:
                for path in sorted(Path(name).glob("*.log")):
                    logs.add(path, path.name)
            for path in (*Path(name).glob("trace-*"), *Path(name).glob("*.json")):
                shutil.copy(path, options.keep)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    print(table(rows), flush=True)


if __name__ == "__main__":
    main()
