"""Sizes that depend on data are taken symbol by symbol, within the bounds that are known of them."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from remat_compiler import torch_compat

FALLBACK = torch_compat.UNBACKED_FALLBACK


@pytest.fixture
def size() -> torch.SymInt:
    """A size of which nothing is known but that it is one."""
    found = ShapeEnv().create_unbacked_symint()
    torch._check(found >= 0)
    return found


def test_the_fallback_stands_for_each_symbol(size: torch.SymInt) -> None:
    other = size.node.shape_env.create_unbacked_symint()
    assert torch_compat.size_hint(size) == FALLBACK
    assert torch_compat.size_hint(256 * size) == 256 * FALLBACK
    assert torch_compat.size_hint(4 * size + 2 * other + 1) == 6 * FALLBACK + 1
    assert torch_compat.size_hint((size + 7) // 8) == (FALLBACK + 7) // 8


@pytest.mark.parametrize(("least", "most", "assumed"), [(2, 1_000, 1_000), (0, 9_000, FALLBACK), (5_000, 9_000, 5_000)])
def test_bounds_of_a_symbol_are_respected(least: int, most: int, assumed: int, size: torch.SymInt) -> None:
    torch._check(size >= least)
    torch._check(size <= most)
    assert torch_compat.size_hint(256 * size) == 256 * assumed
    assert torch_compat.symbol_hint(size) is None
    # A number that is given for it goes before.
    with torch_compat.sizes_at({str(size.node.expr): 3}):
        assert torch_compat.size_hint(256 * size) == 768


@pytest.mark.parametrize(("device", "taken"), [("cpu", 4), ("cuda", 512), ("xpu", 512), ("mtia", 512)])
def test_accelerators_allocate_in_multiples_of_512_bytes(device: str, taken: int) -> None:
    with torch_compat.FakeTensorMode():
        assert torch_compat.allocated_bytes(torch.empty(1, device=device)) == taken
    assert torch_compat.allocation_alignment(device) == max(taken // 512 * 512, 1)
