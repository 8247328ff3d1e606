"""What a step takes, moment by moment, and what libraries keep on a card beside its tensors."""

from __future__ import annotations

import pytest

from fitting.paper_answers import kept_as_compiled, kept_at, peaks_and_lives, updated_within
from remat_compiler.devices.gpus import gpu_named
from remat_compiler.fitting.counted_step import BACKWARD, FORWARD, UPDATE, library_bytes, library_sizes
from remat_compiler.fitting.paper_process import call_in_process

MIB = 2**20


@pytest.mark.parametrize(("name", "each"), [("h100", 32 * MIB), ("a100-40", 8 * MIB + 128 * 1024)])
def test_cublas_keeps_a_workspace_for_each_of_two_threads(name: str, each: int) -> None:
    """The backward runs on a thread of autograd's, which has a handle of its own."""
    gpu = gpu_named(name)
    assert library_bytes(gpu) == 2 * each
    assert library_sizes(gpu) == [each, each]


@pytest.mark.parametrize("compiled", [False, True])
def test_each_thread_makes_its_workspace_at_its_first_product(compiled: bool) -> None:
    labels, kept = call_in_process(kept_at, compiled)
    products = [
        i for i, (_, label) in enumerate(labels) if "." in label and label.split(".")[1] in ("mm", "addmm", "bmm")
    ]
    first = {phase: min(i for i in products if labels[i][0] == phase) for phase in (FORWARD, BACKWARD)}
    assert kept == [(32 * MIB, first[FORWARD], None), (32 * MIB, first[BACKWARD], None)]


def test_the_backend_counts_with_them_as_well() -> None:
    ((forward, backward),) = call_in_process(kept_as_compiled)
    assert forward[0] == backward[0] == 32 * MIB
    assert forward[1] < backward[1]


def test_the_peaks_are_those_of_what_is_alive_with_what_operators_take_inside() -> None:
    """Of forward and backward up to the moment at which the optimizer's step begins, and of that from there on."""
    peaks, update_from, alive = call_in_process(peaks_and_lives, "vision")
    ends = max(freed or made + 1 for _, made, freed in alive)
    taken = [0] * ends
    for size, made, freed in alive:
        for moment in range(made, ends if freed is None else freed):
            taken[moment] += size
    assert max(taken[:update_from]) == max(peaks[FORWARD], peaks[BACKWARD])
    assert max(taken[update_from:]) == peaks[UPDATE]


def test_what_updates_take_in_the_backward_is_planned_for() -> None:
    """Adam's temporaries are as large as the large layer is: the smallest peak is at a moment without them."""
    layer = 4 * 256 * 4096
    budgets = (11_000_000, 13_000_000)
    smallest, *taken = call_in_process(updated_within, ("min", *budgets))
    assert smallest < 2 * layer + 4 * 256 * 256 * 2
    assert all(0.9 * budget < size <= budget for size, budget in zip(taken, budgets, strict=True))
