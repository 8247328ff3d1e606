"""The table of what is changed of torch: all of it is there, nothing is changed beside it, and what is missing is said.

What a torch that lacks something does is shown with rows whose targets are nowhere.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import importlib
import logging
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import remat_compiler
from end_to_end.compiling import compile_with, differences_from_eager
from remat_compiler.errors import UnsupportedTorch
from remat_compiler.torch_compat import inductor, mincut, modules, patches, patching, planned_fusion
from remat_compiler.torch_compat.patch import Patch, Purpose, _say_once, untested
from remat_compiler.torch_compat.patches import PATCHES

SOURCES = sorted((Path(remat_compiler.__file__).parent).rglob("*.py"))
CHANGES = frozenset({"replace", "replaced", "replaced_in", "original", "settings", "change_setting", "named"})


class Owner:
    """What stands for a class of torch."""

    @staticmethod
    def double(number: int) -> int:
        return 2 * number


HERE = f"{__name__}:Owner.double"


def row(purpose: Purpose = Purpose.SPEED, target: str = HERE, **fields: Any) -> Patch:
    given = {"name": "doubling", "gives": "doubles", "without": "nothing is doubled", **fields}
    return Patch(target=target, purpose=purpose, **given)


@pytest.fixture(autouse=True)
def said_anew(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    _say_once.cache_clear()
    with caplog.at_level(logging.INFO, logger="remat_compiler"):
        yield
    _say_once.cache_clear()


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_every_target_is_there_and_takes_what_is_known(patch: Patch) -> None:
    if patch.needed:
        place = patch.place()
        assert hasattr(place.owner, place.attribute) or place.value is None
    else:
        assert not untested()


def test_names_and_targets_are_unique_and_said_in_words() -> None:
    assert len({patch.name for patch in PATCHES}) == len({patch.target for patch in PATCHES}) == len(PATCHES)
    assert all(patch.gives and patch.without for patch in PATCHES)


def test_every_row_is_used() -> None:
    names = {name for name, value in vars(patches).items() if isinstance(value, Patch)}
    read = {
        node.id
        for source in SOURCES
        if source.name != "patches.py"
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Name)
    }
    assert {value for value in vars(patches).values() if isinstance(value, Patch)} == set(PATCHES)
    assert names <= read


def test_nothing_of_torch_is_changed_but_through_the_table() -> None:
    found = [
        f"{source.name}:{line}" for source in SOURCES if source.name != "patching.py" for line in changed_lines(source)
    ]
    assert found == []


def changed_lines(source: Path) -> list[int]:
    """Lines that assign to an attribute of something imported from torch or networkx, or patch a configuration."""
    tree = ast.parse(source.read_text())
    foreign = {
        (alias.asname or alias.name).partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).partition(".")[0] in ("torch", "networkx")
    }
    lines = []
    for node in ast.walk(tree):
        targets: list[ast.expr] = []
        if isinstance(node, ast.Assign):
            targets = [target for target in node.targets if isinstance(target, ast.Attribute)]
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
            targets = [node.target]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            targets = node.args[:1]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "patch":
            targets = [node.func]
        lines += [target.lineno for target in targets if _root(target) in foreign]
    return lines


def _root(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


@pytest.mark.parametrize("statement", ["fx.Graph.lint = None", "setattr(fx.Graph, 'lint', 1)", "fx.config.patch(a=1)"])
def test_the_search_for_changes_finds_them(statement: str, tmp_path: Path) -> None:
    source = tmp_path / "changing.py"
    source.write_text(f"from torch import fx\n{statement}\n")
    assert changed_lines(source) == [2]


def test_what_is_replaced_is_put_back() -> None:
    known = row(takes=(("number",),))
    with patching.replaced(known, lambda double: lambda n: double(n) + 1):
        assert Owner.double(2) == Owner().double(2) == 5
        with patching.replaced(known, lambda double: lambda n: double(n) * 10):
            assert Owner.double(2) == 50
        assert Owner.double(2) == 5
    with contextlib.suppress(KeyError), patching.replaced(known, lambda double: lambda n: 0):
        raise KeyError
    assert Owner.double(2) == Owner().double(2) == 4
    assert isinstance(vars(Owner)["double"], staticmethod)


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"target": "torch.nowhere:thing"}, "torch.nowhere.thing is missing"),
        ({"target": f"{__name__}:Owner.triple"}, "Owner.triple is missing"),
        ({"target": f"{__name__}:Nobody.double"}, "Nobody.double is missing"),
        ({"takes": (("text",), ("a", "b"))}, "takes (number) rather than (text) or (a, b)"),
    ],
)
def test_a_speed_row_without_its_target_stays_off_and_says_so_once(
    broken: dict[str, Any], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with patching.replaced(row(**broken), lambda _: lambda _: 0):
            assert Owner.double(2) == 4
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert all(part in record.getMessage() for part in ("doubling", problem, "nothing is doubled"))


def test_what_another_library_put_before_the_target_is_taken_as_it_is(caplog: pytest.LogCaptureFixture) -> None:
    def logged(*args: Any, **keywords: Any) -> int:
        return 2 * int(args[0])

    known = row(Purpose.CORRECTNESS, takes=(("number",),))
    with pytest.MonkeyPatch.context() as other:
        other.setattr(Owner, "double", staticmethod(logged))
        with patching.replaced(known, lambda double: lambda n: double(n) + 1):
            assert Owner.double(2) == 5
    assert Owner.double(2) == 4
    assert caplog.records == []


def test_a_correctness_row_without_its_target_is_an_error_that_says_what_to_do() -> None:
    broken = row(Purpose.CORRECTNESS, "torch.nowhere:thing")
    with pytest.raises(UnsupportedTorch) as caught, patching.replaced(broken, lambda _: lambda _: 0):
        pass
    for part in (torch.__version__, "torch.nowhere.thing is missing", "nothing is doubled", "2.11 to 2.15", "doctor"):
        assert part in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


@pytest.mark.parametrize(("since", "before"), [((99, 0), None), ((0, 0), (1, 0))])
def test_what_this_torch_does_not_need_is_not_looked_for(
    since: tuple[int, int], before: tuple[int, int] | None, caplog: pytest.LogCaptureFixture
) -> None:
    broken = row(Purpose.CORRECTNESS, "torch.nowhere:thing", since=since, before=before)
    with patching.replaced(broken, lambda _: lambda _: 0):
        pass
    assert caplog.records == []


def test_settings_are_put_back_whatever_changed_them() -> None:
    config = importlib.import_module("torch._inductor.config")
    before = config.allow_buffer_reuse, config.layout_optimization
    with patching.settings({patches.BUFFER_REUSE: not before[0], patches.LAYOUT: before[1]}):
        patching.change_setting(patches.LAYOUT, not before[1])
        assert (config.allow_buffer_reuse, config.layout_optimization) == (not before[0], not before[1])
    assert (config.allow_buffer_reuse, config.layout_optimization) == before


def without(monkeypatch: pytest.MonkeyPatch, module: Any, *names: str) -> None:
    """Let the rows of a module have no targets."""
    for name in names:
        monkeypatch.setattr(module, name, dataclasses.replace(getattr(module, name), target="torch.nowhere:thing"))


def small() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.Dropout(0.5), nn.Flatten(0))


@pytest.mark.parametrize("budget", ["1GiB", 0.7])
def test_without_its_speed_rows_a_step_compiles_and_is_the_same(
    budget: float | str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    without(monkeypatch, mincut, "MINIMUM_CUT", "EXTRACTION", "DEAD_CODE")
    without(monkeypatch, modules, "GRAPH_CODE", "NODE_ARGUMENTS")
    model = nn.Sequential(small(), Mean())
    assert differences_from_eager(model, (torch.randn(4, 8),), memory_budget=budget) == []
    off = {message.removeprefix("remat: ").partition(" is off")[0] for message in caplog.messages}
    assert {"dead code", "extraction", "code of graphs"} <= off


class Mean(nn.Module):
    """A loss."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.square().mean()


