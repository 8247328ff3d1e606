"""Generated training steps: families of forward graphs, differentiated operator by operator; seeded, without torch.

    chain_uniform   layers of one size and time
    chain_skewed    layers whose sizes and times differ by up to 100
    random_dag      layers that read one to three of the last sixteen values
    ushape          an encoder of halving sizes and a decoder that reads every level again
    recurrence      an unrolled cell of eight operators with small state and shared weights
    long_skips      a stream that also reads values of long before, dense-net like

Times are those of a machine with 10 bytes of memory traffic and 50 floating-point operations a nanosecond and 1 µs an
operator, as in the nominal cost model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from random import Random

from remat_compiler.ir.graph import Op, OpId, Phase, Storage, StorageId, StorageKind, TrainingGraph
from remat_compiler.ir.problem import CostTable, RematProblem

LAYERS = {"small": 60, "medium": 300, "full": 1500}
"""Forward operators, about, of each size."""
LAUNCH_NS, BYTES_PER_NS, FLOPS_PER_NS = 1_000, 10, 50


@dataclass(frozen=True)
class _Layer:
    """One forward operator and what its derivative reads."""

    inputs: tuple[StorageId, ...]
    result: StorageId
    flops: int
    parameter_bytes: int
    reads_inputs: bool
    mask: bool


@dataclass
class Step:
    """A training step in the making: forward operators by `layer`, and then `problem`."""

    storages: list[Storage] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    layers: list[_Layer] = field(default_factory=list)

    def storage(self, size: int, kind: StorageKind) -> StorageId:
        """A new storage."""
        new = StorageId(len(self.storages))
        self.storages.append(Storage(new, f"{kind.value}_{new}", size, kind))
        return new

    def layer(
        self,
        inputs: Iterable[StorageId],
        size: int,
        flops: int = 0,
        *,
        parameter_bytes: int = 0,
        reads_inputs: bool = True,
        mask: bool = False,
    ) -> StorageId:
        """A forward operator.

        Args:
            inputs: Values that it reads.
            size: Bytes of its result.
            flops: Work beyond moving bytes.
            parameter_bytes: Bytes of its weight's gradient, 0 for none.
            reads_inputs: Whether its derivative reads its inputs.
            mask: Whether its derivative reads a mask of its result, a quarter of its bytes.
        """
        read = tuple(sorted(set(inputs)))
        result = self.storage(size, StorageKind.ACTIVATION)
        self._op(Phase.FORWARD, read, [result], flops)
        self.layers.append(_Layer(read, result, flops, parameter_bytes, reads_inputs, mask))
        return result

    def problem(self) -> RematProblem:
        """The step with a loss behind the last layer, and its derivative."""
        loss = self.storage(4, StorageKind.OUTPUT)
        self._op(Phase.FORWARD, [self.layers[-1].result], [loss], 0)
        gradient: dict[StorageId, StorageId] = {}
        for layer in reversed(self.layers):
            self._differentiate(layer, gradient)
        graph = TrainingGraph(tuple(self.ops), tuple(self.storages))
        n = len(self.ops)
        return RematProblem(graph, CostTable(tuple(self.times), (0,) * n, ("nominal",) * n), 1)

    def _differentiate(self, layer: _Layer, gradient: dict[StorageId, StorageId]) -> None:
        """The derivative of one layer; gradients of values that several layers read are added up."""
        above = gradient.get(layer.result)
        if above is None:
            # Values that nothing reads are part of the loss.
            above = self.storage(self.storages[layer.result].size_bytes, StorageKind.TANGENT)
        reads = [above, *(layer.inputs if layer.reads_inputs else ())]
        if layer.mask:
            mask = self.storage(self.storages[layer.result].size_bytes // 4, StorageKind.TEMPORARY)
            self._op(Phase.TANGENT_FREE, [layer.result], [mask], 0)
            reads.append(mask)
        made = {
            value: self.storage(self.storages[value].size_bytes, StorageKind.TEMPORARY)
            for value in layer.inputs
            if self.storages[value].kind is StorageKind.ACTIVATION
        }
        weights = [self.storage(layer.parameter_bytes, StorageKind.GRADIENT)] if layer.parameter_bytes else []
        self._op(Phase.BACKWARD, reads, [*made.values(), *weights], 2 * layer.flops)
        for value, part in made.items():
            if value in gradient:
                total = self.storage(self.storages[value].size_bytes, StorageKind.TEMPORARY)
                self._op(Phase.BACKWARD, [gradient[value], part], [total], 0)
                part = total
            gradient[value] = part

    def _op(self, phase: Phase, reads: Iterable[StorageId], writes: list[StorageId], flops: int) -> None:
        new, read = OpId(len(self.ops)), tuple(sorted(set(reads)))
        self.ops.append(Op(new, f"op_{new}", f"generated.{phase.value}", phase, read, tuple(writes)))
        moved = sum(self.storages[s].size_bytes for s in (*read, *writes))
        self.times.append(LAUNCH_NS + moved // BYTES_PER_NS + flops // FLOPS_PER_NS)


KB = 1024


def _chain_uniform(step: Step, layers: int, rng: Random) -> None:
    value = step.storage(64 * KB, StorageKind.INPUT)
    for _ in range(layers):
        value = step.layer([value], 64 * KB, 2_000_000, parameter_bytes=4 * KB)


def _chain_skewed(step: Step, layers: int, rng: Random) -> None:
    value = step.storage(64 * KB, StorageKind.INPUT)
    for _ in range(layers):
        size = int(KB * 10 ** rng.uniform(1, 3))
        flops = int(10 ** rng.uniform(5, 8))
        heavy = rng.random() < 0.5
        weights = size // 4 if heavy else 0
        value = step.layer([value], size, flops * heavy, parameter_bytes=weights, mask=rng.random() < 0.3)


def _random_dag(step: Step, layers: int, rng: Random) -> None:
    values = [step.storage(64 * KB, StorageKind.INPUT)]
    for _ in range(layers):
        recent = values[-16:]
        inputs = rng.sample(recent, min(len(recent), rng.choice((1, 1, 2, 3))))
        size = KB * rng.choice((16, 32, 64, 64, 128, 256))
        flops = rng.choice((0, 0, 5_000_000, 20_000_000))
        simple = flops == 0 and rng.random() < 0.5
        parameter_bytes = 8 * KB if flops else 0
        values.append(
            step.layer(
                [values[-1], *inputs] if rng.random() < 0.5 else inputs,
                size,
                flops,
                parameter_bytes=parameter_bytes,
                reads_inputs=not simple,
                mask=simple and rng.random() < 0.5,
            )
        )


def _ushape(step: Step, layers: int, rng: Random) -> None:
    levels = 5
    each = max(layers // (2 * levels), 2)
    value = step.storage(1024 * KB, StorageKind.INPUT)
    skips = []
    size = 1024 * KB
    for _ in range(levels):
        for i in range(each):
            heavy = i % 2 == 0
            value = step.layer([value], size, 30_000_000 * heavy, parameter_bytes=16 * KB * heavy, mask=not heavy)
        skips.append(value)
        size //= 2
    for skip in reversed(skips):
        size *= 2
        value = step.layer([value, skip], 2 * size, reads_inputs=False)
        for i in range(each - 1):
            heavy = i % 2 == 0
            value = step.layer([value], size, 30_000_000 * heavy, parameter_bytes=16 * KB * heavy, mask=not heavy)


def _recurrence(step: Step, layers: int, rng: Random) -> None:
    hidden = step.storage(32 * KB, StorageKind.INPUT)
    state = step.storage(32 * KB, StorageKind.INPUT)
    for turn in range(max(layers // 8, 2)):
        inputs = step.storage(32 * KB, StorageKind.INPUT)
        gates = step.layer([hidden, inputs], 128 * KB, 8_000_000, parameter_bytes=128 * KB if turn == 0 else 0)
        gate_in, gate_keep, gate_out = (step.layer([gates], 32 * KB) for _ in range(3))
        kept = step.layer([state, gate_keep], 32 * KB)
        state = step.layer([kept, gate_in], 32 * KB, reads_inputs=False)
        bounded = step.layer([state], 32 * KB)
        hidden = step.layer([bounded, gate_out], 32 * KB)


def _long_skips(step: Step, layers: int, rng: Random) -> None:
    values = [step.storage(64 * KB, StorageKind.INPUT)]
    for i in range(layers):
        far = [values[rng.randrange(len(values))]] if i % 3 == 2 else []
        if i % 2:
            values.append(step.layer([values[-1], *far], 64 * KB, mask=True, reads_inputs=False))
        else:
            values.append(step.layer([values[-1], *far], 128 * KB, 10_000_000, parameter_bytes=8 * KB))


FAMILIES: dict[str, Callable[[Step, int, Random], None]] = {
    "chain_uniform": _chain_uniform,
    "chain_skewed": _chain_skewed,
    "random_dag": _random_dag,
    "ushape": _ushape,
    "recurrence": _recurrence,
    "long_skips": _long_skips,
}
"""All families by name."""


def generate(family: str, size: str) -> RematProblem:
    """The instance of `family` at `size`, the same on every machine."""
    step = Step()
    FAMILIES[family](step, LAYERS[size], Random(f"{family} {size}"))
    return step.problem()
