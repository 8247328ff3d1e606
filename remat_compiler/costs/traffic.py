"""The work of an operator: bytes through memory, and elements through arithmetic.

Bytes are counted as they are touched, not as storages are large: a slice reads its part, a broadcast value is
read once, a row that is looked up is read without the table around it.

Under Inductor an operator may be a *loop*, whose reads come straight from memory and whose inlined producers stay
in registers.  A loop is charged its reads and its arithmetic, not its writes: it is executed again right before
its reader, which then finds the result in a register (a loop) or in the cache (a kernel) instead of fetching it
from memory, and that fetch is charged to the reader already.
"""

from __future__ import annotations

import math
import operator
from typing import Any, Protocol

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.ir.graph import StorageId, TrainingGraph


class CapturedOps(Protocol):
    """A training graph with its FX nodes; `capture.graph.CapturedGraph` is one."""

    @property
    def graph(self) -> TrainingGraph:
        """The step as data."""

    @property
    def nodes(self) -> tuple[tuple[fx.Node, ...], ...]:
        """For each operator, the nodes that compute it."""

    @property
    def main(self) -> tuple[fx.Node, ...]:
        """For each operator, the node that gives it its name."""

    @property
    def roots(self) -> dict[fx.Node, fx.Node]:
        """For each node with a tensor, the node that owns its memory."""

    @property
    def storage(self) -> dict[fx.Node, StorageId]:
        """Storage of each root."""

    @property
    def loops(self) -> tuple[bool, ...]:
        """For each operator, whether it is part of a fused loop."""

    @property
    def wholes(self) -> dict[fx.Node, fx.Node]:
        """For each chunk that is computed in its place in a whole value, the node of that."""


PLAIN_EVALUATIONS = 0.1
"""Arithmetic of one element of a pointwise operator that has none in the table of operators, in evaluations of erf (a
multiplication takes 0.1 ns, a selection 0.3, erf 1.0)."""
GPU_PLAIN_EVALUATIONS = 1 / 20
"""The same on a GPU: one instruction."""


class Traffic:
    """Bytes and arithmetic of the operators of one graph."""

    def __init__(self, captured: CapturedOps) -> None:
        self.captured = captured
        self._joined = frozenset(captured.wholes.values())
        self._touched: dict[fx.Node, tuple[int, int]] = {}

    def moved_bytes(self, op_id: int) -> int:
        """Bytes that the operator reads and, unless it is a loop, writes."""
        op, main = self.captured.graph.ops[op_id], self.captured.main[op_id]
        size = self.captured.graph.storages
        # Its chunks are in their places.
        if main in self._joined:
            return 0
        read_bytes = self._read_bytes(op_id)
        # The fetch of a loop's result is charged to its reader; see the module docstring.
        if self.captured.loops[op_id]:
            return read_bytes
        if main in self.captured.wholes:
            return read_bytes + self._of(main)[1]
        return read_bytes + sum(size[storage].size_bytes for storage in op.writes)

    def evaluations(self, op_id: int, *, on_gpu: bool = False) -> float:
        """Arithmetic on elements within the operator, in evaluations of a special function."""
        is_loop = self.captured.loops[op_id]
        if self.captured.main[op_id] in self._joined:
            return 0.0
        nodes = [node for node in self.captured.nodes[op_id] if self._computes(node)]
        return sum(self._elements(node) * _evaluations(node, is_loop, on_gpu) for node in nodes)

    def _read_bytes(self, op_id: int) -> int:
        """Bytes that the operator touches of each storage, at most all of it."""
        captured = self.captured
        # Nodes of one operator hand each other values in registers or in its own results.
        own = set(captured.graph.ops[op_id].writes)
        touched: dict[StorageId, int] = {}
        for node in captured.nodes[op_id]:
            if not self._computes(node):
                continue
            result_bytes = self._of(node)[1]
            for position, argument in enumerate(node.all_input_nodes):
                storage = captured.storage.get(captured.roots.get(argument, argument))
                if storage is None or storage in own:
                    continue
                nbytes = self._of(argument)[1]
                # A table is looked up row by row: no more of it is read than comes out.
                if position == 0 and torch_compat.facts_of(node.target).looks_up:
                    nbytes = min(nbytes, result_bytes)
                touched[storage] = touched.get(storage, 0) + nbytes
        # Several nodes of the operator may read one storage; it is fetched once.
        return sum(min(n, captured.graph.storages[s].size_bytes) for s, n in touched.items())

    def _computes(self, node: fx.Node) -> bool:
        """Whether the node is more than a view or an item of another's result."""
        return node.target is not operator.getitem and self.captured.roots.get(node, node) is node

    def _elements(self, node: fx.Node) -> int:
        """Elements that the node computes."""
        elements = self._of(node)[0]
        if torch_compat.facts_of(node.target).looks_up:
            return elements
        # A reduction works on its arguments, which are larger than its result.
        return max([elements, *(self._of(argument)[0] for argument in node.all_input_nodes)])

    def _of(self, node: fx.Node) -> tuple[int, int]:
        """Elements of the node's largest tensor, and the bytes in memory that reading it touches."""
        found = self._touched.get(node)
        if found is None:
            found = self._touched[node] = _elements_and_bytes(node.meta.get("val"))
        return found


def _elements_and_bytes(value: Any) -> tuple[int, int]:
    if isinstance(value, torch.Tensor):
        sizes = [torch_compat.size_hint(size) for size in value.shape]
        # Sparse and other layouts have no strides; every element counts as memory.
        steps = value.stride() if value.layout is torch.strided else (1,) * len(sizes)
        # A dimension of step 0 repeats the same memory.
        distinct = math.prod([n for n, step in zip(sizes, steps) if torch_compat.size_hint(step) != 0])
        return math.prod(sizes), distinct * value.element_size()
    if isinstance(value, (list, tuple)):
        return max((_elements_and_bytes(item) for item in value), default=(0, 0))
    return 0, 0


def _evaluations(node: fx.Node, is_loop: bool, on_gpu: bool) -> float:
    """Arithmetic of one element, in evaluations of a special function."""
    facts = torch_compat.facts_of(node.target)
    if facts.evaluations is None:
        return GPU_PLAIN_EVALUATIONS if on_gpu else PLAIN_EVALUATIONS
    other = facts.gpu_evaluations if on_gpu else facts.loop_evaluations if is_loop else None
    return facts.evaluations if other is None else other
