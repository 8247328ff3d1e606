"""What libraries keep from the first step on: which operators make it, and when."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from remat_compiler.costs.libraries import kept_lives
from remat_compiler.simulate.lives import Life

MIB = 2**20


class Ran(NamedTuple):
    phase: str
    label: str


STEP = (
    Ran("forward", "aten.embedding.default"),
    Ran("forward", "triton_poi_fused_0"),
    Ran("forward", "aten.addmm.out"),
    Ran("forward", "aten.mm.out"),
    Ran("backward", "empty_strided"),
    Ran("backward", "aten.bmm.default"),
    Ran("backward", "aten.mm.out"),
    Ran("optimizer", "aten.mm.default"),
)


@pytest.mark.parametrize(("major", "size"), [(9, 32 * MIB), (10, 32 * MIB), (8, 8 * MIB + 128 * 1024)])
def test_the_first_product_of_each_thread_makes_it(major: int, size: int) -> None:
    assert kept_lives(STEP, (major, 0)) == (Life(size, 2, None), Life(size, 5, None))


def test_the_optimizer_runs_on_the_programs_thread() -> None:
    without = [one for one in STEP if one.phase != "forward"]
    assert [one.made for one in kept_lives(without, (9, 0))] == [1, 3]


def test_a_step_without_products_makes_none() -> None:
    assert kept_lives([Ran("forward", "aten.convolution.default"), Ran("backward", "aten.add.Tensor")], (9, 0)) == ()
