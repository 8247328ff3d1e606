"""What ``"auto"`` takes to be left on a GPU, by made-up answers of torch.cuda."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from remat_compiler.torch_compat.devices import DEVICE_RESERVE, free_device_bytes
from remat_compiler.torch_compat.optimizer_state import state_to_come

TOTAL, UNUSED, RESERVED, ALLOCATED = 80 * 2**30, 60 * 2**30, 8 * 2**30, 4 * 2**30
KEPT = int(DEVICE_RESERVE * TOTAL)
DEVICE = torch.device("cuda", 0)
WEIGHT = 2**32
"""Bytes of the one parameter."""

Optimizers = Callable[..., torch.optim.Optimizer]


@pytest.fixture(autouse=True)
def a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, Any] = {
        "mem_get_info": (UNUSED, TOTAL),
        "memory_reserved": RESERVED,
        "memory_allocated": ALLOCATED,
        "get_per_process_memory_fraction": 1.0,
        "memory_stats_as_nested_dict": {},
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, lambda *_, answer=answer: answer)


@pytest.fixture
def model() -> Iterator[nn.Module]:
    made = nn.Module()
    with FakeTensorMode():
        made.weight = nn.Parameter(torch.empty(2**15, 2**15, device=DEVICE))
        yield made


def left(*inputs: Any) -> int:
    found = free_device_bytes(inputs)
    assert found is not None
    return found


def near(expected: int) -> Any:
    """Rounded down by less than a part in 64."""
    return pytest.approx(expected, rel=1 / 63)


def test_what_nobody_uses_and_what_is_in_reserve_is_left(model: nn.Module) -> None:
    free = UNUSED + RESERVED - ALLOCATED - KEPT
    assert left(model.weight.detach()) == near(free)
    # Nothing tells of an optimizer yet.
    assert left(model.weight) == near(free - 2 * WEIGHT)


def test_a_process_that_may_have_a_part_of_the_device_has_no_more(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda *_: 0.25)
    assert left(model.weight.detach()) == near(TOTAL // 4 - ALLOCATED - KEPT)


def test_pieces_between_small_tensors_do_not_serve(model: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = 3 * 2**30
    found = {"inactive_split_bytes": {"small_pool": {"current": pieces}}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda *_: found)
    assert left(model.weight.detach()) == near(UNUSED + RESERVED - ALLOCATED - KEPT - pieces)


@pytest.mark.parametrize(
    ("make", "values", "known"),
    [
        (torch.optim.AdamW, 2, True),
        (lambda parameters: torch.optim.Adam(parameters, amsgrad=True), 3, True),
        (torch.optim.SGD, 0, True),
        (lambda parameters: torch.optim.SGD(parameters, momentum=0.9), 1, True),
        (torch.optim.RMSprop, 1, True),
        (lambda parameters: Own(parameters), 2, False),
    ],
)
def test_the_state_of_an_optimizer_that_is_there_is_known(
    make: Optimizers, values: int, known: bool, model: nn.Module
) -> None:
    optimizer = make(model.parameters())
    state = state_to_come((), DEVICE)
    assert (state.size_bytes, state.is_known) == (values * WEIGHT, known)
    # After a first step it is there, and no more comes.
    optimizer.state[model.weight] = {"step": 1}
    assert state_to_come((model.weight,), DEVICE).size_bytes == 0


class Own(torch.optim.Optimizer):
    """An optimizer of another library."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})


def test_a_state_that_is_assumed_leaves_a_step(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a model would be refused whose optimizer needs less; that of AdamW itself is believed."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (KEPT + WEIGHT // 2, TOTAL))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda *_: ALLOCATED)
    with caplog.at_level(logging.INFO, logger="remat_compiler"):
        assert left(model.weight) == near(WEIGHT // 2)
    assert '"auto" on cuda:0: 2.0 GiB are left for a step' in caplog.text
    optimizer = torch.optim.AdamW(model.parameters())
    assert left(model.weight) == 1
    assert optimizer.param_groups
