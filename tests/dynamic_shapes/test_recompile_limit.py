"""Sizes that are compiled one by one: the last compilation serves all others, or it is said that none follows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch._dynamo.config
from torch import Tensor, fx

from remat_compiler.dynamic_shapes import recompile_limit
from remat_compiler.dynamic_shapes.recompile_limit import changed, watch_recompilations
from remat_compiler.errors import InfeasibleBudget

LIMIT = 3


class Counted:
    """A backend that watches and runs the graph as it is."""

    def __init__(self) -> None:
        self.shapes: list[list[tuple[Any, ...]]] = []

    def __call__(self, gm: fx.GraphModule, inputs: Sequence[Any]) -> Any:
        watch_recompilations(gm)
        traced = [node.meta["example_value"] for node in gm.graph.find_nodes(op="placeholder")]
        self.shapes.append([tuple(one.shape) for one in traced if isinstance(one, Tensor)])
        return gm.forward

    @property
    def compilations(self) -> int:
        return len(self.shapes)


@pytest.fixture(autouse=True)
def few_compilations() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=LIMIT):
        yield
    torch._dynamo.reset()


def double(x: Tensor, factor: float = 2.0) -> Tensor:
    return x * factor


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.name.startswith("remat_compiler") and record.levelno == logging.WARNING
    ]


def test_the_last_compilation_serves_all_sizes(caplog: pytest.LogCaptureFixture) -> None:
    backend = Counted()
    call = torch.compile(double, backend=backend, dynamic=False)
    for size in range(4, 14):
        assert torch.equal(call(torch.ones(size, 3)), torch.full((size, 3), 2.0))
    assert backend.compilations == LIMIT
    last = backend.shapes[-1][0]
    assert not isinstance(last[0], int), "the size that changed has a symbol"
    assert last[1] == 3
    (message,) = warnings_of(caplog)
    assert "the sizes of L['x'] changed in 2 compilations" in message
    assert f"at most {LIMIT} times" in message


def test_what_is_no_size_is_compiled_until_the_limit_and_then_said(caplog: pytest.LogCaptureFixture) -> None:
    backend = Counted()
    call = torch.compile(double, backend=backend, dynamic=False)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        assert call(torch.ones(4, dtype=dtype)).sum() == 8
    assert backend.compilations == LIMIT, "the fourth ran in eager"
    (message,) = warnings_of(caplog)
    assert f"compilation {LIMIT} of one function, the last that Dynamo makes" in message


def test_another_number_of_dimensions_is_no_change_of_size(caplog: pytest.LogCaptureFixture) -> None:
    backend = Counted()
    call = torch.compile(double, backend=backend, dynamic=False)
    for shape in ((4,), (4, 3), (4, 3, 2)):
        call(torch.ones(shape))
    assert [len(one[0]) for one in backend.shapes] == [1, 2, 3]
    (message,) = warnings_of(caplog)
    assert "the last that Dynamo makes" in message


def test_a_reset_counts_anew(caplog: pytest.LogCaptureFixture) -> None:
    backend = Counted()
    call = torch.compile(double, backend=backend, dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=4):
        for size in (4, 5):
            call(torch.ones(size))
        torch._dynamo.reset()
        for size in (6, 7):
            call(torch.ones(size))
        assert backend.shapes == [[(4,)], [(5,)], [(6,)], [(7,)]]
        assert warnings_of(caplog) == [], "neither was the last compilation but one"
        call(torch.ones(8))
        assert "in 3 compilations" in warnings_of(caplog)[0]


def test_compilations_that_fail_are_not_counted(
    caplog: pytest.LogCaptureFixture, steps_of_its_own: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search for the batch size begins with many sizes that are refused; Dynamo keeps no code of them."""
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    options = {"memory_budget": "4KB", "inner": "eager", "cost_model": "nominal"}
    call = torch.compile(lambda x: x.sin().exp().sum(), backend="remat", options=options, dynamic=False)
    for size in (4000, 3000, 2000, 1800, 1600):
        with pytest.raises(InfeasibleBudget):
            call(torch.ones(size, requires_grad=True))
    call(torch.ones(100, requires_grad=True)).backward()
    assert warnings_of(caplog) == []
    # From here on as ever.
    for size in (101, 102, 103):
        call(torch.ones(size, requires_grad=True)).backward()
    (told,) = warnings_of(caplog)
    assert f"changed in {LIMIT - 1} compilations" in told


def test_outside_of_a_compilation_nothing_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    before = dict(recompile_limit._shapes)
    for _ in range(LIMIT + 1):
        watch_recompilations(fx.symbolic_trace(double))
    assert recompile_limit._shapes == before
    assert warnings_of(caplog) == []


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        ([{"x": ("4", "3")}], []),
        ([{"x": ("4", "3")}, {"x": ("4", "3")}], []),
        ([{"x": ("4", "3")}, {"x": ("5", "3")}], ["x"]),
        ([{"x": ("4",)}, {"x": ("4", "3")}], []),
        ([{"x": ("4",)}, {"y": ("5",)}], []),
        ([{"x": ("4",), "y": ("2",)}, {"x": ("5",), "y": ("2",)}], ["x"]),
        # Against all earlier ones, not only the one before.
        ([{"x": ("4",)}, {"x": ("4", "3")}, {"x": ("6",)}], ["x"]),
        # The latest is asked about: an input that it does not have cannot be declared.
        ([{"x": ("4",)}, {"x": ("5",)}, {"y": ("6",)}], []),
        # What is dynamic already need not be declared.
        ([{"x": ("4", "3")}, {"x": ("s7", "3")}], []),
        ([{"x": ("4", "3")}, {"x": ("s7", "5")}], ["x"]),
        ([{"x": ("s7", "3")}, {"x": ("1", "3")}], ["x"]),
    ],
)
def test_sizes_that_changed(seen: list[dict[str, tuple[str, ...]]], expected: list[str]) -> None:
    assert changed(seen) == expected
