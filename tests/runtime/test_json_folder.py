"""A folder of documents: nothing broken is taken, nothing is lost, and it stays bounded."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from remat_compiler.runtime.json_folder import ABANDONED_S, JsonFolder


@dataclass(frozen=True, slots=True)
class Note:
    writer: int
    words: tuple[str, ...]


def folder_at(path: Path, max_files: int = 100, max_bytes: int = 10**9, version: int = 1) -> JsonFolder[Note]:
    return JsonFolder(path, Note, "note", version, max_files, max_bytes)


def test_what_was_written_is_read_by_another_and_nothing_else_is_left(tmp_path: Path) -> None:
    folder_at(tmp_path / "new" / "notes").write("one", Note(1, ("a", "b")))
    other = folder_at(tmp_path / "new" / "notes")
    assert other.read("one") == Note(1, ("a", "b"))
    assert other.read("two") is None
    assert [path.name for path in (tmp_path / "new" / "notes").iterdir()] == ["one.json"]


GOOD = json.dumps({"data": {"words": [], "writer": 1}, "format": "remat/note", "version": 1})
BROKEN = {
    "empty": "",
    "cut off": GOOD[:-9],
    "not JSON": "import os",
    "another version": GOOD.replace('"version": 1', '"version": 2'),
    "another kind": GOOD.replace("note", "memo"),
    "another type": GOOD.replace('"writer": 1', '"writer": "1"'),
    "not text": "\udcff",
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_file_is_one_warning_and_stays(how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = folder_at(tmp_path)
    folder.write("good", Note(1, ()))
    content = BROKEN[how].encode(errors="surrogateescape")
    (tmp_path / "bad.json").write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert folder.read("bad") is None
        assert folder.read("bad") is None
    assert [record.message.startswith("ignored ") for record in caplog.records] == [True]
    assert (tmp_path / "bad.json").read_bytes() == content
    assert folder.read("good") == Note(1, ())


def test_what_is_no_file_is_a_warned_miss(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "bad.json").mkdir()
    assert folder_at(tmp_path).read("bad") is None
    assert len(caplog.records) == 1


def test_a_folder_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "notes").write_text("a file where the folder should be")
    folder = folder_at(tmp_path / "notes")
    for name in ("one", "two"):
        folder.write(name, Note(1, ()))
    assert folder.names() == []
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text


def test_what_has_no_json_form_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder_at(tmp_path).write("one", Note(1, (b"bytes",)))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
    assert "cannot be written (expected a dataclass" in caplog.text


def test_a_failed_write_leaves_the_old_document_and_no_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = folder_at(tmp_path)
    folder.write("one", Note(1, ()))

    def full(source: str, target: Path) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        folder.write("one", Note(2, ()))
    assert folder.read("one") == Note(1, ())
    assert [path.name for path in tmp_path.iterdir()] == ["one.json"]
    assert "No space left" in caplog.text


def age(folder: JsonFolder[Note], name: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(folder.path / f"{name}.json", (then, then))


def test_those_used_longest_ago_go_first(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, max_files=3)
    for position, name in enumerate("abc"):
        folder.write(name, Note(position, ()))
        age(folder, name, 100 - position)
    folder.use("a")
    folder.write("d", Note(3, ()))
    assert folder.names() == ["a", "c", "d"]
    assert [file.name for file in folder.files()][-1] == "c"


def test_bytes_are_bounded_and_the_last_document_stays(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, max_bytes=2500)
    for position, name in enumerate("abc"):
        folder.write(name, Note(position, ("x" * 1000,)))
        age(folder, name, 100 - position)
    assert folder.names() == ["b", "c"]
    folder.write("large", Note(4, ("x" * 5000,)))
    assert folder.names() == ["large"]


def test_only_old_temporary_files_are_taken_away(tmp_path: Path) -> None:
    folder = folder_at(tmp_path)
    for name, seconds in (("killed.tmp", ABANDONED_S + 60), ("busy.tmp", 60)):
        (tmp_path / name).write_text("{")
        then = time.time() - seconds
        os.utime(tmp_path / name, (then, then))
    folder.write("one", Note(1, ()))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["busy.tmp", "one.json"]


def write_many(path: Path, writer: int) -> None:
    folder = folder_at(path)
    for position in range(60):
        folder.write("shared", Note(writer, ("word",) * (1000 + position)))
        folder.write(f"own-{writer}-{position % 5}", Note(writer, ()))


def test_processes_that_write_at_once_lose_nothing_and_nobody_reads_half_a_document(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=write_many, args=(tmp_path, writer)) for writer in (1, 2)]
    folder, seen = folder_at(tmp_path), set()
    for process in writers:
        process.start()
    while any(process.is_alive() for process in writers):
        note = folder.read("shared")
        if note is not None:
            assert len(note.words) >= 1000
            seen.add(note.writer)
    for process in writers:
        process.join()
    assert [process.exitcode for process in writers] == [0, 0]
    assert seen
    assert not caplog.records
    assert folder.names() == [*(f"own-{w}-{i}" for w in (1, 2) for i in range(5)), "shared"]
