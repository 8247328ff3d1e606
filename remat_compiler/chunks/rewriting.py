"""A joint graph with regions in chunks: each operator of it once for each chunk, one chunk behind the other.

    before      mm, log_softmax, loss            ... the gradient of logits, dh, dw
    after       mm, log_softmax, loss, gradient, dh, dw of chunk 0; then all of chunk 1; ...; dh together, dw added up

Where chunks need a value that is complete only behind the last chunk, or the gradient of the loss, the region has
several parts, each of them in chunks.  Sums are added up in 32 bits where values have fewer.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.changes import changed_inputs
from remat_compiler.capture.joined import JOINED
from remat_compiler.capture.operators import has_tensor, is_random
from remat_compiler.capture.storages import find_roots
from remat_compiler.chunks.cut import Cut, Partial, operands, shape_of
from remat_compiler.chunks.means import FEW_BITS
from remat_compiler.chunks.region import Region
from remat_compiler.chunks.rules import cutting
from remat_compiler.chunks.tangent import depending_on
from remat_compiler.chunks.writing import NotCuttable, arguments_with, call, call_like, in_order, viewed, write_sizes

_aten = torch.ops.aten
_prims = torch.ops.prims
IN_CHUNKS = "remat_chunk"
"""What nodes have in `meta` that belong to a chunk: its number."""

TRUSTING = frozenset({_aten.native_layer_norm_backward.default})
"""Operators whose kernel on a CPU reads statistics as if their elements lay in order, whether they do or not."""

Part = tuple[int, bool, int]
"""Operators that are written together: of which region, whether they need a tangent, behind how many parts of it."""


def in_chunks(graph: fx.Graph, *regions: Region) -> fx.Graph:
    """The graph with regions in chunks that have no operator in common; `graph` stays as it is.

    Raises:
        NotCuttable: An operator does not take a chunk, or parts of regions would wait for each other.
    """
    return _Writer(graph, regions).write()


class _Writer:
    """Mutable state of one rewriting."""

    def __init__(self, graph: fx.Graph, regions: Sequence[Region]) -> None:
        self.graph = graph
        self.regions = {node: region for region in regions for node in region.cuttings}
        self.new = fx.Graph()
        self.whole: dict[fx.Node, fx.Node] = {}
        self.chunk: dict[tuple[fx.Node, int], fx.Node] = {}
        self.sections: dict[tuple[fx.Node, Cut], fx.Node] = {}
        self.slices: dict[tuple[fx.Node, int], fx.Node] = {}
        self.constants: dict[tuple[fx.Node, Cut, int], fx.Node] = {}
        self.sums: dict[fx.Node, fx.Node] = {}
        self.leaving = frozenset(node for region in regions for node in region.leaving())
        self.place = {node: i for i, node in enumerate(graph.nodes)}
        self.before = _effects(graph)
        self.part = _parts(graph, regions, self.before)

    def write(self) -> fx.Graph:
        members: dict[Part, list[fx.Node]] = {}
        for node, part in self.part.items():
            members.setdefault(part, []).append(node)
        for unit in self._order(members):
            if isinstance(unit, fx.Node):
                self.whole[unit] = self.new.node_copy(unit, self.whole.__getitem__)
            else:
                self._write_part(members[unit])
        for one in dict.fromkeys(source for source, _, _ in self.constants):
            if not self.whole[one].users:
                self.new.erase_node(self.whole[one])
        write_sizes(self.new)
        return self.new

    def _order(self, members: Mapping[Part, list[fx.Node]]) -> list[fx.Node | Part]:
        """Nodes outside the regions, and their parts, each behind all that it reads and else as early as before."""
        done: dict[fx.Node | Part, None] = {}
        waiting: set[fx.Node | Part] = set()
        for node in self.graph.nodes:
            stack: list[fx.Node | Part] = [self.part.get(node, node)]  # no recursion: graphs are deep
            while stack:
                top = stack[-1]
                readers = [top] if isinstance(top, fx.Node) else members[top]
                read = {a for reader in readers for a in (*reader.all_input_nodes, *self._effect_before(reader))}
                needed = dict.fromkeys(self.part.get(a, a) for a in sorted(read, key=self.place.__getitem__))
                missing = [one for one in needed if one not in done and one != top]
                if missing:
                    waiting.add(top)
                    if not waiting.isdisjoint(missing):
                        raise NotCuttable("parts of several regions need each other")
                    stack += reversed(missing)
                else:
                    done[stack.pop()] = None
        return list(done)

    def _effect_before(self, node: fx.Node) -> list[fx.Node]:
        """The node whose effect comes before that of this one."""
        before = self.before.get(node, node)
        return [before] if before is not node else []

    def _write_part(self, nodes: list[fx.Node]) -> None:
        region = self.regions[nodes[0]]
        for chunk in range(region.chunks):
            for node in nodes:
                new = self._write_chunk(node, chunk)
                new.meta[IN_CHUNKS] = chunk
                self.chunk[node, chunk] = new
                if node in self.leaving and region.placement(node) is Partial.SUM:
                    self._add(node, new)
        for node in nodes:
            if node in self.leaving:
                self.whole[node] = self._joined(node)

    def _write_chunk(self, node: fx.Node, chunk: int) -> fx.Node:
        """The operator on one chunk."""
        position = iter(range(len(operands(node))))
        args, kwargs = fx.map_arg(
            (node.args, dict(node.kwargs)),
            lambda one: self._operand(node, next(position), chunk) if has_tensor(one) else self.whole[one],
        )
        how = self.regions[node].cuttings[node]
        # Most chunks are equal, and shapes of changing sizes take long to compute.
        twin = self.chunk[node, 0] if chunk and how.are_alike(0, chunk) else None
        return call_like(self.new, node, node_args(node, args, how.changes[chunk]), kwargs, twin)

    def _operand(self, node: fx.Node, position: int, chunk: int) -> fx.Node:
        source = operands(node)[position]
        if self.regions[node].is_read_in_chunks(node, position):
            return self.chunk[source, chunk]
        cut = self.regions[node].cuttings[node].operands[position]
        if cut is None:
            return self.whole[source]
        part = self._slice(source, cut, chunk, node)
        return in_order(self.new, part, like=node) if node.target in TRUSTING else part

    def _slice(self, source: fx.Node, cut: Cut, chunk: int, reader: fx.Node) -> fx.Node:
        """A chunk of a value that is there as a whole."""
        constant = self._constant(source, cut, chunk) if source.op == "call_function" else None
        if constant is not None:
            return constant
        # Not by slices, which torch clamps: then lengths of changing sizes are no longer known to be those of chunks.
        sections = self.sections.get((source, cut))
        if sections is None:
            value, shape = self.whole[source], shape_of(source)
            if len(cut.dims) > 1:
                value = viewed(self.new, value, cut.with_rows_together(shape), like=reader)
            lengths = [cut.length(i) for i in range(cut.chunks)]
            sections = call(self.new, _aten.split_with_sizes.default, (value, lengths, cut.last), like=reader)
            self.sections[source, cut] = sections
        found = self.slices.get((sections, chunk))
        if found is None:
            found = self.slices[sections, chunk] = call(self.new, operator.getitem, (sections, chunk), like=reader)
        return found

    def _constant(self, source: fx.Node, cut: Cut, chunk: int) -> fx.Node | None:
        """A chunk of a value that is made of no other; `None` if it is no such, or cannot be cut."""
        found = self.constants.get((source, cut, chunk))
        how = cutting(source, None, cut) if found is None and not operands(source) else None
        if how is not None:
            args, kwargs = fx.map_arg((source.args, dict(source.kwargs)), self.whole.__getitem__)
            found = call_like(self.new, source, arguments_with(source, args, how.changes[chunk]), kwargs)
            self.constants[source, cut, chunk] = found
        return found

    def _add(self, node: fx.Node, part: fx.Node) -> None:
        """Add a chunk's part to the sum."""
        before = self.sums.get(node)
        if before is None:
            few = part.meta["val"].dtype in FEW_BITS
            wide = (part, torch.float32)
            self.sums[node] = call(self.new, _prims.convert_element_type.default, wide, like=node) if few else part
        else:
            self.sums[node] = call(self.new, _aten.add.Tensor, (before, part), like=node)

    def _joined(self, node: fx.Node) -> fx.Node:
        """The whole of what the chunks computed."""
        region, dtype = self.regions[node], node.meta["val"].dtype
        placement = region.placement(node)
        if placement is Partial.ANY:
            return self.chunk[node, 0]
        if placement is Partial.SUM:
            total = self.sums[node]
            if total.meta["val"].dtype is dtype:
                return total
            return call(self.new, _prims.convert_element_type.default, (total, dtype), like=node)
        rows = [self.chunk[node, chunk] for chunk in range(region.chunks)]
        if not torch_compat.is_in_order(node.meta["val"]):
            return self._joined_in_its_order(node, rows, placement)
        whole = call(self.new, _aten.cat.default, (rows, placement.last), like=node)
        whole.meta[JOINED] = True
        if len(placement.dims) > 1:
            whole = call(self.new, _aten.view.default, (whole, list(shape_of(node))), like=node)
        return whole

    def _joined_in_its_order(self, node: fx.Node, rows: list[fx.Node], cut: Cut) -> fx.Node:
        """The whole of a value whose dimensions lie in memory in an order of their own, which views of it rely on."""
        order = torch_compat.memory_order(node.meta["val"])
        if len(cut.dims) > 1:
            raise NotCuttable(f"rows across several dimensions of {node}, which lie in another order")
        moved = [call(self.new, _aten.permute.default, (row, order), like=node) for row in rows]
        whole = call(self.new, _aten.cat.default, (moved, order.index(cut.last)), like=node)
        back = sorted(range(len(order)), key=order.__getitem__)
        return call(self.new, _aten.permute.default, (whole, back), like=node)


