"""A folder of documents: nothing broken is taken, nothing is lost, and it stays bounded."""

from __future__ import annotations

import errno
import json
import logging
import multiprocessing
import os
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from remat_compiler.costs.store import FigureStore
from remat_compiler.ir.json_folder import ABANDONED_S, JsonFolder


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
    "nested deep": "[" * 100_000,
    "data nested deep": GOOD.replace("[]", "[" * 900 + "]" * 900),
    "a number beyond 64 bits": GOOD.replace('"writer": 1', f'"writer": {10**40}'),
    "a number beyond what Python reads": GOOD.replace('"writer": 1', f'"writer": {"9" * 5000}'),
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
    assert [record.message.startswith("remat: ignored ") for record in caplog.records] == [True]
    assert (tmp_path / "bad.json").read_bytes() == content
    assert folder.read("good") == Note(1, ())


def put_folder(path: Path) -> None:
    path.mkdir()


def put_large(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


def put_loop(path: Path) -> None:
    path.symlink_to(path)


def put_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("put", [put_folder, os.mkfifo, put_large, put_loop, put_device])
def test_what_is_no_document_is_a_warned_miss_and_does_not_keep_others_from_being_written(
    put: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "bad.json")
    folder = folder_at(tmp_path, max_bytes=2**40)
    assert folder.read("bad") is None
    assert folder.read("bad") is None
    assert len(caplog.records) == 1
    folder.write("good", Note(1, ()))
    assert folder.read("good") == Note(1, ())
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


@contextmanager
def no_room_for_a_name() -> Iterator[None]:
    def full(source: str, target: Path) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "replace", full)
        yield


@contextmanager
def no_room_for_content() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("full_disk", [no_room_for_a_name, no_room_for_content])
def test_a_full_disk_is_one_warning_for_all_folders_and_leaves_old_documents_and_no_rest(
    full_disk: Callable[[], AbstractContextManager[None]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, other, figures = folder_at(tmp_path / "one"), folder_at(tmp_path / "two"), FigureStore("rates", tmp_path)
    folder.write("one", Note(1, ()))
    with full_disk():
        folder.write("one", Note(2, ()))
        other.write("two", Note(2, ()))
        figures.add({"a": 1})
    assert folder.read("one") == Note(1, ())
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["one.json"]
    assert ["cannot be written" in record.message for record in caplog.records] == [True]
    folder.write("one", Note(3, ()))
    assert folder.read("one") == Note(3, ())


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


def test_folders_within_it_neither_count_nor_stop_it_from_being_trimmed(tmp_path: Path) -> None:
    folder = folder_at(tmp_path, max_files=2)
    (tmp_path / "aside.json").mkdir()
    for number in range(3):
        folder.write(str(number), Note(number, ()))
        os.utime(tmp_path / f"{number}.json", (1_000 + number, 1_000 + number))
    assert [file.name for file in folder.files()] == ["2", "1"]
    assert (tmp_path / "aside.json").is_dir()


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
