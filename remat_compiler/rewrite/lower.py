"""Lower a plan to forward and backward FX graphs.

The plan is written out step by step: every step becomes the nodes of its operator, a repeated step becomes clones,
in the plan's order, in the forward graph up to the boundary and in the backward graph from there on.

Inlined nodes (views, and pointwise producers under Inductor) are emitted with their reader, never saved
on their own: a view of the forward is recomputed in the backward from the saved root, and a pointwise
producer is cloned for each fused loop of the backward, so that Inductor has no reason to keep it.

What waits for a collective stands before the first reader of its result, so that what the plan runs in between goes on
meanwhile, if the collective's arguments are there in any case: emitted code keeps them until then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.changes import given_other_memory
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.capture.operators import NodeClass, has_tensor, is_pooling, node_class
from remat_compiler.ir.graph import StorageId, StorageKind
from remat_compiler.ir.plan import Plan, Tier
from remat_compiler.offload.place import Place
from remat_compiler.rewrite.emission import Emission, finished
from remat_compiler.rewrite.replay import ReplayedRandom
from remat_compiler.rewrite.transfers import EmittedTransfers

_VIEWS = (NodeClass.VIEW, NodeClass.ITEM)
_NOWHERE: Mapping[Tier, Place] = MappingProxyType({})


@dataclass(frozen=True, slots=True, eq=False)
class LoweredPlan:
    """Graph modules of a plan, in the calling convention of AOTAutograd's partitioners."""

    forward: fx.GraphModule
    backward: fx.GraphModule


def lower(captured: CapturedGraph, plan: Plan, places: Mapping[Tier, Place] = _NOWHERE) -> LoweredPlan:
    """Graph modules that execute `plan`, which must have passed `verify`.

    Args:
        captured: The joint graph.
        plan: The plan.
        places: Where values go that the plan moves to a tier.
    """
    return _Lowering(captured, plan, places).run()


