"""What compiling reserves on a GPU is given back, by made-up answers of its allocator."""

from __future__ import annotations

import pytest
import torch
from torch import fx

from made_up_allocator import MadeUpAllocator
from remat_compiler import pipeline, torch_compat
from remat_compiler.compilation import lateness
from remat_compiler.graphs.steps import COORDINATOR
from remat_compiler.options import Environment, RematOptions
from remat_compiler.torch_compat.allocators import reserving_no_more


@pytest.mark.parametrize(
    ("reserved", "taken", "left"),
    [
        # Nothing but the parameters was there.
        (10, 90, 10),
        (12, 90, 10),
        # Steps ran before: what they let go of, the next one needs.
        (80, 90, 100),
        # Nothing was reserved for the compilation.
        (10, 0, 10),
        (50, 20, 50),
    ],
)
def test_what_compiling_reserves_is_given_back(
    reserved: int, taken: int, left: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = MadeUpAllocator(monkeypatch, reserved, allocated=10)
    with reserving_no_more():
        allocator.measure_with(taken)
    assert allocator.reserved == left


def test_a_process_without_a_gpu_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: pytest.fail("made a context"))
    with reserving_no_more():
        pass


def test_a_compilation_gives_back_what_it_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    allocator = MadeUpAllocator(monkeypatch, 10, allocated=10)

    def begins() -> None:
        allocator.measure_with(90)
        raise RuntimeError("enough is seen")

    monkeypatch.setattr(pipeline, "tell_of_compiling", begins)
    with pytest.raises(RuntimeError, match="enough is seen"):
        pipeline.compile_graph(fx.symbolic_trace(torch.nn.Identity()), (), RematOptions(), Environment.read())
    assert allocator.reserved == 10


def test_a_decision_about_a_step_gives_back_what_it_reserved_and_is_told_of_if_late(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    allocator = MadeUpAllocator(monkeypatch, 10, allocated=10)

    class Step:
        def __getattr__(self, _: str) -> None:
            allocator.measure_with(90)
            raise RuntimeError("enough is seen")

    monkeypatch.setattr(torch_compat, "default_timeout_s", lambda: 1e-9)
    lateness._warn.cache_clear()
    with pytest.raises(RuntimeError, match="enough is seen"):
        COORDINATOR._decide(Step())  # type: ignore[arg-type]
    assert allocator.reserved == 10
    assert "communication of the default group fails after" in caplog.text
