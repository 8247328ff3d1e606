"""Loops are compiled no more often than they must be."""

from __future__ import annotations

import pytest

from remat_passes.planning.compiled import _for_any_number

numba = pytest.importorskip("numba")


def test_numbers_that_are_written_out_need_no_code_of_their_own() -> None:
    @_for_any_number
    @numba.njit
    def added(number: int, more: int) -> int:
        return number + more

    @numba.njit
    def called(number: int) -> int:
        return added(number, 1) + added(number, more=2) + added(number, number)

    assert called(5) == 23
    assert len(added.signatures) == 1
