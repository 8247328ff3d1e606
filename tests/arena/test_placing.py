"""The places of one call's allocations, on real tensors."""

from __future__ import annotations

import gc
import weakref

import torch
from torch import Tensor

from remat_compiler.arena.placed_graph import PlacedGraph
from remat_compiler.arena.placing import Placement, PlacesBySize, Placing, SamePlaces, Slot

reinterpret = torch._C._dynamo.guards._reinterpret_tensor
made: list[weakref.ref[torch.UntypedStorage]] = []


def make_arena(size_bytes: int) -> Tensor:
    arena = torch.empty(size_bytes, dtype=torch.uint8)
    made.append(weakref.ref(arena.untyped_storage()))
    return arena


def placing(*slots: Slot | None, sizes: tuple[int, ...] = (256,), arguments: tuple[object, ...] = ()) -> Placing:
    sources = ((0, 0),) if arguments else ()
    made.clear()
    return Placing(Placement(sizes, slots, sources), arguments, make_arena, reinterpret)


def test_allocations_lie_where_they_are_planned() -> None:
    call = placing(Slot(0, 0, 128, False), None, Slot(0, 128, 64, False), Slot(0, 0, 128, True))
    first = call.allocate((4, 8), (8, 1), torch.float32)
    assert call.allocate((4,), (1,), torch.float32) is None
    second = call.allocate((8,), (1,), torch.int64)
    third = call.allocate((16, 4), (1, 16), torch.bfloat16)
    assert call.allocate((4,), (1,), torch.float32) is None, "there are more allocations than were planned"
    assert first is not None
    assert second is not None
    assert third is not None
    start = first.untyped_storage().data_ptr()
    assert [one.data_ptr() - start for one in (first, second, third)] == [0, 128, 0]
    assert (third.shape, third.stride(), third.dtype) == ((16, 4), (1, 16), torch.bfloat16)
    # No views to autograd: a change of one is none of the others.
    second.add_(1)
    assert [one._version for one in (first, second, third)] == [0, 1, 0]
    assert not first._is_view()
    assert len(made) == 1


def test_an_arena_ends_with_the_last_value_in_it() -> None:
    call = placing(Slot(0, 0, 64, False), Slot(0, 64, 64, True))
    first = call.allocate((16,), (1,), torch.float32)
    del first
    gc.collect()
    assert made[0]() is not None, "another value is still to come"
    second = call.allocate((16,), (1,), torch.float32)
    assert made[0]() is not None
    del second
    gc.collect()
    assert made[0]() is None


def test_what_is_larger_than_planned_is_by_itself() -> None:
    call = placing(Slot(0, 0, 64, False), Slot(0, 64, 64, True))
    assert call.allocate((17,), (1,), torch.float32) is None
    assert call.allocate((0, 3), (3, 1), torch.float32) is not None
    assert call.allocate((4, 5), (8, 1), torch.float32) is None


def test_a_backward_finds_the_arena_by_a_saved_value() -> None:
    arena = torch.zeros(256, dtype=torch.uint8)
    saved = reinterpret(arena.view(torch.float32), (4, 3), (3, 1), 16)
    call = placing(Slot(0, 0, 64, True), arguments=(saved,))
    found = call.allocate((16,), (1,), torch.float32)
    assert found is not None
    assert found.untyped_storage().data_ptr() == arena.data_ptr()
    assert made == []


def test_a_saved_value_that_was_replaced_by_a_copy_leads_to_no_arena() -> None:
    arena = torch.zeros(256, dtype=torch.uint8)
    copy = reinterpret(arena.view(torch.float32), (4, 3), (3, 1), 16).clone()
    for argument in (copy, None):
        call = placing(Slot(0, 0, 64, True), arguments=(argument,))
        found = call.allocate((16,), (1,), torch.float32)
        assert found is not None
        assert found.untyped_storage().nbytes() == 256
        assert found.untyped_storage().data_ptr() not in (arena.data_ptr(), copy.data_ptr())
        assert len(made) == 1


empty_strided_cpu = torch._C._dynamo.guards._empty_strided_cpu
reinterpret_tensor = reinterpret


def emitted(arguments: list[Tensor]) -> tuple[Tensor, Tensor]:
    (x,) = arguments
    arguments.clear()
    first = empty_strided_cpu((16,), (1,), torch.float32)
    torch.mul(x, 2, out=first)
    second = empty_strided_cpu((16,), (1,), torch.float32)
    torch.add(first, 1, out=second)
    return first, second


def test_a_graph_runs_as_before_until_it_is_placed_and_each_call_has_its_own_arena() -> None:
    graph, x = PlacedGraph(emitted, (), False, "cpu"), torch.arange(16.0)
    first, second = graph([x])
    assert first.untyped_storage().data_ptr() != second.untyped_storage().data_ptr()
    graph.places = SamePlaces(Placement((128,), (Slot(0, 0, 64, False), Slot(0, 64, 64, True))))
    calls = [graph([x]), graph([x + 1])]
    for n, (first, second) in enumerate(calls):
        assert torch.equal(first, 2 * (x + n))
        assert torch.equal(second, 2 * (x + n) + 1)
        assert second.data_ptr() == first.data_ptr() + 64
    assert calls[0][0].untyped_storage().data_ptr() != calls[1][0].untyped_storage().data_ptr()
    assert emitted([x])[0].untyped_storage().nbytes() == 64, "the module's own function is as it was"


def test_places_by_size_are_the_latest_that_are_large_enough() -> None:
    small, large = Placement((64,), (None,)), Placement((128,), (None,))
    places = PlacesBySize((1,), (((20,), large), ((10,), small)))
    assert places.of([None, 5]) is large
    assert places.of([None, 20]) is large
    assert places.of([None, 21]) is None


def test_a_backward_has_the_places_of_its_forward() -> None:
    small, large = (Placement((size,), (None,), ((0, 0),)) for size in (64, 128))
    places = PlacesBySize((1,), (((20,), large), ((10,), small)))
    saved = {size: torch.empty(size, dtype=torch.uint8)[:8] for size in (64, 128, 32)}
    assert places.of([saved[64], 10]) is small
    assert places.of([saved[128], 10]) is large
    # A copy by a hook tells nothing.
    assert places.of([saved[32], 10]) is large
