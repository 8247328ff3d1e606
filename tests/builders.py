"""Small problems for planners: by hand, by family, and at random."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

from hypothesis import strategies as st

from drawn_graphs import GraphBuilder
from remat_compiler.ir.graph import OpId, Phase, SavePolicy, StorageId, StorageKind, TrainingGraph, Trait
from remat_compiler.ir.plan import Plan, Tier
from remat_compiler.ir.problem import CostTable, Link, RematProblem

KB = 1000


@dataclass
class ProblemBuilder(GraphBuilder):
    """Writes a problem down line by line, costs included; `run` returns the storages that the operator makes."""

    times: list[int] = field(default_factory=list)
    workspaces: list[int] = field(default_factory=list)

    def run(
        self,
        phase: Phase,
        reads: Iterable[StorageId],
        writes: Sequence[tuple[int, StorageKind]],
        *,
        time: int = 10,
        workspace: int = 0,
        no_recompute: str = "",
        save_policy: SavePolicy = SavePolicy.FREE,
        replay_bytes: int | None = None,
        traits: frozenset[Trait] = frozenset(),
    ) -> list[StorageId]:
        """An operator at the end of the graph, with new storages for what it makes."""
        made = [self.storage(size, kind) for size, kind in writes]
        replay = None if replay_bytes is None else self.storage(replay_bytes, StorageKind.TEMPORARY)
        self.op(
            tuple(reads),
            made,
            phase,
            traits=traits if replay is None else traits | {Trait.RANDOM},
            no_recompute=no_recompute,
            save_policy=save_policy,
            replay=replay,
        )
        self.times.append(time)
        self.workspaces.append(workspace)
        return made

    def forward(self, reads: Iterable[StorageId], size: int, **options: object) -> StorageId:
        """A forward operator with one result."""
        return self.run(Phase.FORWARD, reads, [(size, StorageKind.ACTIVATION)], **options)[0]  # type: ignore[arg-type]

    def backward(self, reads: Iterable[StorageId], size: int, gradient: int = 0) -> StorageId:
        """A backward operator that makes the gradient of an activation, and perhaps one of a parameter."""
        writes = [(size, StorageKind.TEMPORARY)]
        if gradient:
            writes.append((gradient, StorageKind.GRADIENT))
        return self.run(Phase.BACKWARD, reads, writes, time=20)[0]

    def problem(self, budget: int = 1 << 60) -> RematProblem:
        """The graph with its costs."""
        costs = CostTable(tuple(self.times), tuple(self.workspaces), ("test",) * len(self.ops))
        return RematProblem(self.graph(), costs, budget)


def chain(length: int = 16, size: int = 8 * KB, gradient: int = 1 * KB) -> RematProblem:
    """A plain chain: every backward operator needs the result of the layer before it."""
    b = ProblemBuilder()
    values = [b.storage(size, StorageKind.INPUT)]
    for _ in range(length):
        values.append(b.forward([values[-1]], size))
    grad = b.storage(size, StorageKind.TANGENT)
    for value in reversed(values[:-1]):
        grad = b.backward([grad, value], size, gradient)
    return b.problem()


def residual(blocks: int = 12, size: int = 8 * KB) -> RematProblem:
    """Blocks of wide inner values around a stream, with dropout and a tangent-free mask in each."""
    b = ProblemBuilder()
    stream = b.storage(size, StorageKind.INPUT)
    weight = b.storage(size, StorageKind.PARAMETER)
    inner: list[tuple[StorageId, StorageId, StorageId]] = []
    for _ in range(blocks):
        wide = b.forward([stream, weight], 4 * size, time=100)
        active = b.forward([wide], 4 * size)
        dropped = b.run(Phase.FORWARD, [active], [(4 * size, StorageKind.ACTIVATION)], replay_bytes=16)[0]
        inner.append((stream, wide, dropped))
        narrow = b.forward([dropped, weight], size, time=100)
        stream = b.forward([stream, narrow], size)
    b.run(Phase.FORWARD, [stream], [(4, StorageKind.OUTPUT)])
    grad = b.storage(size, StorageKind.TANGENT)
    for stream, wide, dropped in reversed(inner):
        mask = b.run(Phase.TANGENT_FREE, [wide], [(size, StorageKind.TEMPORARY)])[0]
        wide_grad = b.backward([grad, weight, dropped], 4 * size, 512)
        wide_grad = b.backward([wide_grad, mask], 4 * size)
        narrow_grad = b.backward([wide_grad, stream], size, 512)
        grad = b.run(Phase.BACKWARD, [grad, narrow_grad], [(size, StorageKind.TEMPORARY)])[0]
    return b.problem()


def encoder_decoder(layers: int = 8, size: int = 4 * KB) -> RematProblem:
    """A memory made by the first half and read by every layer of the second."""
    b = ProblemBuilder()
    values = [b.storage(size, StorageKind.INPUT)]
    for _ in range(layers):
        values.append(b.forward([values[-1]], size, time=50))
    memory = values[-1]
    for _ in range(layers):
        values.append(b.forward([values[-1], memory], size, time=50))
    grad = b.storage(size, StorageKind.TANGENT)
    for i in range(2 * layers, 0, -1):
        grad = b.backward([grad, values[i], values[i - 1], *([memory] if i > layers else [])], size, 256)
    return b.problem()


def user_regions(regions: int = 4, length: int = 4, size: int = 8 * KB) -> RematProblem:
    """Checkpoint regions of the user: inner values must not be saved, each fourth region saves by demand."""
    b = ProblemBuilder()
    values = [b.storage(size, StorageKind.INPUT)]
    for region in range(regions):
        for k in range(length):
            policy = SavePolicy.FREE if k == length - 1 else SavePolicy.MUST_NOT_SAVE
            policy = SavePolicy.MUST_SAVE if region % 4 == 3 else policy
            values.append(b.forward([values[-1]], size, save_policy=policy))
    grad = b.storage(size, StorageKind.TANGENT)
    for value in reversed(values[:-1]):
        grad = b.backward([grad, value], size, 128)
    return b.problem()


def pinned_outputs(layers: int = 10, size: int = 8 * KB) -> RematProblem:
    """Two results an operator, collectives that may run once, and outputs that the backward reads."""
    b = ProblemBuilder()
    value = b.storage(size, StorageKind.INPUT)
    saved: list[tuple[StorageId, StorageId]] = []
    for i in range(layers):
        kind = StorageKind.OUTPUT if i % 4 == 1 else StorageKind.ACTIVATION
        reason = "all_reduce is a collective" if i % 3 == 2 else ""
        value, statistics = b.run(
            Phase.FORWARD, [value], [(size, kind), (256, StorageKind.ACTIVATION)], workspace=size, no_recompute=reason
        )
        saved.append((value, statistics))
    grad = b.storage(size, StorageKind.TANGENT)
    for value, statistics in reversed(saved):
        grad = b.backward([grad, value, statistics], size, 256)
    return b.problem()


def gathered(layers: int = 6, size: int = 8 * KB) -> RematProblem:
    """Layers whose weights are gathered from the ranks, which plans may do again, and whose gradients are scattered."""
    b = ProblemBuilder()
    stream = b.storage(size, StorageKind.INPUT)
    saved: list[tuple[StorageId, StorageId]] = []
    again, once = frozenset({Trait.COLLECTIVE, Trait.GATHER}), frozenset({Trait.COLLECTIVE})
    for _ in range(layers):
        part = b.storage(size, StorageKind.PARAMETER)
        weight = b.run(Phase.FORWARD, [part], [(2 * size, StorageKind.ACTIVATION)], time=30, traits=again)[0]
        saved.append((stream, weight))
        stream = b.forward([stream, weight], size, time=50)
    b.run(Phase.FORWARD, [stream], [(4, StorageKind.OUTPUT)])
    grad = b.storage(size, StorageKind.TANGENT)
    for before, weight in reversed(saved):
        wide = b.backward([grad, before], 2 * size)
        reason = "reduce_scatter communicates between ranks"
        b.run(Phase.BACKWARD, [wide], [(size, StorageKind.GRADIENT)], time=30, traits=once, no_recompute=reason)
        grad = b.backward([grad, weight], size)
    return b.problem()


def forward_only(length: int = 3) -> RematProblem:
    """No backward at all."""
    b = ProblemBuilder()
    value = b.storage(8, StorageKind.INPUT)
    for _ in range(length):
        value = b.forward([value], 8)
    b.run(Phase.FORWARD, [value], [(8, StorageKind.OUTPUT)])
    return b.problem()


def empty() -> RematProblem:
    """No operators at all."""
    return ProblemBuilder().problem()


LIBRARY: dict[str, RematProblem] = {
    "chain": chain(),
    "residual": residual(),
    "encoder_decoder": encoder_decoder(),
    "user_regions": user_regions(),
    "pinned_outputs": pinned_outputs(),
    "gathered": gathered(),
    "forward_only": forward_only(),
    "empty": empty(),
}
TRAINING = [name for name in LIBRARY if name not in ("empty", "forward_only")]
"""Those that have something to plan."""
"""Problems that every planner must answer."""


def random_problem(rng: Random, forwards: int = 12, backwards: int = 12) -> RematProblem:
    """Any well-formed graph: several results, pinned, kept, tangent-free, random and tagged operators."""
    b = ProblemBuilder()
    made = [b.storage(rng.randrange(64), StorageKind.INPUT), b.storage(rng.randrange(64), StorageKind.PARAMETER)]
    for _ in range(forwards):
        made += _random_op(b, rng, Phase.FORWARD, _some(rng, made))
    free: list[StorageId] = []
    grads = [b.storage(rng.randrange(64), StorageKind.TANGENT) for _ in range(rng.randint(1, 2))]
    for _ in range(backwards):
        if rng.random() < 0.25:
            free += _random_op(b, rng, Phase.TANGENT_FREE, _some(rng, made + free))
        reads = [rng.choice(grads), *_some(rng, made), *(_some(rng, free) if rng.random() < 0.5 else [])]
        grads += _random_op(b, rng, Phase.BACKWARD, reads)
    return b.problem()


def _some(rng: Random, storages: list[StorageId]) -> list[StorageId]:
    """Up to three of `storages`, the late ones more often; none of none."""
    recent = storages[-4:] if rng.random() < 0.7 else storages
    return rng.sample(recent, min(len(recent), rng.randint(0, 3)))


def _random_op(b: ProblemBuilder, rng: Random, phase: Phase, reads: list[StorageId]) -> list[StorageId]:
    """An operator with one or two results and a few of the things that restrict it."""
    kept = StorageKind.OUTPUT if phase is Phase.FORWARD else StorageKind.GRADIENT
    kind = StorageKind.ACTIVATION if phase is Phase.FORWARD else StorageKind.TEMPORARY
    writes = [
        (rng.choice([0, 1, 8, rng.randrange(200)]), kept if rng.random() < 0.15 else kind)
        for _ in range(rng.choice([1, 1, 1, 2]))
    ]
    pinned = rng.random() < 0.12
    policy = SavePolicy.FREE
    if phase is not Phase.BACKWARD and not pinned and rng.random() < 0.25:
        policy = rng.choice([SavePolicy.MUST_SAVE, SavePolicy.MUST_NOT_SAVE])
    # Capture makes no tangent-free operator random: noise stays in the part that draws it.
    random = rng.random() < 0.15 and not pinned and phase is not Phase.TANGENT_FREE
    return b.run(
        phase,
        reads,
        writes,
        time=rng.randrange(100),
        workspace=rng.choice([0, 0, rng.randrange(100)]),
        no_recompute="collective" if pinned else "",
        save_policy=policy,
        replay_bytes=rng.randrange(20) if random else None,
    )


def with_tiers(problem: RematProblem, offload_bytes: int = 1 << 60) -> RematProblem:
    """`problem` with room in both tiers, which copies reach in no time."""
    links = tuple(Link(tier, 10**18, 10**18) for tier in Tier)
    return replace(problem, offload_bytes=offload_bytes, costs=replace(problem.costs, links=links))


def random_steps(rng: Random, problem: RematProblem, repeats: int = 20) -> Plan:
    """A valid plan of `problem` with repeats at random places, sensible or not (tags are not heeded)."""
    graph = problem.graph
    last_forward = max((op.id for op in graph.ops if op.phase is Phase.FORWARD), default=-1)
    steps: list[OpId] = [op.id for op in graph.ops]
    boundary = last_forward + 1 + rng.randrange(_forward_slack(graph, last_forward) + 1)
    for _ in range(repeats if steps else 0):
        position = rng.randint(1, len(steps))
        again = steps[rng.randrange(position)]
        op = graph.ops[again]
        if op.may_recompute and (position >= boundary or op.phase is not Phase.BACKWARD):
            steps.insert(position, again)
            boundary += position < boundary
    return Plan(tuple(steps), boundary)


def _forward_slack(graph: TrainingGraph, last_forward: int) -> int:
    """Tangent-free operators that directly follow the last forward operator: the boundary may lie among them."""
    slack = 0
    for op in graph.ops[last_forward + 1 :]:
        if op.phase is not Phase.TANGENT_FREE:
            break
        slack += 1
    return slack


def untagged(problem: RematProblem) -> RematProblem:
    """`problem` without demands on what is saved."""
    ops = tuple(replace(op, save_policy=SavePolicy.FREE) for op in problem.graph.ops)
    return replace(problem, graph=replace(problem.graph, ops=ops))


def with_budget(problem: RematProblem, budget_bytes: int) -> RematProblem:
    """`problem` with another budget."""
    return replace(problem, budget_bytes=budget_bytes)


def generators() -> st.SearchStrategy[Random]:
    """Seeded generators: far quicker than drawing each choice, while the sizes still shrink."""
    return st.integers(0, 2**32 - 1).map(Random)


def problems() -> st.SearchStrategy[RematProblem]:
    """Random problems of up to 14 operators in each part."""
    return st.builds(random_problem, generators(), forwards=st.integers(0, 14), backwards=st.integers(0, 14))
