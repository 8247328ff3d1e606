"""What is known beforehand of calls that hold as much at the same time: of sharded modules, and of micro-batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from remat_compiler import torch_compat
from remat_compiler.step_budget.calls_alike import allowance_of_alike, is_rehearsal
from remat_compiler.step_budget.first_step import allowance_of_several, first_request_of_several
from remat_compiler.step_budget.gradients_before import GradientsBefore, bytes_of
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.sharding import FirstStep
from remat_compiler.step_model.step import Step
from step_budget.test_first_step import BUDGET, HIDDEN, LOSS, coordinator, options_of, request


def running(monkeypatch: pytest.MonkeyPatch, forwards: int, calls: int, gradient_bytes: int) -> None:
    """Pretend that a pipeline's schedule tells this."""
    known = torch_compat.Pipeline(forwards, calls, gradient_bytes)
    monkeypatch.setattr(torch_compat, "pipeline_now", lambda: known)


def test_a_sharded_module_leaves_room_for_its_like() -> None:
    """Of 1,000 bytes 200 are gathered: half of the rest is for the one that runs, half for the four held."""
    assert allowance_of_alike(1_000, FirstStep(200, 5)) == Allowance(400, 100, 400)
    assert allowance_of_alike(1_000, FirstStep(200, 1)) == Allowance(800, 800, 800)
    assert allowance_of_alike(100, FirstStep(200, 3)) == Allowance(1, 1, 1)


def test_micro_batches_under_way_at_once_leave_room_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 1,000 bytes 100 are gradients: of the rest, half is for the call that runs, half for the nine held."""
    running(monkeypatch, 5, 10, 100)
    for gm in (HIDDEN, LOSS):
        # What the first one holds is among the parts of all.
        found = first_request_of_several(gm, options_of(), request(), coordinator(held=200))
        assert found is not None
        assert (found.budget_bytes, found.between_bytes, found.take_smallest) == (450, 400, True)
        limits = allowance_of_several(gm, options_of(), BUDGET, coordinator(held=200), changing=True)
        assert limits == Allowance(450, 50, 450)


def test_micro_batches_one_by_one_leave_room_for_their_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch, 1, 2, 100)
    received = torch.empty(10, requires_grad=True)
    found = first_request_of_several(HIDDEN, options_of(), request(), coordinator(), [received, received.detach()])
    assert found is not None
    assert (found.budget_bytes, found.between_bytes) == (860, 0)
    found = first_request_of_several(LOSS, options_of(), request(), coordinator(held=200))
    assert found is not None
    assert found.budget_bytes == 700


def test_a_single_micro_batch_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch, 1, 1, 0)
    assert first_request_of_several(HIDDEN, options_of(), request(), coordinator()) is None


def test_a_micro_batch_that_only_tells_of_shapes_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    running(monkeypatch, 2, 4, 100)
    weight, step = nn.Parameter(torch.ones(3)), Step[Any]()

    def calls(count: int) -> None:
        for _ in range(count):
            # The stage, and a loss, which has no parameters.
            step.add("stage", None, frozenset({id(weight)}))
            step.add("loss", None, frozenset())

    calls(1)
    assert is_rehearsal(step)
    calls(1)
    assert not is_rehearsal(step)
    monkeypatch.undo()
    assert not is_rehearsal(Step[Any]()), "outside of a pipeline each step counts"


def test_gradients_are_expected_where_each_micro_batch_is_a_step_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, received = nn.Parameter(torch.ones(3)), torch.ones(5, requires_grad=True)
    for forwards, gradient_bytes, expected in ((1, 12, 32), (2, 12, 0), (1, 0, 0)):
        running(monkeypatch, forwards, 4, gradient_bytes)
        gradients = GradientsBefore(100, 100, 0, lambda: True)
        gradients.expect("graph", [weight, received, torch.ones(7)])
        assert bytes_of(gradients.found.values()) == expected
