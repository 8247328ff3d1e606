"""Tables of classes that can be chosen by name: name -> "module:Class", imported on first use.

Other packages add to a table by one entry point of its group that points to a table of the same form:

    [project.entry-points."remat_compiler.registry"]
    my_package = "my_package.table:PLANNERS"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType
from typing import Any

from remat_compiler.errors import RematError, UnknownName

OWNER = "remat_passes"


class DuplicateName(RematError):
    """Two packages register one name.

    Attributes:
        kind: Kind of the registered class: ``"planner"``.
        name: The name.
        owners: Both packages, the earlier first.
    """

    def __init__(self, kind: str, name: str, first: str, second: str) -> None:
        self.kind = kind
        self.name = name
        self.owners = (first, second)
        super().__init__(
            f"{kind} {name!r} is registered by {first!r} and by {second!r}; "
            "rename one of them, or uninstall its package"
        )

    def __reduce__(self) -> tuple[type[DuplicateName], tuple[str, str, str, str]]:
        # By default an exception is unpickled from its message alone, which is not what the constructor takes.
        return type(self), (self.kind, self.name, *self.owners)


class BrokenEntry(RematError):
    """A registered target cannot be imported, or is not of its kind."""


# No slots: `cached_property` stores its value in the instance's `__dict__`.
@dataclass(frozen=True)
class Table:
    """The classes of one kind that can be chosen by name.

    Attributes:
        kind: What people call such a class: ``"planner"``.
        method: Name of the method that such a class must have.
        group: Group of the entry points by which other packages add classes.
        own: Entries of this project.
    """

    kind: str
    method: str
    group: str
    own: Mapping[str, str]

    @property
    def names(self) -> tuple[str, ...]:
        """All registered names, sorted."""
        return tuple(sorted(self._targets))

    def find(self, name: str) -> type[Any]:
        """The class registered as `name`.

        Raises:
            UnknownName: Nothing is registered as `name`; the message has the near matches.
            BrokenEntry: The registered target does not exist, or is not of this kind.
            DuplicateName: Two packages register one name.
        """
        if name not in self._targets:
            raise UnknownName(self.kind, name, self._targets)
        target = self._targets[name]
        module, _, attribute = target.partition(":")
        try:
            found = getattr(import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise BrokenEntry(f"{self.kind} {name!r}: cannot import {target!r} ({error}); check the table") from error
        # A class of another name would plan under one name and be cached and reported under the other.
        if not isinstance(found, type) or getattr(found, "name", None) != name or not hasattr(found, self.method):
            raise BrokenEntry(
                f"{self.kind} {name!r}: {target!r} is not a {self.kind} of that name; "
                f"it needs the class attribute `name = {name!r}` and a method `{self.method}(problem)`"
            )
        return found

    @cached_property
    def _targets(self) -> Mapping[str, str]:
        """This project's entries and those of other packages, in a fixed order of packages."""
        # The order in which packages are found depends on the import path; errors should not.
        others = sorted(entry_points(group=self.group), key=lambda entry: (entry.name, entry.value))
        tables = [(OWNER, self.own), *((entry.name, self._load(entry)) for entry in others)]
        return MappingProxyType(merge_tables(self.kind, tables))

    def _load(self, entry: EntryPoint) -> Mapping[str, str]:
        """The table that another package registers."""
        try:
            table = entry.load()
        except (ImportError, AttributeError) as error:
            raise BrokenEntry(f"entry point {entry.name!r}: cannot import {entry.value!r} ({error})") from error
        if not isinstance(table, Mapping):
            raise BrokenEntry(
                f"entry point {entry.name!r}: {entry.value!r} is a {type(table).__name__}; "
                f"it must be a mapping from {self.kind} name to 'module:Class'"
            )
        return table


def merge_tables(kind: str, tables: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """One table of all (owner, table) pairs; a name in two of them is an error that names both owners."""
    owner_of: dict[str, str] = {}
    merged: dict[str, str] = {}
    for owner, table in tables:
        for name, target in table.items():
            if name in owner_of:
                raise DuplicateName(kind, name, owner_of[name], owner)
            owner_of[name] = owner
            merged[name] = target
    return merged
