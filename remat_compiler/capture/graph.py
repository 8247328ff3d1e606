"""Build the `TrainingGraph` of a joint FX graph, and keep the way back to its nodes."""

from __future__ import annotations

import operator
from collections.abc import Container, Iterable
from dataclasses import dataclass

import torch
from torch import fx

from remat_compiler import torch_compat
from remat_compiler.capture import operators, source
from remat_compiler.capture.changes import changed_inputs
from remat_compiler.capture.joined import filled, wholes
from remat_compiler.capture.materialise import materialised_by_inductor, materialised_by_interpreter
from remat_compiler.capture.operators import NodeClass
from remat_compiler.capture.phases import find_phases
from remat_compiler.capture.storages import find_roots, storage_bytes
from remat_compiler.gradients.leave import LEAVE
from remat_compiler.ir.graph import Op, OpId, Phase, SavePolicy, Storage, StorageId, StorageKind, TrainingGraph, Trait

CPU_RNG_STATE_BYTES = 5056
CUDA_RNG_STATE_BYTES = 512


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph:
    """A training graph with its nodes.

    Attributes:
        joint: The joint graph module, in the form in which it is partitioned.
        graph: The same as torch-free data.
        nodes: For each operator, the FX nodes that compute it: inlined producers, the node itself, items, and the waits
            of a collective.
        main: For each operator, the node that gives it its name.
        roots: For each FX node with a tensor, the node that owns its memory.
        storage: Storage of each root.
        phases: Phase of each FX node.
        num_fwd_outputs: Number of joint outputs that belong to the forward.
        fused: Whether pointwise nodes were contracted as Inductor fuses them.
        loops: For each operator, whether Inductor makes it part of a fused loop.
        wholes: For each chunk that is computed in its place in a whole value, the node of that.
        filled: For each of these chunks but the first, and for the wholes, the chunk before it, in whose memory it is.
    """

    joint: fx.GraphModule
    graph: TrainingGraph
    nodes: tuple[tuple[fx.Node, ...], ...]
    main: tuple[fx.Node, ...]
    roots: dict[fx.Node, fx.Node]
    storage: dict[fx.Node, StorageId]
    phases: dict[fx.Node, Phase]
    num_fwd_outputs: int
    fused: bool
    loops: tuple[bool, ...]
    wholes: dict[fx.Node, fx.Node]
    filled: dict[fx.Node, fx.Node]


def capture(
    joint: fx.GraphModule,
    *,
    num_fwd_outputs: int,
    static_input_indices: tuple[int, ...],
    fused: bool,
    in_memory: Iterable[fx.Node] = (),
    gathers: bool = False,
) -> CapturedGraph:
    """Capture a prepared joint graph (see `torch_compat.prepare_joint`).

    Args:
        joint: The joint graph; not changed.
        num_fwd_outputs: Number of its outputs that belong to the forward.
        static_input_indices: Positions of the primals that are parameters or buffers.
        fused: Contract to the values that Inductor materialises, rather than those of the FX interpreter.
        in_memory: Nodes that are known to be in memory, besides the outputs.
        gathers: Whether inputs may be gathered from the ranks again.
    """
    return _Builder(joint, num_fwd_outputs, static_input_indices, fused, gathers).build(tuple(in_memory))


