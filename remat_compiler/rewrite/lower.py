"""Lower a plan to forward and backward FX graphs.

The plan is written out as one *expanded joint graph*: every step of the plan becomes the nodes of its
operator, a repeated step becomes clones, in the plan's order.  torch's own extraction then splits it at
the boundary and keeps that order.

What is inlined (views, and pointwise producers under Inductor) is emitted with its reader, never saved
on its own: a view made in the forward is made again in the backward from the saved root, and a pointwise
producer is cloned for each fused loop of the backward, so that Inductor has no reason to keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture.graph import CapturedGraph
from remat_compiler.capture.operators import NodeClass, has_tensor, is_concatenation, node_class
from remat_compiler.capture.storages import readers
from remat_compiler.ir.graph import SavePolicy
from remat_compiler.ir.plan import Plan
from remat_compiler.rewrite.replay import ReplayedRandom


@dataclass(frozen=True, slots=True, eq=False)
class LoweredPlan:
    """Graph modules of a plan, in the calling convention of AOTAutograd's partitioners."""

    forward: fx.GraphModule
    backward: fx.GraphModule


def lower(captured: CapturedGraph, plan: Plan) -> LoweredPlan:
    """Graph modules that execute `plan`, which must have passed `verify`."""
    return _Lowering(captured, plan).run()


class _Lowering:
    """Mutable state of one lowering."""

    def __init__(self, captured: CapturedGraph, plan: Plan) -> None:
        self.captured = captured
        self.plan = plan
        self.graph = fx.Graph()
        self.current: dict[fx.Node, fx.Node] = {}
        self.inlined: dict[tuple[fx.Node, tuple[fx.Node, ...]], fx.Node] = {}
        self.emitted: dict[fx.Node, int] = {}
        self.in_backward = False
        self.forward_nodes: set[fx.Node] = set()
        self.kept = {s.id for s in captured.graph.storages if s.kept}
        self.random = ReplayedRandom(captured, plan, self.graph)
        self.stored = _to_be_stored(captured)

    def run(self) -> LoweredPlan:
        joint = self.captured.joint
        for node in joint.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                self.current[node] = self._copy(node, {})
                self._emit_ready_symbols(node)
        fwd_outputs, bwd_outputs = torch_compat.joint_outputs(joint, self.captured.num_fwd_outputs)
        for op_id in self.plan.steps[: self.plan.boundary]:
            self._emit_op(op_id)
        new_fwd = [self._emit_output(o) for o in fwd_outputs]
        self._cross_boundary()
        for op_id in self.plan.steps[self.plan.boundary :]:
            self._emit_op(op_id)
        new_bwd = [self._emit_output(o) for o in bwd_outputs]
        return self._extract([*new_fwd, *new_bwd])

    def _cross_boundary(self) -> None:
        self.in_backward = True
        self.inlined.clear()
        self.forward_nodes = {n for n in self.graph.nodes if not torch_compat.is_tangent(n)}

    def _emit_op(self, op_id: int) -> None:
        """Emit one execution of the operator."""
        main = self.captured.main[op_id]
        is_kernel = node_class(main) is NodeClass.KERNEL
        local: dict[fx.Node, fx.Node] = {}
        owned = {main, *(n for n in self.captured.nodes[op_id] if self.captured.storage.get(n) is not None)}
        for node in self.captured.nodes[op_id]:
            if node is main and self.random.replays(op_id):
                execution = self.emitted.get(node, 0)
                local[node] = self.random.emit(op_id, node, self._lookup(local), execution, self._name(node))
                self.emitted[node] = execution + 1
            elif node in owned:
                local[node] = self._copy(node, local)
                if op_id in self.stored:
                    local[node] = torch_compat.stored(self.graph, local[node])
            else:
                local[node] = self._emit_inlined(node, local)
        for node in owned:
            storage = self.captured.storage.get(node)
            if storage in self.kept and node in self.current:
                continue
            self.current[node] = local[node]
        for node in self.captured.nodes[op_id]:
            self._emit_ready_symbols(node)
        if is_kernel and self.in_backward and self.captured.fused:
            self.inlined.clear()

    def _emit_inlined(self, node: fx.Node, local: dict[fx.Node, fx.Node]) -> fx.Node:
        """Emit a view or an inlined pointwise node once for each set of arguments within a fused region."""
        arguments = tuple(self._lookup(local)(a) for a in node.all_input_nodes)
        key = (node, arguments)
        known = self.inlined.get(key)
        if known is None:
            known = self.inlined[key] = self._copy(node, local)
        return known

    def _emit_output(self, output: Any) -> Any:
        """Value of a joint output in the expanded graph, its views made from its root."""
        if not isinstance(output, fx.Node):
            return output
        local: dict[fx.Node, fx.Node] = {}
        for node in self._views_to(output):
            local[node] = self._emit_inlined(node, local)
        return self._lookup(local)(output)

    def _views_to(self, output: fx.Node) -> list[fx.Node]:
        """Inlined nodes between the roots and `output`, in order."""
        chain: list[fx.Node] = []
        stack = [output]
        while stack:
            node = stack.pop()
            owns = self.captured.storage.get(node) is not None
            if owns or node in self.current or node in chain or node_class(node) is NodeClass.SYMBOLIC:
                continue
            chain.append(node)
            stack.extend(node.all_input_nodes)
        order = {n: i for i, n in enumerate(self.captured.joint.graph.nodes)} if len(chain) > 1 else {}
        return sorted(chain, key=lambda n: order.get(n, 0))

    def _emit_ready_symbols(self, node: fx.Node) -> None:
        """Emit scalar computations on sizes as soon as their arguments stand; they are never repeated."""
        stack = [u for u in node.users if u.op == "call_function" and node_class(u) is NodeClass.SYMBOLIC]
        while stack:
            user = stack.pop()
            if user not in self.current and all(a in self.current for a in user.all_input_nodes):
                self.current[user] = self._copy(user, {})
                stack.extend(u for u in user.users if node_class(u) is NodeClass.SYMBOLIC and u.op != "output")

    def _lookup(self, local: dict[fx.Node, fx.Node]) -> Callable[[fx.Node], fx.Node]:
        return lambda a: local[a] if a in local else self.current[a]

    def _name(self, node: fx.Node) -> str:
        count = self.emitted.get(node, 0)
        return (
            node.name
            if count == 0
            else f"{node.name}{torch_compat.RECOMPUTE_SUFFIX}{'' if count == 1 else f'_{count}'}"
        )

    def _copy(self, node: fx.Node, local: dict[fx.Node, fx.Node]) -> fx.Node:
        """Copy `node` with arguments mapped; a second copy gets the recompute suffix."""
        look_up = self._lookup(local)
        args = fx.map_arg(node.args, look_up)
        kwargs = fx.map_arg(node.kwargs, look_up)
        new = self.graph.create_node(node.op, node.target, args, kwargs, self._name(node), node.type)
        new.meta = dict(node.meta)
        self.emitted[node] = self.emitted.get(node, 0) + 1
        return new

    def _extract(self, outputs: list[Any]) -> LoweredPlan:
        """Split the expanded graph at what the backward reads from the forward."""
        old_output = next(n for n in self.captured.joint.graph.nodes if n.op == "output")
        output = self.graph.output(tuple(outputs))
        output.meta = dict(old_output.meta)
        backward = [n for n in self.graph.nodes if n not in self.forward_nodes and n.op != "output"]
        read = {a for n in backward for a in n.all_input_nodes}
        read |= {o for o in outputs[self.captured.num_fwd_outputs :] if isinstance(o, fx.Node)}
        crossing = [n for n in self.graph.nodes if n in read and n in self.forward_nodes and n.op != "get_attr"]
        saved = [n for n in crossing if has_tensor(n)]
        symbols = [n for n in crossing if not has_tensor(n)]
        module = torch_compat.new_module(self.captured.joint, self.graph)
        forward_names = {n.name for n in self.forward_nodes}
        forward, backward_module = torch_compat.extract_modules(module, saved, symbols, self.captured.num_fwd_outputs)
        _drop_foreign(forward, lambda name: name not in forward_names)
        _drop_foreign(backward_module, lambda name: name in forward_names)
        return LoweredPlan(forward, backward_module)


