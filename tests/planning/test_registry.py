from __future__ import annotations

import pickle

import pytest

from remat_compiler.errors import UnknownName
from remat_compiler.ir.planner import Planner
from remat_passes import registry, tables
from remat_passes.planning.save_all import SaveAll
from remat_passes.sequences.sequence import Placement
from remat_passes.tables import BrokenEntry, DuplicateName, Table, merge_tables


@pytest.mark.parametrize("name", sorted(registry.PLANNERS))
def test_every_target_is_a_frozen_planner_of_its_name(name: str) -> None:
    planner = registry.planner_class(name)
    assert planner.name == name
    assert hasattr(planner, "__dataclass_fields__")
    instance = planner()
    assert isinstance(instance, Planner)
    assert instance == planner()
    assert hash(instance) == hash(planner())
    assert pickle.loads(pickle.dumps(instance)) == instance


def test_unknown_name_lists_near_matches() -> None:
    with pytest.raises(UnknownName, match="did you mean 'chain_dp'"):
        registry.planner_class("chaindp")


def test_duplicate_names_both_owners() -> None:
    with pytest.raises(DuplicateName, match="'ours' and by 'theirs'") as caught:
        merge_tables("planner", [("ours", {"x": "a:B"}), ("theirs", {"x": "c:D"})])
    assert caught.value.owners == ("ours", "theirs")
    assert pickle.loads(pickle.dumps(caught.value)).owners == ("ours", "theirs")


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("remat_passes.no_such_module:X", "cannot import"),
        ("remat_passes.planning.save_all:NoSuchClass", "cannot import"),
        ("remat_passes.planning.save_all:SaveAll", "not a planner of that name"),
        ("no colon", "cannot import"),
    ],
)
def test_broken_entries_are_told(target: str, reason: str) -> None:
    with pytest.raises(BrokenEntry, match=reason):
        table(other=target).find("other")


class FakeEntry:
    """An entry point of another package."""

    def __init__(self, name: str, table: object) -> None:
        self.name = name
        self.value = f"{name}:TABLE"
        self._table = table

    def load(self) -> object:
        if isinstance(self._table, Exception):
            raise self._table
        return self._table


def install(monkeypatch: pytest.MonkeyPatch, *entries: FakeEntry) -> None:
    monkeypatch.setattr(tables, "entry_points", lambda group: list(entries) if group == "a group" else [])


def table(**own: str) -> Table:
    """A table of planners that packages add to."""
    return Table("planner", "plan", "a group", own)


def test_other_packages_add_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeEntry("theirs", {"mine": "their.module:Mine"}))
    assert table(save_all="our.module:Ours").names == ("mine", "save_all")


def test_other_packages_cannot_replace_planners(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeEntry("theirs", {"save_all": "their.module:Mine"}))
    with pytest.raises(DuplicateName, match="'remat_passes' and by 'theirs'"):
        print(table(save_all="our.module:Ours").names)


@pytest.mark.parametrize(("theirs", "reason"), [(["save_all"], "is a list"), (ImportError("gone"), "gone")])
def test_broken_tables_are_told(theirs: object, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, FakeEntry("theirs", theirs))
    with pytest.raises(BrokenEntry, match=reason):
        print(table().names)


def test_planners_take_the_options_that_they_have() -> None:
    planner = registry.make_planner("save_all", placement=Placement.JOINT, time_limit=1.0)
    assert planner == SaveAll(Placement.JOINT)


def test_options_of_planners_are_known_without_making_them() -> None:
    assert registry.has_option("mimose", "layer_bytes")
    assert not registry.has_option("auto", "layer_bytes")
    with pytest.raises(UnknownName):
        registry.has_option("mimosa", "layer_bytes")
