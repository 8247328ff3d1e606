"""What was planned for in an earlier process is planned for again, whatever sizes come first."""

from __future__ import annotations

from pathlib import Path

import pytest

from remat_compiler.runtime import variant_store
from remat_compiler.runtime.variant_store import AHEAD, VariantStore


def stored(folder: Path) -> VariantStore:
    """The store of a process that made four variants."""
    store = VariantStore(folder, "graph")
    for label, sizes in [("first", (4, 60)), (AHEAD, (4, 300)), ("worth it", (4, 200)), ("needed", (4, 500))]:
        store.add(label, sizes)
    return VariantStore(folder, "graph")


def test_the_least_sizes_that_cover_are_taken(tmp_path: Path) -> None:
    again = stored(tmp_path)
    sizes = [(4, 10), (4, 61), (4, 200), (4, 201), (4, 501), (5, 10)]
    found = [again.for_sizes(one, ahead=False) for one in sizes]
    assert found == [(4, 60), (4, 200), (4, 200), (4, 500), (4, 501), (5, 10)]
    assert again.for_sizes((4, 299), ahead=True) == (4, 300)
    assert again.for_sizes((4, 301), ahead=True) == (4, 301)
    assert again.for_sizes((3,), ahead=False) == (3,)


def test_missing_are_those_of_the_earlier_process(tmp_path: Path) -> None:
    again = stored(tmp_path)
    assert again.missing([(4, 60)]) == [(4, 200), (4, 500)]
    assert VariantStore(tmp_path, "another graph").missing([]) == []


def test_what_earlier_processes_made_stays_behind_what_is_new(tmp_path: Path) -> None:
    again = stored(tmp_path)
    again.add("first", (4, 70))
    again.add("needed", (4, 500))
    earlier = [one.sizes for one in VariantStore(tmp_path, "graph").earlier]
    assert earlier == [(4, 70), (4, 500), (4, 60), (4, 300), (4, 200)]
    for number in range(variant_store.MOST_VARIANTS):
        again.add("worth it", (5, number))
    assert len(VariantStore(tmp_path, "graph").earlier) == variant_store.MOST_VARIANTS


def test_no_folder_keeps_nothing(tmp_path: Path) -> None:
    VariantStore(None, "graph").add("first", (1,))
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
