"""What was planned for in an earlier process is planned for again, whatever sizes come first."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_compiler.dynamic_shapes import variant_store
from remat_compiler.dynamic_shapes.variant_store import LARGER_SIZES, VariantStore

NO_LIMIT = [None, None]


def stored(folder: Path) -> VariantStore:
    """The store of a process that made four variants."""
    store = VariantStore(folder, "graph")
    for label, sizes in [("first", (4, 60)), (LARGER_SIZES, (4, 300)), ("better", (4, 200)), ("needed", (4, 500))]:
        store.add(label, sizes, free=label == "first")
    return VariantStore(folder, "graph")


def test_the_least_sizes_that_cover_are_taken(tmp_path: Path) -> None:
    again = stored(tmp_path)
    sizes = [(4, 10), (4, 61), (4, 200), (4, 201), (4, 501), (5, 10)]
    found = [again.for_sizes(one, NO_LIMIT, ahead=False) for one in sizes]
    assert found == [(4, 60), (4, 200), (4, 200), (4, 500), (4, 501), (5, 10)]
    assert again.for_sizes((4, 299), NO_LIMIT, ahead=True) == (4, 300)
    assert again.for_sizes((4, 301), NO_LIMIT, ahead=True) == (4, 301)
    assert again.for_sizes((4, 61), [8, 199], ahead=False) == (4, 61)
    assert again.for_sizes((3,), [None], ahead=False) == (3,)


def test_of_two_sizes_the_smaller_product_is_taken(tmp_path: Path) -> None:
    store = VariantStore(tmp_path, "graph")
    store.add("needed", (8, 512), free=False)
    store.add("needed", (16, 64), free=False)
    assert VariantStore(tmp_path, "graph").for_sizes((8, 60), NO_LIMIT, ahead=False) == (16, 64)


def test_the_first_call_takes_only_what_recomputes_nothing(tmp_path: Path) -> None:
    again = stored(tmp_path)
    assert again.for_first((4, 10), NO_LIMIT) == (4, 60)
    assert again.for_first((4, 61), NO_LIMIT) == (4, 61)


def test_missing_are_those_of_the_earlier_process(tmp_path: Path) -> None:
    again = stored(tmp_path)
    assert again.missing([(4, 60)]) == [(4, 200), (4, 500)]
    assert VariantStore(tmp_path, "another graph").missing([]) == []


def test_what_earlier_processes_made_stays_behind_what_is_new(tmp_path: Path) -> None:
    again = stored(tmp_path)
    again.add("first", (4, 70), free=False)
    again.add("needed", (4, 500), free=False)
    earlier = [one.sizes for one in VariantStore(tmp_path, "graph").earlier]
    assert earlier == [(4, 70), (4, 500), (4, 60), (4, 300), (4, 200)]
    for number in range(variant_store.MOST_VARIANTS):
        again.add("better", (5, number), free=False)
    assert len(VariantStore(tmp_path, "graph").earlier) == variant_store.MOST_VARIANTS


def test_no_folder_keeps_nothing(tmp_path: Path) -> None:
    VariantStore(None, "graph").add("first", (1,), free=False)
    assert VariantStore(None, "graph").earlier == ()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["", "{", '{"format": "remat/variants", "version": 99, "data": {}}', "[]"])
def test_a_broken_file_is_a_warned_miss(text: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    stored(tmp_path)
    (file,) = (tmp_path / variant_store.FOLDER).iterdir()
    file.write_text(text)
    variant_store._folder.cache_clear()
    assert VariantStore(tmp_path, "graph").earlier == ()
    assert "cannot be read" in caplog.text
