"""Small training graphs: written by hand, or drawn at random by hypothesis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from hypothesis import strategies as st

from remat_compiler.ir.graph import Op, OpId, Phase, SavePolicy, Storage, StorageId, StorageKind, TrainingGraph, Trait
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import CostTable, RematProblem


@dataclass
class GraphBuilder:
    """Collects storages and operators, numbering them in order."""

    storages: list[Storage] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def storage(self, size_bytes: int, kind: StorageKind = StorageKind.ACTIVATION, name: str = "") -> StorageId:
        new = StorageId(len(self.storages))
        self.storages.append(Storage(new, name or f"t{new}", size_bytes, kind))
        return new

    def op(
        self,
        reads: Sequence[StorageId],
        writes: Sequence[StorageId],
        phase: Phase = Phase.FORWARD,
        *,
        traits: frozenset[Trait] = frozenset(),
        no_recompute: str = "",
        save_policy: SavePolicy = SavePolicy.FREE,
        replay: StorageId | None = None,
        target: str = "aten.op.default",
    ) -> Op:
        new = OpId(len(self.ops))
        name = f"op_{new}"
        made = Op(
            id=new,
            name=name,
            target=target,
            phase=phase,
            reads=tuple(sorted(set(reads))),
            writes=tuple(writes),
            nodes=(name,),
            traits=traits,
            no_recompute=no_recompute,
            save_policy=save_policy,
            replay=replay,
            module=f"layer.{new // 2}",
            source=f"model.py:{10 + new}",
        )
        self.ops.append(made)
        return made

    def graph(self) -> TrainingGraph:
        return TrainingGraph(tuple(self.ops), tuple(self.storages))


def chain(sizes: Sequence[int]) -> TrainingGraph:
    """x -> f_0 -> ... -> f_{n-1} -> output, and the backward of each, which reads the value before it.

    `sizes` are the bytes of the values; the output is kept, and so is one gradient of four bytes a layer.
    """
    b = GraphBuilder()
    values = [b.storage(sizes[0], StorageKind.INPUT, "x")]
    tangent = b.storage(sizes[-1], StorageKind.TANGENT, "tangent")
    for i, size in enumerate(sizes):
        kind = StorageKind.OUTPUT if i == len(sizes) - 1 else StorageKind.ACTIVATION
        values.append(b.storage(size, kind, f"f{i}"))
        b.op([values[i]], [values[i + 1]])
    flow = tangent
    for i in range(len(sizes) - 1, -1, -1):
        gradient = b.storage(4, StorageKind.GRADIENT, f"grad{i}")
        writes = [gradient]
        if i:
            writes.append(b.storage(sizes[i - 1], StorageKind.TEMPORARY, f"flow{i}"))
        b.op([values[i], flow], writes, Phase.BACKWARD)
        flow = writes[-1]
    return b.graph()


def joint_plan(graph: TrainingGraph) -> Plan:
    """Every operator once: the forward and what it needs first, then the rest."""
    forward = [op.id for op in graph.ops if op.phase is not Phase.BACKWARD]
    backward = [op.id for op in graph.ops if op.phase is Phase.BACKWARD]
    return Plan(tuple(forward + backward), len(forward))


@st.composite
def training_graphs(draw: st.DrawFn, max_ops: int = 6) -> TrainingGraph:
    """Well-formed graphs with every kind of storage, phase, trait and policy."""
    b = GraphBuilder()
    size = st.integers(0, 5000)
    made = [b.storage(draw(size), kind) for kind in (StorageKind.PARAMETER, StorageKind.INPUT)]
    for i in range(draw(st.integers(1, max_ops))):
        kind = draw(st.sampled_from((StorageKind.ACTIVATION, StorageKind.OUTPUT))) if i else StorageKind.OUTPUT
        made += _random_op(draw, b, made, Phase.FORWARD, kind)
    free = [s for _ in range(draw(st.integers(0, 2))) for s in _random_op(draw, b, made, Phase.TANGENT_FREE)]
    made += free
    made.append(b.storage(draw(size), StorageKind.TANGENT))
    for _ in range(draw(st.integers(1, max_ops))):
        made += _random_op(draw, b, made, Phase.BACKWARD, draw(st.sampled_from((StorageKind.GRADIENT, _TEMPORARY))))
    return b.graph()


_TEMPORARY = StorageKind.TEMPORARY


def _random_op(
    draw: st.DrawFn, b: GraphBuilder, made: list[StorageId], phase: Phase, kind: StorageKind = _TEMPORARY
) -> list[StorageId]:
    """Add one operator that reads some of `made`; the storages that it writes."""
    reads = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3))
    writes = [b.storage(draw(st.integers(0, 5000)), kind) for _ in range(draw(st.integers(1, 2)))]
    trait = draw(st.sampled_from((None, None, None, *Trait)))
    replay = b.storage(16, StorageKind.TEMPORARY) if trait is Trait.RANDOM else None
    forbidden = trait is not None and trait is not Trait.RANDOM
    b.op(
        reads,
        writes,
        phase,
        traits=frozenset() if trait is None else frozenset({trait}),
        no_recompute="its effect would happen twice" if forbidden else "",
        save_policy=SavePolicy.FREE if forbidden else draw(st.sampled_from(SavePolicy)),
        replay=replay,
    )
    return writes


@st.composite
def cost_tables(draw: st.DrawFn, num_ops: int) -> CostTable:
    """Costs for `num_ops` operators."""
    figures = st.lists(st.integers(0, 10**6), min_size=num_ops, max_size=num_ops)
    sources = st.lists(st.sampled_from(("roofline", "measured")), min_size=num_ops, max_size=num_ops)
    return CostTable(tuple(draw(figures)), tuple(draw(figures)), tuple(draw(sources)))


@st.composite
def problems(draw: st.DrawFn) -> RematProblem:
    """Problems whose budget may or may not be reachable."""
    graph = draw(training_graphs())
    return RematProblem(
        graph=graph,
        costs=draw(cost_tables(len(graph.ops))),
        budget_bytes=draw(st.integers(0, 10**5)),
        max_added_ns=draw(st.none() | st.integers(0, 10**6)),
        reference=draw(st.none() | st.just(joint_plan(graph))),
    )
