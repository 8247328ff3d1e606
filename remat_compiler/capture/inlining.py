"""Inductor's rules for pointwise values: which are computed again in each reader, and which once.

They count the contents of a value's loop, if all that is not in memory were computed within it: the tensors that it
reads, its operators, and whether one of these is dear on a CPU (`StorageBox.should_realize_on_reuse` and
`has_exceeded_max_reads` of `torch._inductor.ir`).  A value that is computed once is *realised*; it still takes no
memory if one loop holds it and all its readers.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import fx

from remat_compiler import torch_compat

_REUSED_READS = 4
"""Reads above which a value with several readers is realised (``realize_reads_threshold``)."""
_MOST_READS = {"cpu": 12}
"""Reads above which a value is realised on a device (``realize_cpu_acc_reads_threshold``)."""
_MOST_READS_ELSEWHERE = 8
_MOST_OPERATORS = {"cpu": 50}
"""Operators, reads and constants above which a value is realised on a device (``realize_cpu_opcount_threshold``)."""
_MOST_OPERATORS_ELSEWHERE = 30
_ENOUGH_OPERATORS = max(*_MOST_OPERATORS.values(), _MOST_OPERATORS_ELSEWHERE)
"""Operators above which a value is realised on every device, and all that is computed from it in the same loop."""
_STEP_OPERATORS = 7
"""Operators more that a slice adds to a loop where it skips elements."""

Access = tuple[fx.Node, ...]
"""A value, and the views through which a loop reaches it: another slice is another access."""


@dataclass(frozen=True, slots=True)
class Inlined:
    """What the loop of a value computes and reads.

    Attributes:
        reads: Values in memory that it reads.
        computes: Pointwise nodes that it computes.
    """

    reads: frozenset[Access]
    computes: frozenset[Access]

    @staticmethod
    def read(node: fx.Node) -> Inlined:
        """That of a value in memory."""
        return Inlined(frozenset({(node,)}), frozenset())

    @staticmethod
    def of(arguments: Iterable[Inlined]) -> Inlined:
        """All that the loops of these arguments hold."""
        given = tuple(arguments)
        reads = frozenset[Access]().union(*(a.reads for a in given))
        return Inlined(reads, frozenset[Access]().union(*(a.computes for a in given)))

    def through(self, view: fx.Node) -> Inlined:
        """The same, reached through `view`."""
        # Beyond that nothing depends on the count, which doubles if a loop reads values as they are and transposed.
        if torch_compat.facts_of(view.target).same_order or self.operators > _ENOUGH_OPERATORS:
            return self
        reads, computes = ({(*access, view) for access in found} for found in (self.reads, self.computes))
        return Inlined(frozenset(reads), frozenset(computes))

    def and_computes(self, node: fx.Node) -> Inlined:
        """The same, and `node`."""
        return Inlined(self.reads, self.computes | {(node,)})

    @property
    def frontier(self) -> frozenset[fx.Node]:
        """Values in memory that are read."""
        return frozenset(access[0] for access in self.reads)

    @property
    def read_count(self) -> int:
        """Reads of more than one element."""
        return sum(_elements(access[0]) > 1 for access in self.reads)

    @property
    def operators(self) -> int:
        """Operators, reads and constants."""
        nodes = [access[0] for access in self.computes]
        numbers = {number for node in nodes for number in node.args if isinstance(number, (int, float))}
        return sum(map(_operators_of, nodes)) + len(self.reads) + len(numbers)


def is_realised(node: fx.Node, inlined: Inlined, readers: Collection[fx.Node]) -> bool:
    """Whether Inductor computes the pointwise `node` once.

    Args:
        node: A node of one result.
        inlined: What its loop holds.
        readers: What reads it in the same graph, directly or through views.
    """
    # A value that is padded as it is written belongs to that loop.
    if len(readers) == 1 and all(map(torch_compat.is_padded_in_loop, readers)):
        return False
    device = _device(node)
    if inlined.operators > _MOST_OPERATORS.get(device, _MOST_OPERATORS_ELSEWHERE):
        return True
    if inlined.read_count > _MOST_READS.get(device, _MOST_READS_ELSEWHERE):
        return True
    if len(readers) > 1 and inlined.read_count > _REUSED_READS:
        return True
    # A loop that broadcasts the value would compute it again for each of its elements.
    is_reused = len(readers) > 1 or any(_elements(reader) > _elements(node) for reader in readers)
    return device == "cpu" and is_reused and any(torch_compat.facts_of(one.target).dear for one, *_ in inlined.computes)


def is_concatenated(node: fx.Node) -> bool:
    """Whether the result is put together in memory, each argument being computed in its place; so it is on CPUs."""
    return node.target is torch.ops.aten.cat.default and _device(node) == "cpu"


def is_computed_in_slice(node: fx.Node, reader: fx.Node) -> bool:
    """Whether `node` is computed in its place in `reader`."""
    return is_concatenated(reader) and node in reader.all_input_nodes


def looked_up(node: fx.Node) -> fx.Node | None:
    """The value of which the node reads elements at other indices; `None` if it reads none so."""
    facts = torch_compat.facts_of(node.target)
    source = node.args[0] if facts.looks_up and not facts.scatters_into else None
    return source if isinstance(source, fx.Node) else None


def is_of_one_loop(node: fx.Node, reader: fx.Node, roots: Mapping[fx.Node, fx.Node]) -> bool:
    """Whether `reader` reads each element of `node` once, so that one loop can compute both."""
    whole = _elements(node)
    largest = max(map(_elements, (reader, *reader.all_input_nodes)))
    return largest == whole and all(_elements(a) == whole for a in reader.all_input_nodes if roots.get(a) is node)


def _elements(node: fx.Node) -> int:
    """Elements of the node's value; of a tuple, its first."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)) and value:
        value = value[0]
    return torch_compat.size_hint(value.numel()) if isinstance(value, torch.Tensor) else 0


def _device(node: fx.Node) -> str:
    value = node.meta.get("val")
    return value.device.type if isinstance(value, torch.Tensor) else ""


def _operators_of(node: fx.Node) -> int:
    """Operators that a pointwise node adds to a loop."""
    skips = node.target is torch.ops.aten.slice_scatter.default and len(node.args) > 5 and node.args[5] != 1
    return torch_compat.facts_of(node.target).index_operators + (_STEP_OPERATORS if skips else 0)
