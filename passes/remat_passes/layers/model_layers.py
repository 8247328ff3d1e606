"""The layers of the user's model, as operators of the forward: encoder layers, residual blocks, or segments.

    module path        network.encoder.layer.0.attention.query
    container          network.encoder.layer                      children 0, 1, 2, ...
    layer              network.encoder.layer.0

A *container* is a module with numbered children, at least two of which run.  Of nested ones the outermost counts, so
that the parts of an encoder layer stay together; but a child that holds more than a quarter of the operators, such as
a whole encoder inside a `Sequential`, is divided further if its parts hold half of it.  Operators without a layer that
run between two layers of one container belong to the first of these.  All others without a layer (embedding, head,
loss) form *gaps*, which are no layers.

If a graph has no such modules, or they hold less than half of the forward's operators, layers are the blocks of
`remat_passes.blocks.repeats`: repeated parts of the graph are cut alike, at few crossing bytes.  Only this depends on
sizes: layers of modules are the same for every input size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np

from remat_compiler.ir.problem import RematProblem
from remat_compiler.ir.saved_layers import SEGMENT
from remat_passes.blocks.repeats import aligned_cuts, find_repeats, labels_of
from remat_passes.chains.chain import Forward
from remat_passes.sequences.profile import arrays_of

LARGEST_SHARE = 4
"""A child that holds more than this part (one in so many) of all operators is divided further."""
LEAST_SHARE = 2
"""A division by modules counts only if its layers hold at least this part (one in so many) of the operators."""


Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """The forward as layers and gaps, numbered together in the order of their first operators.

    Attributes:
        names: Module path of each layer, ``segment 3`` for one that no module gave, and "" for a gap.
        place: For each operator of the graph, its layer or gap; -1 outside of the forward.
    """

    names: tuple[str, ...]
    place: tuple[int, ...]

    @property
    def layers(self) -> tuple[int, ...]:
        """Numbers of those that are layers, in the order of the forward."""
        return tuple(number for number, name in enumerate(self.names) if name)


def model_layers(problem: RematProblem, forward: Forward) -> ModelLayers:
    """The layers of `problem`, see the module docstring.

    Args:
        problem: The problem.
        forward: Its forward.
    """
    ops = problem.graph.ops
    names = module_names([ops[i].module for i in forward.ops])
    if LEAST_SHARE * sum(map(bool, names)) < len(names):
        names = _segment_names(problem, forward)
    place, numbered = _numbered(names)
    found = [-1] * len(ops)
    for i, number in zip(forward.ops, place):
        found[i] = number
    return ModelLayers(numbered, tuple(found))


def module_names(paths: Sequence[str]) -> list[str]:
    """The layer of each operator, given their module paths in the order of the forward; "" for none."""
    parts = [tuple(path.split(".")) for path in paths]
    found = _divide(parts, range(len(parts)), 0, len(parts) // LARGEST_SHARE)
    names = [found.get(i, ()) for i in range(len(parts))]
    for i in _between(names):
        names[i] = names[i - 1]
    return [".".join(name) for name in names]


def _divide(parts: Sequence[Path], ops: Iterable[int], depth: int, most: int) -> dict[int, Path]:
    """Layers of `ops`, whose paths share their first `depth` parts."""
    containers: dict[Path, dict[Path, list[int]]] = {}
    for i in ops:
        path = parts[i]
        # The first number in the path names the outermost child of a container.
        at = next((k for k in range(depth, len(path)) if path[k].isdecimal()), None)
        if at is not None:
            containers.setdefault(path[:at], {}).setdefault(path[: at + 1], []).append(i)
    found: dict[int, Path] = {}
    for children in containers.values():
        # A container of which one child runs is none: look for containers inside that child.
        alone = len(children) == 1
        for child, members in children.items():
            inner = _divide(parts, members, len(child), most) if alone or len(members) > most else {}
            # Most of the child has layers of its own; else it stays whole, as one layer.
            if LEAST_SHARE * len(inner) >= len(members):
                found |= inner
            elif not alone:
                found |= dict.fromkeys(members, child)
    return found


def _between(names: Sequence[Path]) -> list[int]:
    """Positions without a layer between two layers of one container, ascending."""
    found: list[int] = []
    held: list[int] = []
    before: Path = ()
    for i, name in enumerate(names):
        if not name:
            held.append(i)
            continue
        # Paths equal but for the number: two children of one container.
        if before and before[:-1] == name[:-1]:
            found += held
        held, before = [], name
    return found


def _segment_names(problem: RematProblem, forward: Forward) -> list[str]:
    """The segment of each operator: about as many as the root of the number of operators."""
    order = np.array(forward.ops, np.int64)
    # `made_bytes` is a running sum, so its differences are the bytes that each operator makes.
    made, crossing = np.array(forward.made_bytes, np.int64), np.array(forward.crossing, np.int64)
    runs = find_repeats(labels_of(arrays_of(problem), order))
    cuts = aligned_cuts(made[1:] - made[:-1], crossing, runs, max(isqrt(len(order)), 1))
    number = np.searchsorted(cuts, np.arange(len(order)), side="right")
    return [f"{SEGMENT}{k}" for k in number.tolist()]


def _numbered(names: Sequence[str]) -> tuple[list[int], tuple[str, ...]]:
    """The number of each operator's layer or gap, and the names of these; a gap ends where a layer begins."""
    numbers: dict[str, int] = {}
    numbered: list[str] = []
    place: list[int] = []
    for i, name in enumerate(names):
        if name in numbers:
            place.append(numbers[name])
        # A gap goes on: it has no name by which to find it again.
        elif not name and i and not names[i - 1]:
            place.append(place[-1])
        else:
            if name:
                numbers[name] = len(numbered)
            place.append(len(numbered))
            numbered.append(name)
    return place, tuple(numbered)
