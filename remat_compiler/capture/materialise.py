"""The values that get memory of their own.

The FX interpreter gives memory to the result of every operator that is not a view.  Inductor fuses: a
pointwise value lives in registers unless something forces it into memory.  The model used here:

- kernels (matrix products, convolutions, attention, fallbacks), reductions, poolings, scatters and random
  operators materialise their results, and kernels and poolings need their arguments in memory; a reduction of
  a few elements is written out as pointwise arithmetic;
- a pointwise value that no kernel reads and that is no output is inlined into each of its readers, as
  long as those stand before the next kernel (a fused loop cannot span a kernel);
- a pointwise value that takes many reads or operators, or that is dear and has several readers, is not inlined
  (`inlining`): it needs memory unless one loop holds it and all its readers, which must be of its size for that;
- if a reader stands after the next kernel, or in the other phase, inlining keeps alive the values from which this one
  is computed, its *frontier*.  It is still inlined if that loses nothing: the frontier is not larger than the value,
  or the backward reads all of the frontier anyway.

Values computed from no tensor (constants, ranges) are recomputed by each reader.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.inlining import (
    Inlined,
    is_computed_in_slice,
    is_concatenated,
    is_of_one_loop,
    is_realised,
    looked_up,
)
from remat_compiler.capture.operators import NodeClass, is_pooling, is_random
from remat_compiler.capture.storages import readers, storage_bytes
from remat_compiler.ir.graph import Phase, SavePolicy

FRONTIER_SLACK = 1.05
"""A frontier up to this factor larger than the value counts as no larger (statistics of a norm, say)."""

_OWN_MEMORY = (NodeClass.KERNEL, NodeClass.REDUCTION)


def materialised_by_interpreter(classes: dict[fx.Node, NodeClass]) -> set[fx.Node]:
    """Nodes whose execution allocates under the FX interpreter (items stand with their parents)."""
    allocating = (NodeClass.POINTWISE, *_OWN_MEMORY)
    return {n for n, kind in classes.items() if kind in allocating}


def materialised_by_inductor(
    classes: dict[fx.Node, NodeClass],
    roots: dict[fx.Node, fx.Node],
    phases: dict[fx.Node, Phase],
    outputs: Iterable[fx.Node],
) -> set[fx.Node]:
    """Nodes whose results Inductor writes to memory, by the module docstring's model."""
    return _Fusion(classes, roots, phases, outputs).run()


def is_random_value(node: fx.Node) -> bool:
    """Whether the node holds random numbers; Inductor writes those to memory."""
    return is_random(node) or torch_compat.facts_of(node.target).seeds == "given"


