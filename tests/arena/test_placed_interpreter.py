"""Results of interpreted operators in arenas, on real tensors."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.proxy_tensor import make_fx

from remat_compiler.arena.placed_interpreter import PlacedInterpreter, results_of
from remat_compiler.arena.placing import Placement, SamePlaces, Slot

aten = torch.ops.aten


def traced(function: Callable[..., Any], *inputs: Tensor, tracing_mode: str = "fake") -> fx.GraphModule:
    """The graph of a function that takes a list, as those of a step do."""
    return make_fx(function, tracing_mode=tracing_mode)(*inputs)


def layer(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
    product = aten.mm.default(x, w)
    active = aten.sigmoid.default(product)
    noise = aten.bernoulli.p(active, 0.5)
    normal, _, _ = aten.native_layer_norm.default(active, [8], None, None, 1e-5)
    return aten.add.Tensor(normal, noise), aten.sum.dim_IntList(active, [0])


def inputs() -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(4, 8), torch.randn(8, 8)]


def interpreter(*slots: Slot | None, sizes: tuple[int, ...] = (384,)) -> PlacedInterpreter:
    placed = PlacedInterpreter(traced(layer, *inputs()), False, "cpu")
    placed.places = SamePlaces(Placement(sizes, slots))
    return placed


SLOTS = (Slot(0, 0, 128, False), Slot(0, 128, 128, False), Slot(0, 0, 128, False), Slot(0, 256, 64, True))


def run(call: Any) -> list[Tensor]:
    given = inputs()
    torch.manual_seed(1)
    return list(call(given))


def test_operators_with_a_form_for_the_result_are_found_in_order() -> None:
    found = results_of(traced(layer, *inputs()), "cpu")
    assert [node.target for node in found] == [
        aten.mm.default,
        aten.sigmoid.default,
        aten.add.Tensor,
        aten.sum.dim_IntList,
    ]
    assert [result.size for result in found.values()] == [(4, 8), (4, 8), (4, 8), (8,)]
    assert results_of(traced(layer, *inputs()), "cuda") == {}


def test_results_lie_where_they_are_planned() -> None:
    placed = interpreter(*SLOTS)
    expected = [t.clone() for t in run(PlacedInterpreter(traced(layer, *inputs()), False, "cpu"))]
    calls = [run(placed), run(placed)]
    for last, total in calls:
        assert torch.equal(last, expected[0])
        assert torch.equal(total, expected[1])
        assert last.untyped_storage().nbytes() == 384
        assert total.data_ptr() - last.data_ptr() == 256, "the sum lies behind, the last value where the first was"
        assert not last._is_view()
        assert (last._version, total._version) == (1, 1), "written once each, apart from the other"
    assert calls[0][0].data_ptr() != calls[1][0].data_ptr(), "each call has an arena of its own"


def test_what_has_no_slot_is_allocated_as_ever() -> None:
    last, total = run(interpreter(None, *SLOTS[1:3], None))
    assert last.untyped_storage().nbytes() == 384
    assert total.untyped_storage().nbytes() == 32
    # The slot of one that is larger than planned stays empty.
    last, _ = run(interpreter(*SLOTS[:2], Slot(0, 0, 64, False), SLOTS[3]))
    assert last.untyped_storage().nbytes() == 128


def test_an_argument_in_another_layout_than_traced_goes_to_the_operator_itself() -> None:
    placed = interpreter(*SLOTS)
    x, w = inputs()
    torch.manual_seed(1)
    expected = layer(x, w.t().contiguous().t())
    torch.manual_seed(1)
    seen: list[Tensor] = []
    memory = torch.empty(64)
    found = placed.run([x, w.t().contiguous().t()], lambda size, stride, dtype: None, seen.append)
    assert all(map(torch.equal, found, expected))
    assert len(seen) == 4
    seen.clear()
    torch.manual_seed(1)
    placed.run([x, w.t().contiguous().t()], lambda *of: memory.as_strided(of[0], of[1]).clone(), seen.append)
    assert [one.shape for one in seen] == [(4, 8)], "the product, whose argument is transposed"


def test_an_arena_goes_with_the_last_value_in_it() -> None:
    results = run(interpreter(*SLOTS))
    alive = [weakref.ref(one.untyped_storage()) for one in results]
    total = results.pop()
    results.clear()
    gc.collect()
    assert alive[1]() is not None
    del total
    gc.collect()
    assert alive[1]() is None


def test_sizes_that_change_and_complex_views_have_no_place() -> None:
    def twice(x: Tensor) -> Tensor:
        return aten.mul.Tensor(x, 2)

    assert len(results_of(traced(twice, torch.randn(3, 4)), "cpu")) == 1
    assert results_of(traced(twice, torch.randn(3, 4), tracing_mode="symbolic"), "cpu") == {}
    value = torch.randn(3, dtype=torch.complex64)
    conjugate = traced(twice, value)
    next(iter(conjugate.graph.nodes)).meta["val"] = value.conj()
    assert results_of(conjugate, "cpu") == {}