def _drop_foreign(module: fx.GraphModule, is_foreign: Callable[[str], bool]) -> None:
    """Erase what belongs to the other half and is not used in this one.

    torch copies into both halves what can be computed there, and relies on the removal of dead code, which keeps
    random operators where it takes them for impure (under ``fallback_random``, say): they would draw twice.
    """
    unused = []
    for node in reversed(module.graph.nodes):
        if node.op == "call_function" and not node.users and is_foreign(node.name) and not _changes_memory(node):
            unused.append(node.name)
            module.graph.erase_node(node)
    if unused:
        module.recompile()


def _changes_memory(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _to_be_stored(captured: CapturedGraph) -> set[int]:
    """Loops whose result the plan wants in memory of its own, where Inductor would do otherwise.

    Inductor would inline them into their readers, unless a kernel reads them, or make them a part of the
    memory of a concatenation that reads them.  What must be saved is an output of the forward, and so in memory;
    besides, Inductor would take a copy of a changed input for the input itself once another operator stands between
    it and the output.
    """
    if not captured.fused:
        return set()
    found = set()
    for op_id, main in enumerate(captured.main):
        if node_class(main) is not NodeClass.POINTWISE or not isinstance(main.meta.get("val"), torch.Tensor):
            continue
        if captured.graph.ops[op_id].save_policy is SavePolicy.MUST_SAVE:
            continue
        found_readers = readers(main, captured.roots)
        kernel_reads = any(node_class(r) is NodeClass.KERNEL for r in found_readers)
        if not kernel_reads or any(is_concatenation(r) for r in found_readers):
            found.add(op_id)
    return found