class _Fusion:
    """One pass over the graph in order, so that every frontier is known before its readers."""

    def __init__(
        self,
        classes: dict[fx.Node, NodeClass],
        roots: dict[fx.Node, fx.Node],
        phases: dict[fx.Node, Phase],
        outputs: Iterable[fx.Node],
    ) -> None:
        self.classes = classes
        self.roots = roots
        self.phases = phases
        self.forced = {roots[o] for o in outputs if o in roots}
        self.segment = _segments(classes)
        self.materialised: set[fx.Node] = set()
        self.inlined: dict[fx.Node, Inlined] = {}

    def run(self) -> set[fx.Node]:
        for node, kind in self.classes.items():
            if kind is NodeClass.SYMBOLIC:
                continue
            # Readers decide for a pointwise value; a view or an item follows its root.
            own = kind in _OWN_MEMORY or (kind is NodeClass.POINTWISE and self._needs_memory(node))
            if own:
                self.materialised.add(node)
            if own or kind is NodeClass.INPUT or (kind is NodeClass.ITEM and self.roots[node] is node):
                self.inlined[node] = Inlined.read(node)
            else:
                self._set_inlined(node)
        return self.materialised

    def _set_inlined(self, node: fx.Node) -> Inlined:
        given = {a: self.inlined[a] for a in node.all_input_nodes if a in self.inlined}
        source = looked_up(node)
        if source in given:
            # Elements at other indices are other reads.
            given[source] = given[source].through(node)
        found = Inlined.of(given.values())
        if self.classes[node] is NodeClass.POINTWISE:
            found = found.and_computes(node)
        # Views change indices only, and add nothing to the arithmetic of the loop.
        elif self.classes[node] is NodeClass.VIEW:
            found = found.through(node)
        self.inlined[node] = found
        return found

    def _needs_memory(self, node: fx.Node) -> bool:
        """Whether the pointwise `node` is written to memory."""
        # In memory for any reader: Inductor writes random numbers there, outputs and saved values need it.
        if is_random_value(node) or node in self.forced or torch_compat.save_policy(node) is SavePolicy.MUST_SAVE:
            return True
        if is_concatenated(node):
            return True
        found = self._readers(node)
        # Kernels and loops over windows read their arguments from memory.
        if any(self.classes[r] is NodeClass.KERNEL or is_pooling(r) for r in found):
            return True
        # As if it were inlined; `run` overwrites this if it is not.
        inlined = self._set_inlined(node)
        near = [r for r in found if self._is_of_one_graph(node, r)]
        in_slice = any(is_computed_in_slice(node, r) for r in near)
        takes = looked_up(node) is not None
        if is_realised(node, inlined, near):
            # Its memory is a piece of the result.
            if in_slice and not takes:
                return False
            if not in_slice and not all(self._is_in_loop_of(node, r) for r in near):
                return True
        # Inputs stay alive anyway, so reading them late costs nothing.
        frontier = [f for f in inlined.frontier if self.classes[f] is not NodeClass.INPUT]
        # All readers fit into the loop of the value.  But pieces of a result are written together, and until then hold
        # what elements are taken of, of which there may be many for each.
        if not (in_slice and takes) and not any(self._is_far(node, r) for r in found):
            return False
        kept_alive = sum(storage_bytes(f) for f in frontier)
        if kept_alive <= FRONTIER_SLACK * storage_bytes(node):
            return False
        return not all(self._read_late_anyway(f, node, found) for f in frontier)

    def _is_in_loop_of(self, node: fx.Node, reader: fx.Node) -> bool:
        """Whether the loop of `reader` can hold the pointwise `node`."""
        # Elements at other indices are read in a loop of their own, into which what they are taken of is inlined.
        if any(looked_up(r) in (node, reader) for r in (reader, *self._readers(reader))):
            return False
        return self.segment[node] == self.segment[reader] and is_of_one_loop(node, reader, self.roots)

    def _readers(self, node: fx.Node) -> list[fx.Node]:
        return readers(node, self.roots)

    def _is_far(self, node: fx.Node, reader: fx.Node) -> bool:
        """Whether no fused loop can hold both nodes: a kernel or the end of the forward stands between them."""
        return self.segment[node] != self.segment[reader] or not self._is_of_one_graph(node, reader)

    def _is_of_one_graph(self, node: fx.Node, reader: fx.Node) -> bool:
        """Whether both nodes are of the forward, or both of the backward."""
        # Tangent-free nodes count as backward, which alone needs them.
        return (self.phases[node] is Phase.FORWARD) == (self.phases[reader] is Phase.FORWARD)

    def _read_late_anyway(self, frontier: fx.Node, node: fx.Node, found: list[fx.Node]) -> bool:
        """Whether the backward reads `frontier` without `node`, too, and no earlier than the readers `found`."""
        late = (r for r in self._readers(frontier) if r is not node and self.phases[r] is Phase.BACKWARD)
        # A value that the backward reads at all is alive across the boundary, however late it is read.
        if self.phases[node] is not Phase.BACKWARD:
            return any(True for _ in late)
        last = max(self.segment[r] for r in found)
        return any(self.segment[r] >= last for r in late)


def _segments(classes: dict[fx.Node, NodeClass]) -> dict[fx.Node, int]:
    """For each node, how many kernels stand before it."""
    segment: dict[fx.Node, int] = {}
    kernels = 0
    for node, kind in classes.items():
        segment[node] = kernels
        kernels += kind is NodeClass.KERNEL  # a kernel belongs to the segment that it ends
    return segment
