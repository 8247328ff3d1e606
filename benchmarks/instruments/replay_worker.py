"""The half of `replay` that runs under another revision: it plans, in words that every revision understands.

It reads a request as JSON from standard input, ``{"planner": NAME, "questions": [[path, [budget, ...]], ...]}``, and
prints a line of JSON for each plan: path, budget, status, boundary, steps, CPU seconds, error.  A budget of 0 asks for
the smallest peak.  A file that the revision cannot read, or a planner that fails, gives a line with the error.

Instances are of the newest format.  What the revision's own data lacks is dropped where it says nothing (null, empty),
and what it has beyond that takes its default; files are not checked again, since rules of older revisions were others.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from dataclasses import MISSING, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from remat_compiler.ir.codec import decode
from remat_compiler.ir.problem import RematProblem
from remat_passes.registry import make_planner

try:
    from numba.core.event import install_recorder
except ImportError:  # loops run uncompiled
    install_recorder = None


def answer(request: dict[str, Any]) -> None:
    """Print a line for each plan that `request` asks for."""
    planner = make_planner(request["planner"])
    smallest = getattr(planner, "smallest_peak", planner.plan)
    for path, budgets in request["questions"]:
        try:
            problem = read(Path(path))
        except (ValueError, LookupError, TypeError) as error:
            for budget in budgets:
                say(path, budget, error=f"cannot be read: {error}")
            continue
        for budget in budgets:
            asked = replace(problem, budget_bytes=budget)
            try:
                result, seconds = timed(planner.plan if budget else smallest, asked)
            except Exception as error:  # whatever an old planner raises is an answer, and the others go on
                say(path, budget, error=repr(error))
                continue
            say(path, budget, result, seconds)


def timed(plan: Any, problem: RematProblem) -> tuple[Any, float]:
    """What `plan` says of `problem` and its CPU seconds; of a second run where the first had loops compiled."""
    start = time.process_time()
    if install_recorder is None:
        return plan(problem), time.process_time() - start
    with install_recorder("numba:compile") as compiled:
        result = plan(problem)
    seconds = time.process_time() - start
    if compiled.buffer:
        start = time.process_time()
        result = plan(problem)
        seconds = time.process_time() - start
    return result, seconds


def say(path: str, budget: int, result: Any = None, seconds: float = 0.0, error: str = "") -> None:
    """One line of the answer."""
    plan = None if result is None else result.plan
    status = "error" if result is None else result.status.value
    boundary, steps = (0, None) if plan is None else (plan.boundary, list(plan.steps))
    print(json.dumps([path, budget, status, boundary, steps, round(seconds, 4), error]), flush=True)


def read(path: Path) -> RematProblem:
    """The problem in the file, without torch's own partition."""
    document = json.loads(gzip.decompress(path.read_bytes()))
    data = document["data"]
    data["reference"] = None
    return decode(RematProblem, fitted(RematProblem, data))


def fitted(kind: Any, data: Any) -> Any:
    """`data` with exactly the fields that the dataclass `kind`, and those inside it, have under this revision.

    Raises:
        LookupError: A field says something that this revision has no place for, or one is missing without a default.
    """
    if is_dataclass(kind) and isinstance(data, dict):
        hints = get_type_hints(kind)
        lost = [name for name, value in data.items() if name not in hints and value not in (None, "", [], 0)]
        if lost:
            raise LookupError(f"{getattr(kind, '__name__', kind)} has no field for {', '.join(sorted(lost))}")
        defaults = {field.name: field.default for field in fields(kind) if field.default is not MISSING}
        missing = [name for name in hints if name not in data and name not in defaults]
        if missing:
            raise LookupError(f"{getattr(kind, '__name__', kind)} needs {', '.join(missing)}")
        # Documents leave out optional fields that have their defaults.
        left_out = {field.name for field in fields(kind) if field.metadata.get("optional")} - data.keys()
        filled = {name: data[name] if name in data else plain(defaults[name]) for name in hints if name not in left_out}
        return {name: fitted(hints[name], value) for name, value in filled.items()}
    if isinstance(data, list):
        inner = next((argument for argument in get_args(kind) if argument is not Ellipsis), None)
        return [fitted(inner, item) for item in data]
    return data


def plain(value: Any) -> Any:
    """A default as JSON has it."""
    return [] if isinstance(value, (tuple, frozenset)) and not value else getattr(value, "value", value)


if __name__ == "__main__":
    answer(json.load(sys.stdin))