class _Builder:
    """Mutable state of one capture."""

    def __init__(
        self, joint: fx.GraphModule, num_fwd_outputs: int, static: tuple[int, ...], fused: bool, gathers: bool
    ) -> None:
        self.joint = joint
        self.num_fwd_outputs = num_fwd_outputs
        self.static = frozenset(static)
        self.fused = fused
        self.gathers = gathers
        self.classes = {n: operators.node_class(n) for n in joint.graph.nodes if n.op != "output"}
        # Sets of nodes are put into this order before they reach a result.
        self.order = {n: i for i, n in enumerate(self.classes)}
        self.roots = find_roots(joint.graph, self.classes)
        fwd, bwd = torch_compat.joint_outputs(joint, num_fwd_outputs)
        self.fwd_outputs = [n for n in fwd if isinstance(n, fx.Node)]
        self.bwd_outputs = [n for n in bwd if isinstance(n, fx.Node)]
        self.phases = find_phases(joint.graph, self.fwd_outputs)
        self.changed = changed_inputs(joint.graph)
        self.storage: dict[fx.Node, StorageId] = {}
        self.storages: list[Storage] = []
        self.wholes: dict[fx.Node, fx.Node] = {}
        self.filled: dict[fx.Node, fx.Node] = {}
        self.inlined: dict[fx.Node, tuple[frozenset[fx.Node], frozenset[fx.Node]]] = {}
        # By root: a caller that is given a view holds the whole memory behind it.
        self.outputs = {self.roots[o] for o in self.fwd_outputs if o in self.roots}
        self.gradients = {self.roots[o] for o in self.bwd_outputs if o in self.roots}

    def build(self, in_memory: tuple[fx.Node, ...]) -> CapturedGraph:
        if self.fused:
            # All three must be in memory, so Inductor cannot keep them in registers.
            outputs = [*self.fwd_outputs, *self.bwd_outputs, *in_memory]
            self.wholes = wholes(self.classes, self.roots, self.phases, set(outputs))
            self.filled = filled(sorted(self.wholes, key=self.order.__getitem__), self.wholes)
            outputs += [*self.wholes, *self.wholes.values()]
            mains = materialised_by_inductor(self.classes, self.roots, self.phases, outputs)
        else:
            mains = materialised_by_interpreter(self.classes)
        # Before the operators, which look up the storages that they read.
        self._add_inputs()
        ops: list[Op] = []
        node_lists: list[tuple[fx.Node, ...]] = []
        main_nodes: list[fx.Node] = []
        for node in self._in_order(mains):
            op, nodes = self._make_op(OpId(len(ops)), node)
            ops.append(op)
            node_lists.append(nodes)
            main_nodes.append(node)
        return CapturedGraph(
            joint=self.joint,
            graph=TrainingGraph(tuple(ops), tuple(self.storages)),
            nodes=tuple(node_lists),
            main=tuple(main_nodes),
            roots=self.roots,
            storage=self.storage,
            phases=self.phases,
            num_fwd_outputs=self.num_fwd_outputs,
            fused=self.fused,
            loops=tuple(self.fused and self.classes[n] is not NodeClass.KERNEL for n in main_nodes),
            wholes=self.wholes,
            filled=self.filled,
        )

    def _in_order(self, mains: Container[fx.Node]) -> list[fx.Node]:
        """The nodes of operators in the order of the graph, but for those that hand a gradient over.

        Each of these stands behind all operators that read its parameter, also by nodes that are inlined into them.
        """
        order = [node for node in self.classes if node in mains]
        place = {node: (i, 0) for i, node in enumerate(order)}
        for node in order:
            if node.target is LEAVE:
                readers = _reading(self.roots[_parameter_of(node)], mains)
                place[node] = (max(place[one][0] for one in readers), 1)
        return sorted(order, key=place.__getitem__)

    def _add_inputs(self) -> None:
        """Storages of placeholders and constants."""
        primals = 0
        for node, kind in self.classes.items():
            if kind is not NodeClass.INPUT:
                continue
            if torch_compat.is_tangent(node):
                storage_kind = StorageKind.TANGENT
            elif node.op == "get_attr" or primals in self.static:
                storage_kind = StorageKind.PARAMETER
            else:
                storage_kind = StorageKind.INPUT
            # Static indices count placeholders alone; tangents stand after all primals.
            primals += node.op == "placeholder"
            # Sizes are inputs, too, and own no memory.
            if node in self.roots:
                self._add_storage(node, storage_kind, storage_bytes(node))

    def _add_storage(self, root: fx.Node, kind: StorageKind, size_bytes: int) -> StorageId:
        storage = StorageId(len(self.storages))
        self.storages.append(Storage(storage, root.name, size_bytes, kind))
        self.storage[root] = storage
        return storage

    def _make_op(self, op_id: OpId, main: fx.Node) -> tuple[Op, tuple[fx.Node, ...]]:
        """The operator whose node is `main`, with its inlined producers and items."""
        before, read_roots = self._producers(main)
        items = self._items(main)
        # Collectives are complete before anything reads their results, at any place that a plan gives them.
        waits = [u for made in (main, *items) for u in made.users if self.classes.get(u) is NodeClass.WAIT]
        traits = operators.traits_of(main)
        reason = operators.reason_not_to_recompute(main, traits, self.gathers)
        if not reason and not self.changed.isdisjoint(read_roots):
            reason = "it reads an input that the step changes in place"
        reads = {self.storage[r] for r in read_roots if self.wholes.get(r) is not main}
        if main in self.filled:
            # The memory that it is written to, and that all chunks before it are in.
            reads.add(self.storage[self.filled[main]])
        writes = [
            self._add_storage(value, self._kind_of(value), self._own_bytes(value))
            for value in items or [main]
            # Views and in-place results live in memory that another node owns.
            if self.roots.get(value) is value
        ]
        writes += self._untaken(main)
        replay = None
        # An operator that never repeats needs no state to replay.
        if Trait.RANDOM in traits and not reason:
            replay = self._add_replay(main)
        nodes = (*sorted(before, key=self.order.__getitem__), main, *items, *waits)
        op = Op(
            id=op_id,
            name=main.name,
            target=str(main.target),
            phase=self.phases[main],
            reads=tuple(sorted(reads)),
            writes=tuple(writes),
            nodes=tuple(n.name for n in nodes),
            traits=traits,
            no_recompute=reason,
            # Every collective is tagged to be saved (`torch_compat.save_collectives`); this one is a plan's to decide.
            save_policy=(
                SavePolicy.FREE
                if Trait.GATHER in traits and not reason
                else self._save_policy([main, *items, *waits], reason)
            ),
            replay=replay,
            module=source.module_path(main),
            source=source.source_line(main),
            ends=self._ended_by(main),
        )
        return op, nodes

    def _own_bytes(self, value: fx.Node) -> int:
        """Bytes of the memory that a value is in: of a chunk in its place, those of the whole."""
        return storage_bytes(self.wholes.get(value, value))

    def _ended_by(self, main: fx.Node) -> tuple[StorageId, ...]:
        """The parameter that hooks may change once `main` has run."""
        return (self.storage[self.roots[_parameter_of(main)]],) if main.target is LEAVE else ()

    def _items(self, main: fx.Node) -> list[fx.Node]:
        """Items of a multi-output kernel, in order, nested ones included."""
        found: list[fx.Node] = []
        stack = [u for u in main.users if self.classes.get(u) is NodeClass.ITEM]
        while stack:
            # In graph order, whatever the depth of the tuples.
            item = min(stack, key=self.order.__getitem__)
            stack.remove(item)
            found.append(item)
            if isinstance(item.meta.get("val"), (list, tuple)):
                stack.extend(u for u in item.users if self.classes.get(u) is NodeClass.ITEM)
        return found

    def _untaken(self, main: fx.Node) -> list[StorageId]:
        """Storages of results that no node takes out of the tuple: kernels allocate them all the same, for one step.

        Loops that Inductor generates itself leave them out.
        """
        values = main.meta.get("val")
        if not isinstance(values, (list, tuple)) or (self.fused and self.classes[main] is not NodeClass.KERNEL):
            return []
        # Results that the caller masked out are never allocated.
        taken = {u.args[1] for u in main.users if u.target is operator.getitem} | operators.masked_out(main)
        made: list[StorageId] = []
        for position, value in enumerate(values):
            if position not in taken and isinstance(value, torch.Tensor):
                storage = StorageId(len(self.storages))
                size = torch_compat.allocated_bytes(value)
                self.storages.append(Storage(storage, f"{main.name}_{position}", size, StorageKind.TEMPORARY))
                made.append(storage)
        return made

    def _save_policy(self, nodes: list[fx.Node], no_recompute: str) -> SavePolicy:
        """The user's demand; a result that cannot be recomputed may be saved even in a region to be recomputed."""
        # A chunk that is in its place is held with all others, or not at all.
        policies = [SavePolicy.MUST_NOT_SAVE if n in self.wholes else torch_compat.save_policy(n) for n in nodes]
        # The tag may be on any of the items; all come from one operator.
        policy = next((p for p in policies if p is not SavePolicy.FREE), SavePolicy.FREE)
        return SavePolicy.FREE if no_recompute and policy is SavePolicy.MUST_NOT_SAVE else policy

    def _producers(self, node: fx.Node) -> tuple[frozenset[fx.Node], frozenset[fx.Node]]:
        """Nodes inlined into `node`, and the roots of the memory that it reads through them."""
        inside: set[fx.Node] = set()
        read: set[fx.Node] = set()
        for argument in node.all_input_nodes:
            nodes, roots = self._argument(argument)
            inside |= nodes
            read |= roots
        return frozenset(inside), frozenset(read)

    def _argument(self, node: fx.Node) -> tuple[frozenset[fx.Node], frozenset[fx.Node]]:
        """The nodes that a reader of `node` inlines, and the roots of the memory that it touches."""
        # Chains of inlined nodes share producers; without this every path through them would be walked.
        known = self.inlined.get(node)
        if known is not None:
            return known
        # Sizes take no device memory.
        if self.classes[node] is NodeClass.SYMBOLIC:
            found = (frozenset[fx.Node](), frozenset[fx.Node]())
        elif node in self.storage:
            found = (frozenset[fx.Node](), frozenset({node}))
        # Emitted with its collective, whose memory it is.
        elif self.classes[node] is NodeClass.WAIT:
            found = (frozenset[fx.Node](), frozenset({self.roots[node]}))
        # The tuple has no memory of its own, and is never inlined: that would run its kernel a second time.
        elif self._is_tuple_of_kernel(node):
            found = (frozenset[fx.Node](), frozenset[fx.Node]())
        else:
            nodes, roots = self._producers(node)
            found = (nodes | {node}, roots)
        self.inlined[node] = found
        return found

    def _is_tuple_of_kernel(self, node: fx.Node) -> bool:
        """Whether `node` is a tuple whose items own the memory."""
        return isinstance(node.meta.get("val"), (list, tuple)) and self.roots.get(node) is node

    def _kind_of(self, root: fx.Node) -> StorageKind:
        # Outputs first: a storage that is both is held by the caller from the forward on.
        if root in self.outputs:
            return StorageKind.OUTPUT
        if root in self.gradients:
            return StorageKind.GRADIENT
        return StorageKind.TEMPORARY if self.phases[root] is Phase.BACKWARD else StorageKind.ACTIVATION

    def _add_replay(self, main: fx.Node) -> StorageId:
        """Storage of the random state that a repetition of `main` needs."""
        value = main.meta.get("val")
        first = value[0] if isinstance(value, (list, tuple)) else value
        on_cpu = isinstance(first, torch.Tensor) and first.device.type == "cpu"
        storage = StorageId(len(self.storages))
        size = CPU_RNG_STATE_BYTES if on_cpu else CUDA_RNG_STATE_BYTES
        self.storages.append(Storage(storage, f"{main.name}_rng_state", size, StorageKind.ACTIVATION))
        return storage


def _parameter_of(leave: fx.Node) -> fx.Node:
    """The parameter whose gradient the operator hands over."""
    parameter = leave.args[1]
    assert isinstance(parameter, fx.Node)
    return parameter


def _reading(root: fx.Node, mains: Container[fx.Node]) -> set[fx.Node]:
    """The operators among `mains` that read `root`, directly or by nodes that are inlined into them."""
    found: set[fx.Node] = set()
    seen: set[fx.Node] = set()
    stack = list(root.users)
    while stack:
        node = stack.pop()
        if node in mains:
            found.add(node)
        elif node not in seen:
            seen.add(node)
            stack += node.users
    return found
