"""Errors of memory say what was planned, and stay what they are."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import remat_compiler
from end_to_end.compiling import compile_with
from remat_compiler import torch_compat
from remat_compiler.report.out_of_memory import memory_lines

pytestmark = pytest.mark.usefixtures("compiles_anew")

MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB."
FAILING: dict[str, Exception] = {}
"""What the operator raises, in its forward or backward."""


@torch.library.custom_op("remat_tests::runs_out", mutates_args=())
def runs_out(x: Tensor, name: str) -> Tensor:
    if isinstance(FAILING.get(name), MemoryError):
        return torch.empty(2**55)
    if name in FAILING:
        raise FAILING[name]
    return x.clone()


@runs_out.register_fake
def _(x: Tensor, name: str) -> Tensor:
    return torch.empty_like(x)


runs_out.register_autograd(
    lambda ctx, gradient: (torch.ops.remat_tests.runs_out(gradient, "backward"), None),
    setup_context=lambda ctx, inputs, output: None,
)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.inner(x)) * 2.0
        made: Tensor = torch.ops.remat_tests.runs_out(hidden, "forward")
        return made.sin().sum()


@pytest.fixture(autouse=True)
def nothing_fails() -> Any:
    FAILING.clear()
    yield
    FAILING.clear()


def notes_of(error: BaseException) -> list[str]:
    return getattr(error, "__notes__", [])


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_an_error_of_memory_says_what_was_planned(where: str, known: bool) -> None:
    model, x = Layer(), torch.randn(64, 32)
    compiled = compile_with(model, memory_budget="1 MiB")
    for _ in range(5 if known else 1):
        compiled(x).backward()
    FAILING[where] = torch.OutOfMemoryError(MESSAGE)
    with pytest.raises(torch.OutOfMemoryError) as found:
        compiled(x).backward()
    # As trainers recognise it.
    assert type(found.value) is torch.OutOfMemoryError
    assert len(found.value.args) == 1
    # An interpreter of graphs adds the operator.
    assert str(found.value).startswith(MESSAGE)
    assert len(notes_of(found.value)) == 1
    note = notes_of(found.value)[0]
    report = remat_compiler.reports()[-1]
    assert f"memory ran out in the {where} of a planned graph" in note
    assert "a budget of 1.0 MiB" in note
    assert f"predicted peak {report.peak_bytes / 1024:.1f} KiB" in note
    assert "alive at the peak" in note
    assert "test_out_of_memory.py:" in note
    if where == "backward":
        assert "1 call of a planned graph awaits its backward" in note
    # The step goes on as if nothing had happened.
    FAILING.clear()
    compiled(x).backward()


@pytest.mark.parametrize(
    ("error", "is_told"),
    [
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), True),
        (RuntimeError("size mismatch"), False),
        (ValueError("CUDA out of memory"), False),
    ],
)
def test_only_errors_of_memory_are_explained(error: Exception, is_told: bool) -> None:
    model, x = Layer(), torch.randn(8, 32)
    compiled = compile_with(model, memory_budget=1.0)
    compiled(x).backward()
    for where in ("forward", "backward"):
        error.__notes__ = []  # type: ignore[attr-defined]
        FAILING.clear()
        FAILING[where] = error
        with pytest.raises(type(error)):
            compiled(x).backward()
        assert len(notes_of(error)) == is_told


def test_an_allocation_that_the_machine_refuses() -> None:
    model, x = Layer(), torch.randn(8, 32)
    compiled = compile_with(model, memory_budget=1.0)
    compiled(x).backward()
    FAILING["forward"] = MemoryError()
    with pytest.raises(RuntimeError, match=r"can't allocate memory|not enough memory") as found:
        compiled(x)
    assert "memory ran out in the forward" in notes_of(found.value)[0]


def test_in_another_thread() -> None:
    model, x = Layer(), torch.randn(8, 32)
    compiled = compile_with(model, memory_budget=1.0)
    compiled(x).backward()
    FAILING["backward"] = torch.OutOfMemoryError(MESSAGE)
    caught: list[BaseException] = []

    def step() -> None:
        try:
            compiled(x).backward()
        except torch.OutOfMemoryError as error:
            caught.append(error)

    thread = threading.Thread(target=step)
    thread.start()
    thread.join()
    assert "memory ran out in the backward" in notes_of(caught[0])[0]


def test_graphs_of_a_step_are_named_and_waiting_calls_counted() -> None:
    class TwoGraphs(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(32, 32), Layer()

        def forward(self, x: Tensor) -> Tensor:
            y = self.first(x).sin()
            torch._dynamo.graph_break()
            return self.second(y)

    compiled, x = compile_with(TwoGraphs(), memory_budget="1 MiB"), torch.randn(64, 32)
    for _ in range(4):
        compiled(x).backward()
    FAILING["forward"] = torch.OutOfMemoryError(MESSAGE)
    with pytest.raises(torch.OutOfMemoryError) as found:
        compiled(x)
    note = notes_of(found.value)[0]
    assert "1 call of a planned graph awaits its backward, and holds 16.0 KiB" in note
    assert "test_out_of_memory.py:53  second" in note
    assert "with the step's other graphs" in note


def test_explain_oom_lists_the_largest_step_first() -> None:
    remat_compiler.clear_reports()
    assert "no graph is planned" in remat_compiler.explain_oom()
    for rows in (8, 64):
        compile_with(Layer(), memory_budget="1 MiB")(torch.randn(rows, 32)).backward()
    text = remat_compiler.explain_oom()
    small, large = remat_compiler.reports()
    assert text.index(large.graph_name) < text.index("alive at the peak") < text.index(small.graph_name)


GIB = 2**30


def cuda(allocated: int, reserved: int, free: int, total: int, **more: Any) -> Any:
    """A made-up `torch.cuda` with two devices, of which the first is in use."""
    stats = {
        "allocated_bytes": {"all": {"current": allocated, "peak": allocated}},
        "reserved_bytes": {"all": {"current": reserved, "peak": reserved}},
    }
    tensors = {"size": allocated, "state": "active_allocated", "frames": more.get("frames", [])}
    pieces = [{"size": (reserved - allocated) // 4, "state": "inactive"} for _ in range(4)]
    segment = {"device": 0, "total_size": reserved, "blocks": [tensors, *pieces], "segment_pool_id": (0, 0)}
    return SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 2,
        memory_stats_as_nested_dict=lambda index: {} if index else stats,
        mem_get_info=lambda index: (free, total),
        memory_snapshot=lambda: [segment, {**segment, "device": 1}],
    )


def report_of(peak_bytes: int, resident_bytes: int) -> Any:
    return SimpleNamespace(peak_bytes=peak_bytes, resident_bytes=resident_bytes, step=None, budget_bytes=peak_bytes)


def lines(asked: Any, peak_bytes: int, resident_bytes: int = GIB) -> str:
    return "\n".join(memory_lines([report_of(peak_bytes, resident_bytes)], torch_compat.device_memories(asked)))


def test_eager_work_beside_the_plan_is_told() -> None:
    frames = [
        {"filename": torch.__file__, "line": 1, "name": "empty"},
        {"filename": "/home/me/train.py", "line": 12, "name": "step"},
    ]
    text = lines(cuda(20 * GIB, 21 * GIB, GIB, 24 * GIB, frames=frames), 6 * GIB)
    assert "cuda:0: 24.0 GiB, of which 1.0 GiB are free now" in text
    assert "cuda:1" not in text
    assert "other processes, the driver and libraries take 2.0 GiB" in text
    assert "tensors took 13.0 GiB more than the 7.0 GiB that were foreseen" in text
    assert "20.0 GiB of the tensors were made at train.py:12" in text
    assert "expandable_segments" not in text


def test_pieces_in_reserve_are_told() -> None:
    text = lines(cuda(6 * GIB, 22 * GIB, GIB, 24 * GIB), 6 * GIB)
    assert "keeps 16.0 GiB more in reserve, in 4 pieces, the largest of 4.0 GiB" in text
    assert "expandable_segments:True" in text
    assert "beyond the plan" not in text


def test_a_plan_that_does_not_fit_the_device_is_told() -> None:
    text = lines(cuda(8 * GIB, 8 * GIB, 0, 12 * GIB), 10 * GIB)
    assert "11.0 GiB are foreseen with parameters and inputs, of 8.0 GiB that others leave" in text


def test_a_device_that_was_not_used_is_not_asked() -> None:
    idle = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)
    assert torch_compat.device_memories(idle) == ()
