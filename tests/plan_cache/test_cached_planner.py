"""A planner with a cache: what is found again, what is solved, and what every part of the key comes from."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.plan import PlanResult, PlanStatus
from remat_compiler.ir.problem import NO_BYTES, RematProblem
from remat_compiler.plan_cache import cached_planner
from remat_compiler.plan_cache.cache import PlanCache, miss_folder, plan_folder
from remat_compiler.plan_cache.cached_planner import CachedPlanner, code_digest, may_take_similar
from remat_compiler.plan_cache.key import CacheQuery, PlanCacheKey
from remat_compiler.plan_cache.origin import is_of_another_size, where_in_cache
from remat_compiler.simulate.verify import verify
from remat_compiler.stats import Stats, reset_stats, stats
from remat_passes.planning.auto import Auto
from scaled import everything_once, step

QUICK = Auto(effort=500, time_limit=0.0)


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    reset_stats()
    yield
    reset_stats()


def planner_with(cache: PlanCache | None, planner: Any = QUICK, **changes: Any) -> CachedPlanner:
    return CachedPlanner(
        planner, cache, **{"max_slowdown": None, "costs": "rates", "parameters": "", "similar": True, **changes}
    )


def counted() -> tuple[int, int, int, int]:
    """Exact hits, similar hits, misses and solves since the last call."""
    found: Stats = stats()
    reset_stats()
    return found.exact_hits, found.similar_hits, found.misses, found.solves


def bare(result: PlanResult) -> PlanResult:
    return replace(result, stats=())


def test_a_plan_is_solved_once_for_all_processes(tmp_path: Path) -> None:
    problem = step()
    first = planner_with(PlanCache(tmp_path)).plan(problem)
    assert counted() == (0, 0, 1, 1)
    cache = PlanCache(tmp_path)
    for _ in range(2):
        again = planner_with(cache).plan(problem)
        assert bare(again) == bare(first) == bare(QUICK.plan(problem))
        assert where_in_cache(again).startswith("made at 20")
    assert where_in_cache(first) == ""
    assert counted() == (2, 0, 0, 0)


def test_another_size_takes_the_plan_and_the_same_one_in_every_process(tmp_path: Path) -> None:
    planner_with(PlanCache(tmp_path)).plan(step(100, blocks=20))
    counted()
    here = step(99, blocks=20)
    taken = planner_with(PlanCache(tmp_path)).plan(here)
    assert counted() == (0, 1, 0, 0)
    assert taken.plan is not None
    assert verify(here, taken.plan, taken.peak_bytes) == []
    assert is_of_another_size(taken)
    assert "for activations of 2.1 MiB, here 2.1 MiB" in where_in_cache(taken)
    # A nearer one comes in between: what was taken stays taken.
    planner_with(PlanCache(tmp_path), similar=False).plan(step(100, blocks=20))
    assert planner_with(PlanCache(tmp_path)).plan(here) == taken
    assert counted() == (2, 0, 0, 0)


def test_the_fastest_of_several_plans_is_taken_for_another_size() -> None:
    cache = PlanCache(None)
    tight, loose = step(100, 0.55, blocks=20), step(100, 0.65, blocks=20)
    here = step(99, 0.65, blocks=20)
    planner = planner_with(cache)
    asked = planner.question(loose)
    for number, problem in enumerate((tight, loose)):
        planner.plan(problem)
        entry = cache.find(planner.question(problem))
        assert entry is not None
        # As if both had been solved for the budget at hand, one of them badly.
        cache.keep(replace(entry, question=replace(asked, exact=f"{number}" * 64)))
    assert planner.plan(here).added_ns <= QUICK.plan(here).added_ns + 0.02 * here.costs.step_ns
    assert stats().similar_hits == 1


def test_what_differs_from_the_problem_in_any_figure_is_no_exact_hit(tmp_path: Path) -> None:
    problem = replace(step(), max_added_ns=10**9)
    costs, storages = problem.costs, problem.graph.storages
    inputs = next(s.id for s in storages if s.kind is StorageKind.INPUT)
    others = {
        "time": replace(problem, costs=replace(costs, time_ns=(costs.time_ns[0] + 1, *costs.time_ns[1:]))),
        "workspace": replace(problem, costs=replace(costs, workspace_bytes=(1, *costs.workspace_bytes[1:]))),
        "limit": replace(problem, max_added_ns=10**9 + 1),
        "reference": replace(problem, reference=everything_once(problem)),
        "bytes": replace(
            problem,
            graph=replace(
                problem.graph,
                storages=tuple(replace(s, size_bytes=s.size_bytes + (s.id == inputs)) for s in storages),
            ),
        ),
    }
    planner = planner_with(PlanCache(tmp_path), similar=False)
    planner.plan(problem)
    assert counted() == (0, 0, 1, 1)
    for name, other in others.items():
        planner.plan(other)
        assert counted() == (0, 0, 1, 1), name


def changed_width(problem: RematProblem) -> RematProblem:
    storages = tuple(
        replace(s, size_bytes=s.size_bytes + 4) if s.kind is StorageKind.PARAMETER else s
        for s in problem.graph.storages
    )
    return replace(problem, graph=replace(problem.graph, storages=storages))


def changed_target(problem: RematProblem) -> RematProblem:
    ops = problem.graph.ops
    return replace(problem, graph=replace(problem.graph, ops=(replace(ops[0], target="other"), *ops[1:])))


@dataclass(frozen=True, slots=True)
class Other(Auto):
    """Another planner with the same options."""

    name: ClassVar[str] = "other"


def asked(problem: RematProblem, planner: Any = QUICK, **changes: Any) -> CacheQuery:
    return planner_with(PlanCache(None), planner, **changes).question(problem)


CHANGES: dict[str, Callable[[RematProblem, pytest.MonkeyPatch], CacheQuery]] = {
    "structure": lambda problem, _: asked(changed_target(problem)),
    "parameters": lambda problem, _: asked(changed_width(problem)),
    "size_class": lambda problem, _: asked(step(50)),
    "budget_bytes": lambda problem, _: asked(replace(problem, budget_bytes=problem.budget_bytes + 1)),
    "offload_bytes": lambda problem, _: asked(replace(problem, offload_bytes=1)),
    "max_slowdown": lambda problem, _: asked(problem, max_slowdown=2.0),
    "planner": lambda problem, patch: (
        patch.setattr(cached_planner, "code_digest", lambda _: code_digest("remat_passes")),
        asked(problem, Other(effort=500, time_limit=0.0)),
    )[1],
    "planner_options": lambda problem, _: asked(problem, replace(QUICK, time_limit=1.0)),
    "costs": lambda problem, _: asked(problem, costs="other rates"),
    "versions": lambda problem, patch: (patch.setattr(cached_planner, "__version__", "9"), asked(problem))[1],
}


@pytest.mark.parametrize("name", [f.name for f in fields(PlanCacheKey)])
def test_each_field_of_the_key_heeds_what_it_is_made_of(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = step()
    before = asked(problem).key
    after = CHANGES[name](problem, monkeypatch).key
    assert [f.name for f in fields(PlanCacheKey) if getattr(before, f.name) != getattr(after, f.name)] == [name]


@pytest.mark.parametrize("package", ["highspy", "pulp"])
def test_plans_of_other_solvers_are_other_plans(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    before = asked(step()).key
    versions = {package: None, "highspy" if package == "pulp" else "pulp": "9"}
    monkeypatch.setattr(cached_planner, "installed_version", lambda name: "9")
    both = asked(step()).key
    monkeypatch.setattr(cached_planner, "installed_version", versions.__getitem__)
    one = asked(step()).key
    assert len({before.versions, both.versions, one.versions}) == 3
    assert replace(one, versions="") == replace(both, versions="") == replace(before, versions="")


@pytest.mark.parametrize("name", [f.name for f in fields(Auto)])
def test_every_option_of_the_planner_is_in_the_key(name: str) -> None:
    changed = replace(QUICK, **{name: False if name == "reorders" else 7})  # type: ignore[arg-type]
    assert asked(step(), changed).key.planner_options != asked(step()).key.planner_options


def test_the_shapes_of_parameters_that_the_problem_does_not_tell_are_in_the_key() -> None:
    assert asked(step(), parameters="16 x 64").key.parameters != asked(step()).key.parameters


def test_the_version_of_torch_and_the_code_of_planners_are_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {asked(step()).key.versions}
    monkeypatch.setattr(torch, "__version__", "9.0")
    found.add(asked(step()).key.versions)
    monkeypatch.setattr(cached_planner, "code_digest", lambda _: "other code")
    found.add(asked(step()).key.versions)
    assert len(found) == 3


def test_a_change_of_any_source_changes_the_digest_of_the_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "made_up_package"
    (package / "inner").mkdir(parents=True)
    for file in (package / "__init__.py", package / "inner" / "__init__.py", tmp_path / "made_up_module.py"):
        file.write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    __import__("made_up_package")
    __import__("made_up_module")
    before = [code_digest(name) for name in ("made_up_package", "made_up_module")]
    (package / "inner" / "__init__.py").write_text("x = 1")
    (tmp_path / "made_up_module.py").write_text("x = 1")
    code_digest.cache_clear()
    after = [code_digest(name) for name in ("made_up_package", "made_up_module")]
    assert len({*before, *after}) == 4
    assert code_digest("no_such_package") == ""
    for name in ("made_up_package", "made_up_module"):
        monkeypatch.delitem(sys.modules, name)


def test_a_refusal_is_told_for_the_same_problem_alone(tmp_path: Path) -> None:
    problem = replace(step(), budget_bytes=1)
    first = planner_with(PlanCache(tmp_path)).plan(problem)
    assert first.status is PlanStatus.INFEASIBLE
    again = planner_with(PlanCache(tmp_path)).plan(problem)
    assert bare(again) == bare(first)
    assert counted() == (1, 0, 1, 1)
    smaller = planner_with(PlanCache(tmp_path)).plan(replace(step(99), budget_bytes=1))
    assert bare(smaller) != bare(first)
    assert counted() == (0, 0, 1, 1)


@pytest.mark.parametrize("thorough", [True, False])
def test_a_refusal_is_the_smallest_peak_of_a_planner_that_says_so(tmp_path: Path, thorough: bool) -> None:
    planner = replace(QUICK, thorough=thorough)
    first = planner_with(PlanCache(tmp_path), planner).plan(replace(step(), budget_bytes=1_000))
    assert first.status is PlanStatus.INFEASIBLE
    smallest = planner_with(PlanCache(tmp_path), planner).plan(replace(step(), budget_bytes=NO_BYTES))
    assert counted() == ((1, 0, 1, 1) if thorough else (0, 0, 2, 2))
    assert bare(smallest) == bare(planner.plan(replace(step(), budget_bytes=NO_BYTES)))
    # A larger budget may have a plan.
    reset_stats()
    planner_with(PlanCache(tmp_path), planner).plan(replace(step(), budget_bytes=2_000))
    assert counted() == (0, 0, 1, 1)


@dataclass(frozen=True, slots=True)
class Unfinished:
    """A planner that runs out of time."""

    status: PlanStatus = PlanStatus.TIMED_OUT
    name: ClassVar[str] = "unfinished"

    def plan(self, problem: RematProblem) -> PlanResult:
        return replace(QUICK.plan(problem), status=self.status)


@pytest.mark.parametrize("status", [PlanStatus.TIMED_OUT, PlanStatus.FAILED])
def test_what_failed_or_ran_out_of_time_is_tried_again(status: PlanStatus, tmp_path: Path) -> None:
    planner = planner_with(PlanCache(tmp_path), Unfinished(status))
    for _ in range(2):
        assert planner.plan(step()).status is status
    assert counted() == (0, 0, 2, 2)
    assert plan_folder(tmp_path).names() == []


class Untold:
    """A planner whose options nobody can tell."""

    name: ClassVar[str] = "untold"

    def plan(self, problem: RematProblem) -> PlanResult:
        return QUICK.plan(problem)


def test_without_a_cache_or_known_options_everything_is_solved(tmp_path: Path) -> None:
    for planner in (planner_with(None), planner_with(PlanCache(tmp_path), Untold())):
        for _ in range(2):
            assert planner.plan(step()) == QUICK.plan(step())
        assert counted() == (0, 0, 0, 2)
    assert list(tmp_path.iterdir()) == []


def test_ranks_take_no_plans_of_other_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planner_with(PlanCache(tmp_path)).plan(step(100, blocks=20))
    here = step(99, blocks=20)
    assert is_of_another_size(planner_with(PlanCache(tmp_path)).plan(here))
    counted()
    solved = planner_with(PlanCache(tmp_path), similar=False).plan(here)
    assert bare(solved) == bare(QUICK.plan(here))
    assert counted() == (0, 0, 1, 1)
    assert may_take_similar()
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert not may_take_similar()


def test_a_changed_file_is_a_warned_miss_and_is_written_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    problem = step()
    first = planner_with(PlanCache(tmp_path)).plan(problem)
    (path,) = (tmp_path / "plan-cache").iterdir()
    good = path.read_text(encoding="utf-8")
    for bad in (good.replace(f'"peak_bytes":{first.peak_bytes}', '"peak_bytes":1'), good[:100]):
        counted()
        path.write_text(bad, encoding="utf-8")
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert bare(planner_with(PlanCache(tmp_path)).plan(problem)) == bare(first)
        assert counted() == (0, 0, 1, 1)
        assert len(caplog.records) == 1
        assert "again" in caplog.text
        assert bare(planner_with(PlanCache(tmp_path)).plan(problem)) == bare(first)
        assert counted() == (1, 0, 0, 0)


def test_misses_say_why_candidates_were_refused(tmp_path: Path) -> None:
    planner = planner_with(PlanCache(tmp_path))
    planner.plan(step(100, blocks=20))
    planner.plan(step(110, blocks=20))
    folder = miss_folder(tmp_path)
    misses = [miss for miss in map(folder.read, folder.names()) if miss is not None]
    first, second = misses
    assert first.refused == ()
    (refused,) = second.refused
    assert "the peak exceeds the budget" in refused


def test_a_folder_that_cannot_be_written_is_one_warning_and_memory_serves(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    cache = PlanCache(tmp_path / "file")
    with caplog.at_level(logging.WARNING):
        first = planner_with(cache).plan(step())
        assert bare(planner_with(cache).plan(step())) == bare(first)
        planner_with(cache).plan(step(50, 0.2))
    assert counted() == (1, 0, 2, 2)
    # The folder may neither be listed nor written; both are told together.
    assert len(caplog.records) == 1


def places(document: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where in a document the numbers and the lists stand."""
    items = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in items:
        if isinstance(value, (int, list)):
            yield (*path, name)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, name))


@dataclass(frozen=True)
class Known:
    """A planner that has been solved for good."""

    result: PlanResult
    name: ClassVar[str] = "auto"

    def plan(self, problem: RematProblem) -> PlanResult:
        return self.result


@pytest.mark.parametrize("wrong", [-1, 0, 10**6, 2**63 - 1, 10**40, []])
def test_no_figure_of_a_stored_plan_is_believed(wrong: object, tmp_path: Path) -> None:
    problem = step()
    good = replace(QUICK.plan(problem), stats=())
    planner_with(PlanCache(tmp_path), Known(good)).plan(problem)
    (file,) = plan_folder(tmp_path).path.iterdir()
    text = file.read_text(encoding="utf-8")
    for path in places(json.loads(text)):
        document = json.loads(text)
        inner = document
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = wrong
        file.write_text(json.dumps(document), encoding="utf-8")
        found = planner_with(PlanCache(tmp_path), Known(good)).plan(problem)
        assert 0 <= found.lower_bound_ns <= found.added_ns
        assert replace(bare(found), lower_bound_ns=0) == replace(good, lower_bound_ns=0), path
