"""How all tests run: with kernels that compile quickly, and one thread for each worker."""

from __future__ import annotations

import gc
import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from brief import plan_briefly, search_briefly
from turns import TURNS, waiting

# Before torch is imported.  Kernels that are vectorized or optimized allocate the same and take twice as long to
# compile; what a test is to see with them runs with TORCHINDUCTOR_VEC_ISA_OK=1 or TORCHINDUCTOR_DEBUG_COMPILE=0.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("TORCHINDUCTOR_DEBUG_COMPILE", "1")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Else each process in which Inductor compiles starts others that import torch, and spreads kernels over more files.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

# How long an example takes says how busy the machine is.
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=50)
settings.register_profile("any_machine", QUICK)
settings.register_profile("ci", QUICK, derandomize=True, database=None, print_blob=True)
settings.register_profile("thorough", QUICK, max_examples=100)
settings.load_profile("any_machine")

TESTS = Path(__file__).parent
WITHOUT_TORCH = {
    *("blocks", "bounds", "chains", "devices", "eviction", "exact", "ir", "layers", "layout", "moves", "orders"),
    *("planning", "report", "search", "sequences", "simulate", "step_model"),
    *(
        "test_ahead_of_time",
        "test_front_page",
        "test_layering",
        "test_memory_budget",
        "test_option_types",
        "test_options",
    ),
    *("test_progress", "test_stats", "test_studies", "test_turns"),
}
TRAINING = {
    *(
        "benchmarks",
        "distributed",
        "end_to_end",
        "fitting",
        "step_budget",
        "trainers",
        "test_backend",
        "test_backend_files",
    ),
    *("test_demo", "test_snippets", "test_unusual_input"),
}
"""Folders and files of these tests; those of neither set use torch and train next to nothing."""
USES_TORCH = {"test_json_folder", "test_allocator_on_a_gpu"}
WHOLE_COLLECTION_EVERY_S = 240
LONG = frozenset((TESTS / "long_tests.txt").read_text().split())
"""Files and tests that take turns, with ``[]`` only their cases; others hold the same property on other programs."""
LONGEST_FIRST = ("end_to_end", "torch", "planning")


def tier(path: Path) -> str:
    """The mark of all tests of a file."""
    room = path.relative_to(TESTS).with_suffix("").parts[0]
    if path.stem in USES_TORCH:
        return "torch"
    return "planning" if room in WITHOUT_TORCH else "end_to_end" if room in TRAINING else "torch"


def test_of(item: pytest.Item) -> str:
    """The test that an item is a case of, named as in the list of long ones."""
    return item.nodeid.partition("[")[0].removeprefix("tests/")


def wants_no_torch(config: pytest.Config) -> bool:
    """Whether only tests are asked for that need none."""
    return str(config.option.markexpr).startswith("planning")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files, and folders with their fixtures, that would import torch for nothing."""
    inside = TESTS in collection_path.parents
    return True if inside and wants_no_torch(config) and tier(collection_path) != "planning" else None


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option by which the cases of tests take turns."""
    parser.addoption("--turn", type=int, help=f"run one of {TURNS} of the long tests and cases, and others next turn")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark each test with its tier."""
    item.add_marker(tier(item.path))
    if any(mark.name == "usual_effort" for mark in item.own_markers):
        raise pytest.UsageError(f"{item.nodeid}: usual_effort is a mark of files, whose fixtures plan, too")


def later_than(items: list[pytest.Item], turn: int) -> set[pytest.Item]:
    """The tests that wait for another turn: those listed as long, whole or by cases; see `turns`."""
    long = {item: name for item in items for name in (test_of(item), test_of(item).partition("::")[0]) if name in LONG}
    late = waiting((("whole", name) for name in long.values()), turn)
    found = {item for item, name in long.items() if name in late}
    # A long test is here each `TURNS` turns only, with its cases in turn then.
    for own_turn, cases in (
        (turn, [item for item in items if f"{test_of(item)}[]" in LONG]),
        (turn // TURNS, [item for item in items if item in long and item not in found]),
    ):
        late = waiting(((test_of(item), item.nodeid) for item in cases), own_turn)
        found |= {item for item in cases if item.nodeid in late}
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with what takes long: at the end, short files fill both cores.  Last, when all else has chosen tests."""
    items.sort(key=lambda item: LONGEST_FIRST.index(tier(item.path)))
    if config.option.turn is not None:
        later = later_than(items, config.option.turn)
        config.hook.pytest_deselected(items=[item for item in items if item in later])
        items[:] = [item for item in items if item not in later]
    if wants_no_torch(config) and "torch" in sys.modules:
        raise pytest.UsageError("a file of the tier `planning` imports torch: move it, or name it in USES_TORCH")


class Collections:
    """When all objects were last looked at."""

    whole_s = -math.inf


@pytest.fixture(scope="module", autouse=True)
def little_overhead() -> None:
    """Garbage collections look only at what the tests of the file make, not at torch's million objects each time."""
    # What is alive behind a file may become garbage later, but to look at everything takes a second.
    if time.monotonic() - Collections.whole_s > WHOLE_COLLECTION_EVERY_S:
        gc.unfreeze()
        Collections.whole_s = time.monotonic()
    gc.collect()
    gc.freeze()
    # pytest listens to loggers that pass nothing on, and torch prints each graph into this one once somebody listens.
    logging.getLogger("torch.__trace").propagate = True


@pytest.fixture(scope="module", autouse=True)
def quick_plans(request: pytest.FixtureRequest) -> Iterator[None]:
    """Promises are kept by whatever plan: most of the time would go into better ones.

    How good plans are is for tests that name an effort or a limit, and for files that are marked.
    """
    with pytest.MonkeyPatch.context() as patch:
        if request.node.get_closest_marker("usual_effort") is None:
            (search_briefly if tier(request.path) == "planning" else plan_briefly)(patch)
        yield


@pytest.fixture
def steps_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """What other tests left open, or did not settle, is no part of this one's steps."""
    from remat_compiler.graphs.steps import COORDINATOR
    from remat_compiler.watching.open_calls import Here

    monkeypatch.setattr(COORDINATOR.watch, "here", Here())
    COORDINATOR.unsettled.clear()
    COORDINATOR._whole_steps.clear()


@pytest.fixture
def compiles_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps_of_its_own: None) -> None:
    """Nothing that other tests compiled, planned or reported is there, and the same random numbers are to come."""
    import torch

    import remat_compiler

    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    torch._dynamo.reset()
    remat_compiler.clear_reports()
    torch.manual_seed(0)
