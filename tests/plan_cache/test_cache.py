"""The plan cache: each field of the key is a miss, near sizes are candidates, and memory and disk stay bounded."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields, replace
from pathlib import Path

import pytest

from remat_compiler.ir.graph import OpId
from remat_compiler.ir.plan import Plan, PlanResult, PlanStatus
from remat_compiler.plan_cache.cache import CANDIDATES, MISS_FOLDER, PlanCache, plan_folder
from remat_compiler.plan_cache.key import (
    CLASS_RATIO,
    CachedPlan,
    CacheMiss,
    CacheQuery,
    PlanCacheKey,
    size_class,
)
from remat_compiler.plan_cache.misses import Difference, differences, explain

SIZE = 1_000_000
KEY = PlanCacheKey(
    structure="s" * 64,
    parameters="p" * 64,
    size_class=size_class(SIZE),
    budget_bytes=500_000,
    offload_bytes=0,
    max_slowdown=2.0,
    planner="auto",
    planner_options="time_limit=2.0",
    costs="rates",
    versions="1",
)
OTHER: dict[str, object] = {
    "structure": "t" * 64,
    "parameters": "q" * 64,
    "size_class": KEY.size_class + 2,
    "budget_bytes": 500_001,
    "offload_bytes": 1,
    "max_slowdown": None,
    "planner": "greedy",
    "planner_options": "time_limit=3.0",
    "costs": "other rates",
    "versions": "2",
}
PLAN = Plan((OpId(0), OpId(1), OpId(0)), 2)
RESULT = PlanResult(PlanStatus.FEASIBLE, "auto", PLAN, 400_000, 30, 10, 5, (("a", "b"),))


def digest(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def question(size: int = SIZE, exact: str = "e" * 64, key: PlanCacheKey = KEY) -> CacheQuery:
    return CacheQuery(replace(key, size_class=size_class(size)), exact, size)


def entry(asked: CacheQuery | None = None, seed: str = "", made_at_ns: int = 1) -> CachedPlan:
    return CachedPlan(asked or question(), seed, 20, made_at_ns, RESULT)


@pytest.mark.parametrize("kept", ["memory", "disk"])
@pytest.mark.parametrize("name", [f.name for f in fields(PlanCacheKey)])
def test_each_field_of_the_key_is_a_miss(name: str, kept: str, tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    cache.keep(entry())
    if kept == "disk":
        cache = PlanCache(tmp_path)
    changed = replace(question(), key=replace(KEY, **{name: OTHER[name]}))  # type: ignore[arg-type]
    assert cache.find(changed) is None
    assert cache.similar(replace(changed, exact="f" * 64)) == []
    assert cache.find(question()) == entry()
    assert cache.similar(question(exact="f" * 64)) == [entry()]


def test_the_same_key_and_size_of_another_problem_is_no_exact_hit() -> None:
    cache = PlanCache(None)
    cache.keep(entry())
    assert cache.find(question(exact="f" * 64)) is None
    # Names hold the first digits alone.
    assert cache.find(question(exact="e" * 63 + "f")) is None


def test_classes_end_at_equal_ratios() -> None:
    assert size_class(0) == size_class(1) == 0
    for size in (1_000, 10**6, 10**12):
        number = size_class(size)
        assert size_class(size * 2) - number in (7, 8)
        assert size_class(int(size * CLASS_RATIO * 1.001)) == number + 1
        assert size_class(int(size * CLASS_RATIO * 0.999)) - number in (0, 1)


def sizes(entries: Sequence[CachedPlan]) -> list[int]:
    return [one.question.activation_bytes for one in entries]


@pytest.mark.parametrize("kept", ["memory", "disk"])
def test_near_sizes_are_candidates_the_nearest_first(kept: str, tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    for number, percent in enumerate((50, 80, 96, 99, 103, 130, 200)):
        cache.keep(entry(question(SIZE * percent // 100, digest(number))))
    if kept == "disk":
        cache = PlanCache(tmp_path)
    assert sizes(cache.similar(question())) == [990_000, 1_030_000, 960_000]


def test_only_some_candidates_are_tried_and_none_that_was_itself_taken_from_another() -> None:
    cache = PlanCache(None)
    for number in range(2 * CANDIDATES):
        seed = "s" * 64 if number % 2 else ""
        cache.keep(entry(question(SIZE + number, digest(number)), seed))
    found = cache.similar(question(SIZE - 1))
    assert sizes(found) == [SIZE + 2 * number for number in range(CANDIDATES)]


def test_memory_keeps_those_used_last(tmp_path: Path) -> None:
    cache = PlanCache(None, max_in_memory=3)
    for number in range(3):
        cache.keep(entry(question(exact=digest(number))))
    assert cache.find(question(exact=digest(0)))
    cache.keep(entry(question(exact=digest(3))))
    assert len(cache) == 3
    assert [bool(cache.find(question(exact=digest(number)))) for number in range(4)] == [True, False, True, True]


def test_threads_share_a_cache(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path, max_in_memory=8)

    def work(worker: int) -> int:
        for number in range(40):
            mine = question(SIZE + number, digest(1000 * worker + number))
            cache.keep(entry(mine))
            assert cache.find(mine) == entry(mine)
            assert cache.similar(question(SIZE + number))
        return worker

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(work, range(4))) == [0, 1, 2, 3]
    assert len(cache) == 8
    assert len(plan_folder(tmp_path).names()) == 160


def test_a_file_under_the_name_of_another_problem_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    PlanCache(tmp_path).keep(entry())
    folder = plan_folder(tmp_path)
    asked = question(exact="f" * 64)
    (folder.path / f"{question().name}.json").rename(folder.path / f"{asked.name}.json")
    with caplog.at_level(logging.WARNING):
        assert PlanCache(tmp_path).find(asked) is None
    assert "holds the plan of another problem" in caplog.text


def test_foreign_files_do_not_disturb(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    cache.keep(entry())
    for name in ("README", "notes.json", f"{question().name[:24]}-x-y.json", f"{question().name[:24]}.json"):
        (tmp_path / "plan-cache" / name).write_text("mine")
    assert PlanCache(tmp_path).similar(question(exact="f" * 64)) == [entry()]
    assert (tmp_path / "plan-cache" / "README").read_text() == "mine"


def test_misses_are_kept_apart_and_explained_by_what_was_known_before(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path)
    cache.note_miss(CacheMiss(question(), 50, ("too large",)))
    assert len(list((tmp_path / MISS_FOLDER).iterdir())) == 1
    miss = CacheMiss(question(), 50, ())
    far = replace(KEY, planner="greedy", costs="other")
    known = [
        entry(question(key=far), made_at_ns=10),
        entry(question(SIZE * 2), made_at_ns=20),
        entry(question(SIZE * 3), made_at_ns=30),
        entry(question(), made_at_ns=60),
        entry(question(), seed="s" * 64, made_at_ns=10),
    ]
    found = explain(miss, known)
    assert found.nearest == known[1]
    asked, near = str(KEY.size_class), str(size_class(2 * SIZE))
    assert found.differences == (Difference("size_class", asked, near),)
    assert explain(miss, known[:1]).differences == (
        Difference("planner", "auto", "greedy"),
        Difference("costs", "rates", "other"),
    )
    assert explain(miss, known[3:]).nearest is None


@pytest.mark.parametrize("name", [f.name for f in fields(PlanCacheKey)])
def test_every_difference_of_keys_is_told(name: str) -> None:
    changed = replace(KEY, **{name: OTHER[name]})  # type: ignore[arg-type]
    assert differences(KEY, changed) == (Difference(name, str(getattr(KEY, name)), str(OTHER[name])),)
    assert differences(KEY, replace(KEY, size_class=KEY.size_class + 1)) == ()