def node_args(node: fx.Node, args: tuple[Any, ...], changes: Mapping[int, Any]) -> tuple[Any, ...]:
    """Positional arguments of one chunk of an operator; an item has no schema."""
    return args if node.target is operator.getitem else arguments_with(node, args, changes)


def _effects(graph: fx.Graph) -> dict[fx.Node, fx.Node]:
    """Nodes that draw random numbers, have effects, or read an input that is changed: for each, the one before it."""
    roots, changed = find_roots(graph), changed_inputs(graph)
    found = [
        node
        for node in graph.nodes
        if node.op == "call_function"
        and (
            is_random(node)
            or node.is_impure(impure_random=False)
            or any(roots.get(a) in changed for a in node.all_input_nodes)
        )
    ]
    # The first one stands behind itself, so that all are found here.
    return dict(zip(found, [*found[:1], *found]))


def _parts(graph: fx.Graph, regions: Sequence[Region], before: Mapping[fx.Node, fx.Node]) -> dict[fx.Node, Part]:
    """The part of each operator of the regions, in the order of the graph.

    What reads a whole result of a part belongs to a later one.  So no part of a region needs itself, through whatever
    nodes.

    Raises:
        NotCuttable: Effects would come in another order.
    """
    place = {node: i for i, region in enumerate(regions) for node in region.cuttings}
    if not place.keys().isdisjoint(before):
        raise NotCuttable("the region reads what the step changes in place")
    tangents = filter(torch_compat.is_tangent, graph.find_nodes(op="placeholder"))
    late = depending_on(graph, tangents)
    parts: dict[fx.Node, Part] = {}
    # For each node, behind how many parts of each region it is.
    behind: dict[fx.Node, npt.NDArray[np.int32]] = {}
    for node in graph.nodes:
        # Effects stay in order, so what one of them waits for, those behind it wait for, too.
        sources = {*node.all_input_nodes, *(one for one in (before.get(node, node),) if one is not node)}
        found = behind[node] = np.zeros(len(regions), np.int32)
        for source in sources:
            np.maximum(found, behind[source], out=found)
        for source in sources & place.keys():
            i = place[source]
            if place.get(node) != i or regions[i].reads_whole(node, source):
                found[i] = max(found[i], behind[source][i] + 1)
        if node in place:
            parts[node] = place[node], node in late, int(found[place[node]])
    return parts


def is_in_chunks(node: fx.Node) -> bool:
    """Whether the node belongs to a chunk already."""
    return IN_CHUNKS in node.meta