@pytest.mark.parametrize(
    ("module", "name", "once"),
    [
        (inductor, "KERNEL_GROUPS", "_guard_kernel_groups"),
        (inductor, "PRODUCT_FUSION", "_guard_product_fusion"),
        (planned_fusion, "LOOP_FUSION", "_planned_choices"),
        (inductor, "PARTITIONER", ""),
    ],
)
def test_without_a_correctness_row_the_user_reads_which_and_what_to_do(
    module: Any, name: str, once: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_DISABLE_CACHE", "1")
    if once:
        monkeypatch.setattr(module, once, getattr(module, once).__wrapped__)
    without(monkeypatch, module, name)
    with pytest.raises(UnsupportedTorch, match=r"torch\.nowhere\.thing is missing.*install one of these"):
        compile_with(nn.Sequential(small(), Mean()), inner="inductor")(torch.randn(4, 8))


@pytest.mark.parametrize(
    ("version", "tested"),
    [
        ("2.11.0", True),
        ("2.13.0+cpu", True),
        ("2.15.1", True),
        ("2.16.0a0+git1", False),
        ("2.10.1", False),
        ("3.0", False),
    ],
)
def test_versions_beyond_those_tested_are_told(version: str, tested: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", version)
    problem = untested()
    assert (problem == "") is tested
    assert tested or (version in problem and "2.11 to 2.15" in problem)
