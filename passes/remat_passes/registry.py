"""All that the compiler asks of passes.  One table of planners: name -> "module:Class", imported when asked for.

To add a planner, add a line here; nothing else names it.  Other packages add theirs through one entry point
of the group `remat_compiler.registry` that points to a table of the same form:

    [project.entry-points."remat_compiler.registry"]
    my_package = "my_package.table:PLANNERS"
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType

from remat_compiler.errors import RematError, UnknownName
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_compiler.ir.saved_layers import SavedLayers

ENTRY_POINT_GROUP = "remat_compiler.registry"
OWNER = "remat_passes"

PLANNERS: Mapping[str, str] = MappingProxyType(
    {
        "auto": "remat_passes.planning.auto:Auto",
        "chain_dp": "remat_passes.planning.chain_dp:ChainDp",
        "chen_sqrt": "remat_passes.planning.chen_sqrt:ChenSqrt",
        "dtr": "remat_passes.planning.dtr:Dtr",
        "greedy": "remat_passes.planning.greedy:Greedy",
        "hierarchical": "remat_passes.planning.hierarchical:Hierarchical",
        "ilp": "remat_passes.planning.ilp:Ilp",
        "knapsack": "remat_passes.planning.knapsack:Knapsack",
        "mimose": "remat_passes.planning.mimose:Mimose",
        "min_cut": "remat_passes.planning.min_cut:MinCut",
        "save_all": "remat_passes.planning.save_all:SaveAll",
    }
)
"""The planners of this project."""


class DuplicateName(RematError):
    """Two packages register one name.

    Attributes:
        name: The name.
        owners: Both packages, the earlier first.
    """

    def __init__(self, name: str, first: str, second: str) -> None:
        self.name = name
        self.owners = (first, second)
        super().__init__(
            f"planner {name!r} is registered by {first!r} and by {second!r}; "
            "rename one of them, or uninstall its package"
        )

    def __reduce__(self) -> tuple[type[DuplicateName], tuple[str, str, str]]:
        return type(self), (self.name, *self.owners)


class BrokenEntry(RematError):
    """A registered planner cannot be imported, or is no planner."""


def planner_names() -> tuple[str, ...]:
    """All registered names, sorted."""
    return tuple(sorted(_table()))


def planner_class(name: str) -> type[Planner]:
    """The class registered as `name`.

    Raises:
        UnknownName: Nothing is registered as `name`; the message has the near matches.
        BrokenEntry: What is registered is not there, or not a planner.
        DuplicateName: Two packages register one name.
    """
    table = _table()
    if name not in table:
        raise UnknownName("planner", name, table)
    module, _, attribute = table[name].partition(":")
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BrokenEntry(f"planner {name!r}: cannot import {table[name]!r} ({error}); check the table") from error
    if not isinstance(found, type) or getattr(found, "name", None) != name or not hasattr(found, "plan"):
        raise BrokenEntry(
            f"planner {name!r}: {table[name]!r} is not a planner of that name; "
            f"it needs the class attribute `name = {name!r}` and a method `plan(problem)`"
        )
    return found


def make_planner(name: str, **options: object) -> Planner:
    """The planner registered as `name`, with those of `options` that it has fields for; errors as `planner_class`."""
    found = planner_class(name)
    known = getattr(found, "__dataclass_fields__", {})
    return found(**{key: value for key, value in options.items() if key in known})


def has_option(name: str, option: str) -> bool:
    """Whether the planner registered as `name` has a field for `option`; errors as `planner_class`."""
    return option in getattr(planner_class(name), "__dataclass_fields__", {})


def with_bound(result: PlanResult, problem: RematProblem) -> PlanResult:
    """`result` with a proven lower bound of the added time of all plans; see `bounds.lower_bound.with_bound`."""
    bounded: PlanResult = import_module("remat_passes.bounds.lower_bound").with_bound(result, problem)
    return bounded


def saved_layers(problem: RematProblem) -> SavedLayers:
    """What each layer of the model saves; see `layers.saved_layers`."""
    layers: SavedLayers = import_module("remat_passes.layers.saved_layers").saved_layers(problem)
    return layers


def merge_tables(tables: Iterable[tuple[str, Mapping[str, str]]]) -> dict[str, str]:
    """One table of all (owner, table) pairs; a name in two of them is an error that names both owners."""
    owner_of: dict[str, str] = {}
    merged: dict[str, str] = {}
    for owner, table in tables:
        for name, target in table.items():
            if name in owner_of:
                raise DuplicateName(name, owner_of[name], owner)
            owner_of[name] = owner
            merged[name] = target
    return merged


@cache
def _table() -> Mapping[str, str]:
    """This project's planners and those of other packages, in a fixed order of packages."""
    others = sorted(entry_points(group=ENTRY_POINT_GROUP), key=lambda entry: (entry.name, entry.value))
    return MappingProxyType(merge_tables([(OWNER, PLANNERS), *((entry.name, _load(entry)) for entry in others)]))


def _load(entry: EntryPoint) -> Mapping[str, str]:
    """The table that another package registers."""
    try:
        table = entry.load()
    except (ImportError, AttributeError) as error:
        raise BrokenEntry(f"entry point {entry.name!r}: cannot import {entry.value!r} ({error})") from error
    if not isinstance(table, Mapping):
        raise BrokenEntry(
            f"entry point {entry.name!r}: {entry.value!r} is a {type(table).__name__}; "
            "it must be a mapping from planner name to 'module:Class'"
        )
    return table
