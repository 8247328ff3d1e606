"""What travels around AOTAutograd: each compilation has a list of its own, and leaves none behind."""

from __future__ import annotations

from typing import cast

import pytest

from remat_compiler.partition.result import Partition
from remat_compiler.partition.session import Session, current_session

ONE, OTHER = cast("Partition", "one"), cast("Partition", "other")


def test_a_compilation_within_another_one_has_a_list_of_its_own() -> None:
    outer, inner = Session(parameters="outer"), Session(parameters="inner")
    with outer.compiling() as made:
        current_session().partitions.append(ONE)
        with inner.compiling() as made_inside:
            assert current_session().parameters == "inner"
            current_session().partitions.append(OTHER)
        assert current_session().parameters == "outer"
    assert (made, made_inside) == ([ONE], [OTHER])


def test_a_session_begins_each_compilation_with_nothing_decided() -> None:
    session = Session()
    for _ in range(2):
        with session.compiling() as made:
            assert not made
            current_session().partitions.append(ONE)
    assert not session.partitions


def test_nothing_is_left_after_a_compilation_that_fails() -> None:
    with pytest.raises(RuntimeError, match="refused"), Session(parameters="failed").compiling():
        raise RuntimeError("refused")
    assert current_session().parameters == ""
