"""Everything of this package that the compiler uses, found by name.

To add a planner, add a line to `PLANNERS`; nothing else names it.  `tables` explains how other packages add theirs, in
the group `ENTRY_POINT_GROUP`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

from remat_compiler.ir.arenas import Allocations, Arenas
from remat_compiler.ir.plan import PlanResult
from remat_compiler.ir.planner import Planner
from remat_compiler.ir.problem import RematProblem
from remat_compiler.ir.saved_layers import SavedLayers
from remat_compiler.simulate.reserved import AllocationTrace
from remat_passes.tables import Table

ENTRY_POINT_GROUP = "remat_compiler.registry"

# Strings, imported on demand: importing this module loads no solver and no compiled loop.
PLANNERS: Mapping[str, str] = MappingProxyType(
    {
        "auto": "remat_passes.planning.auto:Auto",
        "capuchin": "remat_passes.planning.capuchin:Capuchin",
        "chain_dp": "remat_passes.planning.chain_dp:ChainDp",
        "chen_sqrt": "remat_passes.planning.chen_sqrt:ChenSqrt",
        "coop": "remat_passes.planning.coop:Coop",
        "delta": "remat_passes.planning.delta:Delta",
        "dte": "remat_passes.planning.dte:Dte",
        "dtr": "remat_passes.planning.dtr:Dtr",
        "dtr_pool": "remat_passes.planning.dtr_pool:DtrPool",
        "greedy": "remat_passes.planning.greedy:Greedy",
        "hierarchical": "remat_passes.planning.hierarchical:Hierarchical",
        "home": "remat_passes.planning.home:Home",
        "ilp": "remat_passes.planning.ilp:Ilp",
        "knapsack": "remat_passes.planning.knapsack:Knapsack",
        "mimose": "remat_passes.planning.mimose:Mimose",
        "min_cut": "remat_passes.planning.min_cut:MinCut",
        "save_all": "remat_passes.planning.save_all:SaveAll",
        "superneurons": "remat_passes.planning.superneurons:SuperNeurons",
        "vdnn": "remat_passes.planning.vdnn:Vdnn",
    }
)
"""The planners of this project."""

_PLANNERS = Table("planner", "plan", ENTRY_POINT_GROUP, PLANNERS)


def planner_names() -> tuple[str, ...]:
    """All registered planners, sorted."""
    return _PLANNERS.names


def planner_class(name: str) -> type[Planner]:
    """The planner registered as `name`; errors as `tables.Table.find`."""
    return _PLANNERS.find(name)


def make_planner(name: str, **options: object) -> Planner:
    """The planner registered as `name`, with those of `options` that it has fields for; errors as `planner_class`."""
    found = planner_class(name)
    # The compiler passes its own options to every planner; one of another package may be no dataclass.
    known = getattr(found, "__dataclass_fields__", {})
    return found(**{key: value for key, value in options.items() if key in known})


def has_option(name: str, option: str) -> bool:
    """Whether the planner registered as `name` has a field for `option`; errors as `planner_class`."""
    return option in getattr(planner_class(name), "__dataclass_fields__", {})


def choose_arenas(step: Allocations, traces: Sequence[AllocationTrace], expandable: bool) -> Arenas:
    """Arenas for what a step allocates, with which less is reserved for it; see `layout.selection`."""
    arenas: Arenas = import_module("remat_passes.layout.selection").choose_arenas(step, traces, expandable)
    return arenas


def with_bound(result: PlanResult, problem: RematProblem) -> PlanResult:
    """`result` with a proven lower bound of the added time of all plans; see `bounds.lower_bound.with_bound`."""
    bounded: PlanResult = import_module("remat_passes.bounds.lower_bound").with_bound(result, problem)
    return bounded


def least_budget_bytes(problem: RematProblem) -> int:
    """Bytes below which no plan of `problem` peaks, whatever its order, proven; see `bounds.least_budget`."""
    found: int = import_module("remat_passes.bounds.least_budget").least_budget(problem).peak_bytes
    return found


def saved_layers(problem: RematProblem) -> SavedLayers:
    """The storages that each layer of the model saves; see `layers.saved_layers`."""
    layers: SavedLayers = import_module("remat_passes.layers.saved_layers").saved_layers(problem)
    return layers
