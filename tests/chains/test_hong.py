"""Algorithms 3, 5 and 6 against every subset, and against the paper's own sets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import combinations
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat_passes.chains.hong import (
    Chain,
    dynamic_objective,
    select_linear,
    select_quadratic,
    select_static,
    static_objective,
)

DYNAMIC = (select_linear, select_quadratic)


def all_checkpoint_sets(last: int) -> Iterator[tuple[int, ...]]:
    for count in range(max(last, 1)):
        for chosen in combinations(range(1, last), count):
            yield (*chosen, last) if last else ()


def chains(longest: int = 8) -> st.SearchStrategy[Chain]:
    """Chains with ties and zeros: as in the paper, with inner values, and with parameter gradients too."""
    size = st.sampled_from([0, 1, 1, 2, 3, 4, 50, 51])
    sizes = st.integers(1, longest + 1).flatmap(lambda n: st.tuples(*[st.lists(size, min_size=n, max_size=n)] * 3))
    return st.one_of(
        sizes.map(lambda s: Chain.of_sizes(s[0])),
        sizes.map(lambda s: Chain(tuple(s[0]), tuple(s[1]))),
        sizes.map(lambda s: Chain(tuple(s[0]), tuple(map(max, s[1], s[2])), tuple(s[2]))),
    )


@settings(max_examples=600)
@given(chains())
def test_dynamic_selection_equals_brute_force(chain: Chain) -> None:
    best = min(dynamic_objective(chain, c) for c in all_checkpoint_sets(chain.last))
    for select in DYNAMIC:
        found = select(chain)
        assert found.objective == best
        assert dynamic_objective(chain, found.checkpoints) == best
        assert found.checkpoints[-1:] == ((chain.last,) if chain.last else ())


@settings(max_examples=600)
@given(chains())
def test_static_selection_equals_brute_force(chain: Chain) -> None:
    best = min(static_objective(chain, c) for c in all_checkpoint_sets(chain.last))
    found = select_static(chain)
    assert found.objective == best
    assert static_objective(chain, found.checkpoints) == best


@pytest.mark.parametrize("seed", range(20))
def test_linear_equals_quadratic_on_long_chains(seed: int) -> None:
    rng = Random(seed)
    top = rng.choice([1, 3, 100, 10**9])
    chain = Chain.of_sizes([rng.randint(0, top) for _ in range(rng.randint(100, 400))])
    linear, quadratic = select_linear(chain), select_quadratic(chain)
    assert linear.objective == quadratic.objective == dynamic_objective(chain, linear.checkpoints)


def test_objectives_of_a_chain_worked_by_hand() -> None:
    # C = {0, 2, 4}: m(4) = (1 + 3 + 5) + 4 + max(3, 4) = 17, m(2) = (1 + 3) + 2 + max(1, 2) = 8.
    chain = Chain.of_sizes([1, 2, 3, 4, 5])
    assert dynamic_objective(chain, (2, 4)) == 17
    assert static_objective(chain, (2, 4)) == 1 + 3 + 5 + 4
    # What the backward of layers 3 and 4 leaves behind stands beside m(2) only.
    graded = Chain(chain.checkpoint, chain.content, (0, 0, 0, 4, 5))
    assert graded.finished() == [9, 9, 9, 5, 0]
    assert dynamic_objective(graded, (2, 4)) == max(17, 8 + 9)
    assert dynamic_objective(graded, (4,)) == (1 + 5) + (2 + 3 + 4) + 4
    assert dynamic_objective(graded, (1, 2, 3, 4)) == max(15 + 4, (1 + 2 + 3 + 4) + 3 + 5, (1 + 2 + 3) + 2 + 9)


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        (((), ()), "input"),
        (((1,), (1, 2)), "one of each"),
        (((1, -1), (1, 2)), "negative"),
        (((1, 1), (1, 2), (1,)), "all or none"),
        (((1, 1), (1, 2), (0, 3)), "larger than its content"),
    ],
)
def test_malformed_chains_are_told(sizes: tuple[tuple[int, ...], ...], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        Chain(*sizes)


@pytest.mark.parametrize("kind", ["random", "equal", "rising", "falling"])
def test_linear_time(kind: str) -> None:
    """A chain 16 times as long takes about 16 times as long; 64 allows for a busy machine, 256 is quadratic."""
    rng = Random(0)

    def chain(n: int) -> Chain:
        sizes = {
            "random": [rng.randint(1, 1000) for _ in range(n)],
            "equal": [7] * n,
            "rising": list(range(n)),
            "falling": list(range(n, 0, -1)),
        }
        return Chain.of_sizes(sizes[kind])

    def seconds(chain: Chain) -> float:
        best = float("inf")
        for _ in range(3):
            start = time.perf_counter()
            select_linear(chain)
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(chain(64_000)) < 64 * seconds(chain(4_000))
