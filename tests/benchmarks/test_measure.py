"""The instruments, on allocation patterns whose bytes are known."""

from __future__ import annotations

import gc
import time

import pytest
import torch
from torch import Tensor, nn

from instruments.measure import AllocatorEvent, live_bytes, measure_step, step_times, train_step

KB = 1000


def floats(kilobytes: int) -> Tensor:
    return torch.empty(kilobytes * KB // 4)


def test_two_tensors_at_once_add_up() -> None:
    def step() -> None:
        a = floats(400)
        b = floats(300)
        del a, b

    memory = measure_step(step, steps=3)
    assert memory.peaks_bytes == (700 * KB,) * 3
    assert memory.left_bytes == (0,) * 3
    assert memory.repeatable


def test_one_after_the_other_counts_the_larger() -> None:
    def step() -> None:
        a = floats(400)
        del a
        b = floats(300)
        del b

    assert measure_step(step).peak_bytes == 400 * KB


def test_views_and_in_place_results_cost_nothing() -> None:
    def step() -> None:
        a = floats(400)
        a.view(100, -1).t().neg_()

    assert measure_step(step).peak_bytes == 400 * KB


def test_resident_memory_is_not_counted_and_its_release_changes_nothing() -> None:
    for _ in range(3):
        resident = [floats(800)]

        def step(resident: list[Tensor] = resident) -> None:
            a = floats(100)
            resident.clear()
            b = floats(200)
            del a, b

        assert measure_step(step, warmup=0).peak_bytes == 300 * KB


def test_a_block_that_an_earlier_window_left_behind_does_not_disturb_the_next() -> None:
    kept: list[Tensor] = []

    def keeping() -> None:
        kept.append(floats(500))

    def step() -> None:
        kept.clear()
        a = floats(500)
        kept.append(floats(100))
        del a

    assert measure_step(keeping, warmup=0).left_bytes == (500 * KB,)
    assert measure_step(step, steps=3, warmup=0).peaks_bytes == (600 * KB,) * 3


def test_what_the_step_returns_counts_as_left() -> None:
    memory = measure_step(lambda: floats(100))
    assert memory.peak_bytes == 100 * KB
    assert memory.left_bytes == (100 * KB,)


def test_garbage_in_cycles_counts_however_often_the_collector_would_run() -> None:
    def step() -> None:
        cycle: list[object] = [floats(100)]
        cycle.append(cycle)
        del cycle
        _ = [[i] for i in range(20_000)]
        del _
        floats(50)

    assert measure_step(step, steps=3).peaks_bytes == (150 * KB,) * 3
    assert gc.isenabled()


class Summed(nn.Module):
    """The sum of a linear layer's output."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sum(self.linear(x))


def test_a_step_leaves_its_gradients_and_the_loss() -> None:
    memory = measure_step(train_step(Summed(50), {"x": torch.randn(100, 50)}), steps=2)
    assert memory.repeatable
    assert memory.left_bytes == (4 * 50 * 50 + 4,) * 2


@pytest.mark.parametrize(("batch", "width"), [(1, 300), (64, 32)])
def test_the_peak_of_a_linear_layer_is_its_output_or_its_gradient(batch: int, width: int) -> None:
    memory = measure_step(train_step(Summed(width), {"x": torch.randn(batch, width)}), steps=3)
    assert memory.repeatable
    # Forward: the output and its sum.  Backward: the sum, its gradient (both scalars), the weight's gradient.
    scalar_bytes = 4
    forward_bytes = 4 * batch * width + scalar_bytes
    backward_bytes = 4 * width * width + 2 * scalar_bytes
    assert memory.peak_bytes >= max(forward_bytes, backward_bytes)
    assert memory.peak_bytes <= max(forward_bytes, backward_bytes + 4 * batch * width)


def test_live_bytes_follow_addresses() -> None:
    events = [
        AllocatorEvent(1, 10, 100),
        AllocatorEvent(2, 99, -70),
        AllocatorEvent(3, 20, 50),
        AllocatorEvent(4, 10, -100),
        AllocatorEvent(5, 20, 30),
    ]
    assert live_bytes(events) == [100, 100, 150, 50, 30]


@pytest.mark.parametrize(("steps", "device"), [(0, "cpu"), (1, "meta")])
def test_bad_requests_say_what_is_allowed(steps: int, device: str) -> None:
    with pytest.raises(ValueError, match="allowed"):
        measure_step(lambda: None, steps=steps, device=device)


def test_times_are_interleaved_and_relative_to_the_first() -> None:
    calls: list[str] = []

    def sleeper(name: str, seconds: float) -> None:
        calls.append(name)
        time.sleep(seconds)

    times = step_times({"a": lambda: sleeper("a", 0.005), "b": lambda: sleeper("b", 0.015)}, rounds=5, warmup=1)
    assert calls == ["a", "b"] * 6
    assert times["a"].wall_ratio == 1.0
    assert 1.5 < times["b"].wall_ratio < 5
    assert times["b"].wall_ns >= 15_000_000
    assert times["b"].cpu_ns < 10_000_000


def test_no_functions_or_rounds_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least one"):
        step_times({}, rounds=1)
    with pytest.raises(ValueError, match="at least one"):
        step_times({"a": lambda: None}, rounds=0)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_counts_the_allocator() -> None:
    def step() -> None:
        a = torch.empty(1 << 20, device="cuda", dtype=torch.uint8)
        b = torch.empty(1 << 19, device="cuda", dtype=torch.uint8)
        del a, b

    assert measure_step(step, steps=2, device="cuda").peaks_bytes == (3 << 19,) * 2
