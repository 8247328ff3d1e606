"""Loops are compiled no more often than they must be."""

from __future__ import annotations

import pickle
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from remat_passes.sequences.jit import _for_any_number

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


def loaded(path: Path) -> ModuleType:
    """The module of the file `path`, executed anew."""
    spec = spec_from_file_location("moved", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cut_off(index: Path) -> bytes:
    return index.read_bytes()[:-3]


def of_a_module_that_moved(index: Path) -> bytes:
    with index.open("rb") as file:
        version = pickle.load(file)
    return pickle.dumps(version) + b"cgone\nname\n."


@pytest.mark.parametrize("broken", [cut_off, of_a_module_that_moved])
def test_kept_code_that_cannot_be_read_is_compiled_again(broken: Any, tmp_path: Path) -> None:
    file = tmp_path / "moved.py"
    file.write_text(
        "from remat_passes.sequences.jit import compiled\n@compiled\ndef twice(number):\n    return 2 * number\n"
    )
    assert loaded(file).twice(4) == 8
    (index,) = tmp_path.rglob("*.nbi")
    index.write_bytes(broken(index))
    again = loaded(file).twice
    assert again(4) == 8
    assert sum(again.stats.cache_misses.values()) == 1
    after = loaded(file).twice
    assert after(4) == 8
    assert sum(after.stats.cache_hits.values()) == 1