class _Lowering:
    """Mutable state of one lowering."""

    def __init__(self, captured: CapturedGraph, plan: Plan, places: Mapping[Tier, Place]) -> None:
        self.captured = captured
        self.plan = plan
        self.out = Emission()
        self.current: dict[fx.Node, fx.Node] = {}
        self.waiting: dict[fx.Node, dict[fx.Node, fx.Node]] = {}
        self.inlined: dict[tuple[fx.Node, tuple[fx.Node, ...]], fx.Node] = {}
        self.emitted: dict[fx.Node, int] = {}
        self.fractions: dict[fx.Node, fx.Node] = {}
        self.kept = {s.id for s in captured.graph.storages if s.kept}
        self.random = ReplayedRandom(captured, plan, self.out)
        self.transfers = EmittedTransfers(captured, plan, places, self.out, self.current)
        self.stored = _to_be_stored(captured)
        nodes = captured.joint.graph.nodes
        self.symbols = {n for n in nodes if n.op == "call_function" and node_class(n) is NodeClass.SYMBOLIC}
        self.sources, self.computed = self._sources_of_symbols()

    def run(self) -> LoweredPlan:
        joint = self.captured.joint
        inputs = [n for n in joint.graph.nodes if n.op in ("placeholder", "get_attr")]
        # Forward: the plan up to the boundary, then the outputs that the caller gets.
        self._emit_inputs(n for n in inputs if not _only_for_backward(n))
        self._emit_views_of_old_memory()
        fwd_outputs, bwd_outputs = torch_compat.joint_outputs(joint, self.captured.num_fwd_outputs)
        for step in range(self.plan.boundary):
            self._emit_step(step)
        self._emit_waits()
        self.transfers.end_forward()
        new_fwd = [self._emit_output(o) for o in fwd_outputs]
        self.out.enter_backward()
        # Views and inlined values are recomputed from what is saved, never saved themselves.
        self.inlined.clear()
        self._emit_inputs(n for n in inputs if _only_for_backward(n))
        self.transfers.begin_backward()
        for step in range(self.plan.boundary, len(self.plan.steps)):
            self._emit_step(step)
        self._emit_waits()
        new_bwd = [self._emit_output(o) for o in bwd_outputs]
        # AOTAutograd saves sizes apart from tensors.
        symbols = frozenset(n for n in self.out.forward.nodes if not has_tensor(n))
        return LoweredPlan(*finished(self.out, joint, symbols, (new_fwd, new_bwd)))

    def _emit_inputs(self, inputs: Iterable[fx.Node]) -> None:
        for node in inputs:
            self.current[node] = self._copy(node, {})
            self._emit_ready_symbols(node)

    def _emit_views_of_old_memory(self) -> None:
        """Emit the views of inputs that are given other memory: after that they would be views of the new memory."""
        inputs = given_other_memory(self.captured.joint.graph)
        local: dict[fx.Node, fx.Node] = {}
        for node in self.captured.joint.graph.nodes if inputs else ():
            known = all(argument in local or argument in self.current for argument in node.all_input_nodes)
            if self.captured.roots.get(node) in inputs and node_class(node) in _VIEWS and known:
                local[node] = self._emit_inlined(node, local)

    def _emit_step(self, step: int) -> None:
        """Emit one step, and the transfers around it."""
        self.transfers.before(step)
        self._emit_op(self.plan.steps[step])
        self.transfers.after(step)

    def _emit_op(self, op_id: int) -> None:
        """Emit one execution of the operator."""
        nodes, main, storage = self.captured.nodes[op_id], self.captured.main[op_id], self.captured.storage
        # Results with memory of their own: a repetition makes a new instance of each.
        owned = {main, *(n for n in nodes if n in storage or node_class(n) is NodeClass.WAIT)}
        local: dict[fx.Node, fx.Node] = {}
        for node in nodes:
            # Inlined producers and items of a random operator are deterministic.
            if node is main and self.random.replays(op_id):
                execution = self.emitted.get(node, 0)
                local[node] = self.random.emit(op_id, node, self._lookup(local), execution, self._name(node))
                self.emitted[node] = execution + 1
            elif self._waits_later(node, main):
                self.waiting[node] = local
                self.current.pop(node, None)
            elif node in owned:
                local[node] = self._copy(node, local)
                if op_id in self.stored and isinstance(node.meta.get("val"), torch.Tensor):
                    local[node] = self._stored(local[node])
                if self.captured.fused and storage.get(node) in self.transfers.storages:
                    meta = torch_compat.meta_of_copy(node)
                    local[node] = self.out.node(
                        torch_compat.LAY_OUT.default, (local[node],), {}, name="laid_out", meta=meta
                    )
            else:
                local[node] = self._emit_inlined(node, local)
        for node in owned:
            # A read of a kept storage means its first instance, so a repetition does not replace it.
            is_first = storage.get(self.captured.roots.get(node, node)) not in self.kept or node not in self.current
            if is_first and node not in self.waiting:
                self.current[node] = local[node]
        if self.symbols:  # none in graphs of fixed sizes
            for node in nodes:
                self._emit_ready_symbols(node)
        # No fused loop spans a kernel, so the next loop needs clones of its own.
        if self.out.in_backward and self.captured.fused and node_class(main) is NodeClass.KERNEL:
            self.inlined.clear()

    def _waits_later(self, node: fx.Node, main: fx.Node) -> bool:
        """Whether a wait for the collective `main` is emitted with its first reader."""
        # An interpreter would let go of the collective's argument while it is still read; values that are moved off the
        # device leave right after their operator; and a repetition replaces no value that the caller gets.
        if not self.captured.fused or node_class(node) is not NodeClass.WAIT:
            return False
        roots, storage = self.captured.roots, self.captured.storage
        result = storage.get(roots[node])
        if result in self.transfers.storages or (result in self.kept and node in self.current):
            return False
        resident, saved = self._storages_there
        there = resident if self.out.in_backward else resident | saved
        # What has no storage of its own is made for the collective alone.
        given = {storage.get(roots[argument]) for argument in main.all_input_nodes if argument in roots}
        return given <= there

    @cached_property
    def _storages_there(self) -> tuple[frozenset[StorageId | None], frozenset[StorageId | None]]:
        """Storages that no plan frees, and those that are held from the operator that makes them to the backward."""
        graph, boundary = self.captured.graph, self.plan.boundary
        resident = {s.id for s in graph.storages if s.kind in (StorageKind.PARAMETER, StorageKind.INPUT)}
        saved: set[StorageId] = set()
        written: set[StorageId] = set()
        for op_id in self.plan.steps[boundary:]:
            saved.update(set(graph.ops[op_id].reads) - written)
            written.update(graph.ops[op_id].writes)
        made = Counter(storage for op_id in self.plan.steps[:boundary] for storage in graph.ops[op_id].writes)
        held = {one for one in saved if made[one] == 1 and one not in self.transfers.storages}
        return frozenset(resident), frozenset(held)

    def _emit_waits(self) -> None:
        """Emit the waits that nothing read so far."""
        for node in list(self.waiting):
            self._value_of(node)

    def _stored(self, node: fx.Node) -> fx.Node:
        """`node` as a value that Inductor writes to memory where it stands."""
        target, args = torch_compat.materialise(node)
        if target is None:
            return node
        return self.out.node(target, args, {}, name="store", meta=torch_compat.meta_of_copy(node))

    def _emit_inlined(self, node: fx.Node, local: dict[fx.Node, fx.Node]) -> fx.Node:
        """Emit a view or an inlined pointwise node once for each set of arguments within a fused region."""
        look_up = self._lookup(local)
        # With the arguments: a view of a recomputed root is another view.
        key = (node, tuple(map(look_up, node.all_input_nodes)))
        known = self.inlined.get(key)
        if known is None:
            known = self.inlined[key] = self._copy(node, local)
        return known

    def _emit_output(self, output: Any) -> Any:
        """Value of a joint output, with its views computed from its root."""
        if not isinstance(output, fx.Node):
            return output
        local: dict[fx.Node, fx.Node] = {}
        for node in self._views_to(output):
            local[node] = self._emit_inlined(node, local)
        return self._lookup(local)(output)

    def _views_to(self, output: fx.Node) -> list[fx.Node]:
        """Inlined nodes between the roots and `output`, in order."""
        chain: set[fx.Node] = set()
        stack = [output]
        while stack:
            node = stack.pop()
            standing = node in self.captured.storage or node in self.current or node in self.waiting
            if standing or node in chain or node in self.symbols:
                continue
            chain.add(node)
            stack.extend(node.all_input_nodes)
        return sorted(chain)

    def _sources_of_symbols(self) -> tuple[dict[fx.Node, set[fx.Node]], dict[fx.Node, list[fx.Node]]]:
        """For each number the nodes that it is computed from, without inlined ones, and for each node those numbers."""
        # Nodes with an instance of their own; everything else is inlined between them and the symbol.
        standing = {*self.captured.main, *self.captured.storage, *self.symbols}
        sources: dict[fx.Node, set[fx.Node]] = {}
        computed: dict[fx.Node, list[fx.Node]] = {}
        for symbol in self.captured.joint.graph.nodes:
            if symbol not in self.symbols:
                continue
            found: set[fx.Node] = set()
            stack = list(symbol.all_input_nodes)
            while stack:
                node = stack.pop()
                if node in standing or not node.all_input_nodes:
                    found.add(node)
                else:
                    stack.extend(node.all_input_nodes)
            sources[symbol] = found
            for node in sorted(found):  # in graph order, the same in every process
                computed.setdefault(node, []).append(symbol)
        return sources, computed

    def _emit_ready_symbols(self, node: fx.Node) -> None:
        """Emit computations of numbers as soon as their sources are emitted; they are never repeated."""
        stack = list(self.computed.get(node, ()))
        while stack:
            symbol = stack.pop()
            # A symbol with several sources is reached from each, and emitted with the last of them.
            if symbol not in self.current and all(source in self.current for source in self.sources[symbol]):
                local: dict[fx.Node, fx.Node] = {}
                for argument in symbol.all_input_nodes:
                    for inlined in self._views_to(argument):
                        if inlined not in local:
                            local[inlined] = self._emit_inlined(inlined, local)
                self.current[symbol] = self._copy(symbol, local)
                # Numbers are computed from numbers.
                stack.extend(self.computed.get(symbol, ()))

    def _lookup(self, local: dict[fx.Node, fx.Node]) -> Callable[[fx.Node], fx.Node]:
        """The function that maps a node of the joint graph to its latest copy in the graph that is being written."""
        return lambda a: local[a] if a in local else self._value_of(a)  # the operator's own copies first

    def _value_of(self, node: fx.Node) -> fx.Node:
        """The latest instance of a node; the backward recomputes fractional numbers (`SymFloat`).

        Inductor's cache rejects a graph that has such a number among its inputs.
        """
        if node in self.waiting:
            self.current[node] = self._copy(node, self.waiting.pop(node))
        if not self.out.in_backward or not isinstance(node.meta.get("val"), torch.SymFloat):
            return self.out.here(self.current[node])
        # One copy in the backward serves all of its readers.
        if node not in self.fractions:
            self.fractions[node] = self._copy(node, {})
        return self.fractions[node]

    def _name(self, node: fx.Node) -> str:
        """Name of the next copy of `node`; from the second copy on it has the recompute suffix."""
        count = self.emitted.get(node, 0)
        # The suffix marks repetitions; reports of the graphs look for it.
        if count == 0:
            return node.name
        return f"{node.name}{torch_compat.RECOMPUTE_SUFFIX}{'' if count == 1 else f'_{count}'}"

    def _copy(self, node: fx.Node, local: dict[fx.Node, fx.Node]) -> fx.Node:
        """Copy `node` with arguments mapped."""
        args, kwargs = fx.map_arg((node.args, node.kwargs), self._lookup(local))
        name = self._name(node)
        self.emitted[node] = self.emitted.get(node, 0) + 1
        return self.out.node(node.target, args, kwargs, name=name, meta=node.meta, op=node.op, type_expr=node.type)


def _only_for_backward(node: fx.Node) -> bool:
    """Whether an input of the joint graph is an input of the backward alone."""
    return torch_compat.is_tangent(node) or torch_compat.is_backward_seed_offset(node)


def _to_be_stored(captured: CapturedGraph) -> set[int]:
    """Loops whose results Inductor would inline into their readers, or write later than the plan says.

    Inductor writes a pointwise value just before the first kernel that reads it, or at the end of the graph for an
    output, and keeps the value's arguments alive until then.  It may also place the value in the memory of a
    concatenation that reads it.
    """
    if not captured.fused:
        return set()
    return {i for i, n in enumerate(captured.main) if node_class(n) is NodeClass.POINTWISE or is_pooling(n)}
