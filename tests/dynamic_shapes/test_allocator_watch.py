"""What an allocator measured corrects the guards: the fake one here says what it is told to."""

from __future__ import annotations

import logging
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor
from torch._functorch.aot_autograd import aot_function, make_boxed_func

from dynamic_shapes.made_up_variants import LIMIT, WHOLE, Prepared, Proportional
from remat_compiler import torch_compat
from remat_compiler.dynamic_shapes.allocator_watch import AllocatorWatch
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.margin import Margin
from remat_compiler.dynamic_shapes.variant import Variant
from remat_compiler.errors import InfeasibleBudget
from remat_compiler.torch_compat.allocators import CudaAllocator
from versions import HOLDS_INCOMING_GRADIENTS


@dataclass
class FakeAllocator:
    """An allocator whose figures are set by hand.

    Attributes:
        allocated: Bytes in use.
        peak: Most so far.
        backward_bytes: What the next backward takes on top of `allocated`.
    """

    allocated: int = 500
    peak: int = 500
    backward_bytes: int = 0

    def allocated_bytes(self) -> int:
        return self.allocated

    def peak_bytes(self) -> int:
        return self.peak

    def run_backward(self) -> None:
        self.peak = max(self.peak, self.allocated + self.backward_bytes)


class Step(torch.autograd.Function):
    """A compiled graph, whose backward takes what the allocator was told."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, allocator: FakeAllocator) -> Tensor:
        ctx.allocator = allocator
        return x * 2

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        ctx.allocator.run_backward()
        return gradients[0] * 2, None


@dataclass
class Watched:
    """Variants that are run and watched."""

    allocator: FakeAllocator
    dispatch: Dispatch
    margin: Margin

    def forward(self, size: int) -> Tensor:
        """A call at one size."""
        loss: Tensor = self.dispatch(size, torch.ones((), requires_grad=True))
        return loss

    def step(self, size: int, takes: int) -> str:
        """A step that takes so many bytes; the label of what ran it."""
        self.allocator.backward_bytes = takes
        self.forward(size).backward()
        return self.dispatch.prepare((size,)).label


def variant(allocator: FakeAllocator, label: str, bytes_per_unit: int, added: float = 0.0) -> Variant:
    """A variant whose peak is predicted to be proportional to the size."""

    def run(size: int, x: Tensor) -> Any:
        return Step.apply(x, allocator)

    return Variant(run, Proportional(bytes_per_unit), added, (1,), label)


def watched(*needed: tuple[str, int, float], provider: Prepared | None = None) -> Watched:
    """Variants of 10 bytes a unit, and of others as they are needed."""
    allocator = FakeAllocator()
    provider = provider or Prepared(needed=[variant(allocator, *one) for one in needed])
    dispatch = Dispatch([0], WHOLE, variant(allocator, "native", 10), provider, 6)
    margin = Margin()
    dispatch.watchers = (AllocatorWatch(dispatch, allocator, margin),)
    made = Watched(allocator, dispatch, margin)
    made.step(1, 5)  # the first call of a variant is not counted
    return made


def test_what_was_predicted_too_low_becomes_a_margin(caplog: pytest.LogCaptureFixture) -> None:
    """Known at the next call; sizes that no longer fit are decided anew, the others go on."""
    made = watched(("small", 2, 0.5))
    assert [made.step(size, 10 * size) for size in (80, 96)] == ["native", "native"]
    assert made.margin == Margin()
    made.step(97, 970 + 60)
    assert made.dispatch.variants[0].margin == Margin()
    with caplog.at_level(logging.INFO, logger="remat_compiler"):
        assert made.step(80, 800) == "native"
        assert made.step(97, 200) == "small"
        assert made.step(93, 900) == "native"
        assert made.step(95, 200) == "small"
    native = made.dispatch.variants[0]
    assert native.needed_bytes((97,), WHOLE) == 970 + 60
    assert native.needed_bytes((50,), WHOLE) == 500 + 60
    assert native.needed_bytes((194,), WHOLE) == 1940 + 120
    assert [record.levelname for record in caplog.records if "more than predicted" in record.message] == ["WARNING"]
    assert made.margin == native.margin


def test_nothing_is_learnt_where_no_maximum_was_set() -> None:
    made = watched()
    made.allocator.peak = 5_000
    for size in (80, 90, 80):
        made.step(size, 2_000)
    assert made.margin == Margin()
    made.allocator.peak = 0  # the user resets the statistics
    made.step(80, 850)
    made.step(10, 0)
    assert made.margin.excess_bytes == 50


def test_what_was_there_before_the_step_does_not_count() -> None:
    made = watched()
    made.allocator.allocated = made.allocator.peak = 100_000
    made.step(90, 900)
    made.step(90, 901)
    made.step(10, 0)
    assert made.margin.excess_bytes == 1


def test_first_calls_and_those_that_overlap_do_not_count() -> None:
    """What runs beside an open backward, or instead of one, is no step of its own."""
    made = watched()
    first = made.forward(80)
    made.allocator.backward_bytes = 3_000
    second = made.forward(80)
    first.backward()
    second.backward()
    made.step(10, 0)
    assert made.margin == Margin()
    made.allocator.peak = 0
    dropped = made.forward(80)
    del dropped
    made.step(80, 820)
    made.step(10, 0)
    assert made.margin.excess_bytes == 20


def test_a_second_excess_is_learnt_by_more_than_the_first() -> None:
    made = watched()
    made.step(50, 510)
    made.step(60, 605)
    made.step(60, 640)
    made.step(10, 0)
    assert made.margin.excess_bytes == 40
    assert made.margin.excess_ratio == 40 / 600


def test_where_no_plan_fits_by_what_was_measured_training_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """Sizes that ran already are not refused; sizes never seen are."""

    class Refusing(Prepared):
        def variants_for(self, sizes: Any, variants: Any, allowance: Any) -> Any:
            raise InfeasibleBudget(LIMIT, 2 * LIMIT, "op", "model.py:1", "")

    made = watched(provider=Refusing())
    made.step(97, 2_000)
    assert [made.step(97, 2_000) for _ in range(3)] == ["native"] * 3
    assert caplog.text.count("go on beyond the budget") == 1
    with pytest.raises(InfeasibleBudget):
        made.step(98, 0)


@given(
    st.lists(st.tuples(st.integers(1, 10**12), st.integers(0, 10**12)), min_size=1, max_size=6),
    st.integers(1, 10**12),
)
@example([(2, 43_080_834), (1, 21_540_438)], 1)
def test_margins_cover_all_that_was_seen(seen: list[tuple[int, int]], budget: int) -> None:
    """Each excess at its own peak, in proportion at larger ones; and the limit is the largest that stays within."""
    margin = Margin()
    for predicted, measured in seen:
        margin.learn(predicted, measured)
    for predicted, measured in seen:
        assert predicted + margin.bytes_on(predicted) >= measured
        assert not margin.learn(predicted, measured)
        if measured > predicted:
            assert margin.bytes_on(3 * predicted) >= 3 * (measured - predicted)
    limit = margin.limit_bytes(budget)
    if limit > 1:
        assert limit + margin.bytes_on(limit) <= budget
        assert limit + 2 + margin.bytes_on(limit + 2) > budget
    assert Margin().limit_bytes(budget) == budget


def test_cpu_tensors_have_no_allocator_to_ask() -> None:
    assert torch_compat.device_allocator([torch.zeros(1), 3, None]) is None


def test_blocks_count_as_in_predictions(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks, asked = {"current": 8 << 20, "peak": 10 << 20}, {"current": 7 << 20, "peak": 9 << 20}
    stats = {"allocated_bytes": {"all": blocks}, "requested_bytes": {"all": asked}}
    monkeypatch.setattr(torch.cuda, "memory_stats_as_nested_dict", lambda device: stats)
    allocator = CudaAllocator(0)
    assert (allocator.allocated_bytes(), allocator.peak_bytes()) == (8 << 20, 10 << 20)


def test_incoming_gradients_are_freed_within_a_backward_that_is_watched() -> None:
    """As without the watch: a hook of autograd's would keep them until the backward has ended."""
    freed: list[bool] = []

    def compile_backward(gm: Any, _: Any) -> Any:
        def run(arguments: list[Any]) -> Any:
            gradient, results = weakref.ref(arguments[-1]), gm(*arguments)
            arguments.clear()
            freed.append(gradient() is None)
            return results

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    model = aot_function(torch.sin, lambda gm, _: make_boxed_func(gm), compile_backward)
    allocator = FakeAllocator()
    unwatched = Variant(lambda size, x: model(x), Proportional(10), 0.0, (1,), "native")
    dispatch = Dispatch([0], WHOLE, unwatched, Prepared(), 6)
    for watchers in ((), (AllocatorWatch(dispatch, allocator, Margin()),)):
        dispatch.watchers = watchers
        for _ in range(2):  # the first call of a variant is not watched
            (dispatch(5, torch.randn(5, requires_grad=True)) * 2).sum().backward()
    assert freed == [not HOLDS_INCOMING_GRADIENTS] * 4


@pytest.mark.gpu
def test_cuda_counts() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    allocator = torch_compat.device_allocator([torch.zeros(1, device="cuda")])
    assert allocator is not None
    before = allocator.allocated_bytes()
    kept = torch.empty(10 << 20, dtype=torch.uint8, device="cuda")
    assert allocator.allocated_bytes() - before >= kept.numel()
    assert allocator.peak_bytes() >= allocator.allocated_bytes()
    assert allocator.peak_bytes() <= torch.cuda.max_memory_allocated()
