"""The joint forward/backward graph as data: operators over storages.

Liveness is a property of *storages*, the memory behind views, never of graph nodes: two views of one
storage are one piece of memory, and a multi-output operator writes several.  Views do not appear here;
an operator names the storages that it reads through them.

    op 3  aten.mm          reads s0 s4      writes s7        s7 lives in [3, 9)
    op 8  aten.gelu        reads s7         writes s9

All values are frozen and in canonical order: `ops[i].id == i`, `storages[i].id == i`, and `ops` stand in
the order of the joint graph, forward before what depends on tangents.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import NewType

from remat_compiler.ir.codec import OPTIONAL

OpId = NewType("OpId", int)
StorageId = NewType("StorageId", int)


class Phase(str, Enum):
    """Which part of the step an operator belongs to."""

    FORWARD = "forward"
    """Needed by an output of the forward: runs there, and may run again in the backward."""
    TANGENT_FREE = "tangent_free"
    """Needed by the backward alone, yet independent of tangents: may run in either part."""
    BACKWARD = "backward"
    """Depends on a tangent, or draws random numbers or changes memory where the program's backward does."""


class StorageKind(str, Enum):
    """The purpose of a storage; it decides whether and how long its bytes count toward the peak."""

    PARAMETER = "parameter"
    INPUT = "input"
    TANGENT = "tangent"
    ACTIVATION = "activation"
    TEMPORARY = "temporary"
    GRADIENT = "gradient"
    OUTPUT = "output"


RESIDENT_KINDS = frozenset({StorageKind.PARAMETER, StorageKind.INPUT})
"""Storages that live before the step; they are counted apart, as resident bytes."""
KEPT_KINDS = frozenset({StorageKind.GRADIENT, StorageKind.OUTPUT})
"""Storages whose first instance the caller holds to the end of the step."""


class Trait(str, Enum):
    """A property of an operator that restricts what a plan may do with it."""

    RANDOM = "random"
    MUTATING = "mutating"
    COLLECTIVE = "collective"
    GATHER = "gather"
    """A collective that gathers an input of the graph: it may run again if it does on all ranks."""
    EFFECTFUL = "effectful"
    UNKNOWN = "unknown"


class SavePolicy(str, Enum):
    """The demand of the user (through checkpoint tags) or of correctness on the results of an operator."""

    FREE = "free"
    MUST_SAVE = "must_save"
    MUST_NOT_SAVE = "must_not_save"


@dataclass(frozen=True, slots=True)
class Storage:
    """One piece of memory.

    Attributes:
        id: Position in `TrainingGraph.storages`.
        name: Name of the graph node that first makes it.
        size_bytes: Allocated bytes (rounded as the device's allocator rounds).
        kind: Its purpose.
    """

    id: StorageId
    name: str
    size_bytes: int
    kind: StorageKind

    @property
    def resident(self) -> bool:
        """Whether it lives before the step, so that its bytes do not count toward the peak."""
        return self.kind in RESIDENT_KINDS

    @property
    def kept(self) -> bool:
        """Whether its first instance lives to the end of the step."""
        return self.kind in KEPT_KINDS


@dataclass(frozen=True, slots=True)
class Op:
    """One operator, or one group of nodes that the inner compiler turns into a single kernel.

    Attributes:
        id: Position in `TrainingGraph.ops`.
        name: Name of the graph node that gives the operator its name.
        target: Printed operator, such as ``aten.mm.default``.
        phase: Part of the step.
        reads: Storages read, ascending, without duplicates.
        writes: Storages made, in output order.
        nodes: Graph nodes to emit for one execution, in order (inlined pointwise nodes and views included).
        traits: Restrictions, see `Trait`.
        no_recompute: Why it may not be executed again; empty when it may.
        save_policy: Demand on whether its results cross from forward to backward.
        replay: Storage holding the random state of the first execution, read by every repetition and
            allocated only when there is one; `None` for operators that are not random.
        ends: Storages among its reads that nothing reads once it has run, repetitions included: parameters that
            hooks may change then.
        module: Module path of the user's model, such as ``encoder.layer.0``.
        source: User's source line, such as ``model.py:12``.
    """

    id: OpId
    name: str
    target: str
    phase: Phase
    reads: tuple[StorageId, ...]
    writes: tuple[StorageId, ...]
    nodes: tuple[str, ...] = ()
    traits: frozenset[Trait] = frozenset()
    no_recompute: str = ""
    save_policy: SavePolicy = SavePolicy.FREE
    replay: StorageId | None = None
    module: str = ""
    source: str = ""
    ends: tuple[StorageId, ...] = field(default=(), metadata=OPTIONAL)

    @property
    def may_recompute(self) -> bool:
        """Whether a plan may execute the operator more than once."""
        return not self.no_recompute


@dataclass(frozen=True, slots=True)
class TrainingGraph:
    """The step as operators over storages, in joint order.

    Attributes:
        ops: Operators; each storage is written by at most one of them, and written before it is read.
        storages: Storages; those that no operator writes are inputs, parameters or tangents.
    """

    ops: tuple[Op, ...]
    storages: tuple[Storage, ...]

    @property
    def resident_bytes(self) -> int:
        """Bytes that live before the step: parameters, buffers and inputs."""
        return sum(s.size_bytes for s in self.storages if s.resident)

    def producers(self) -> list[OpId | None]:
        """For each storage, the operator that writes it, or `None` for inputs and tangents."""
        producer: list[OpId | None] = [None] * len(self.storages)
        for op in self.ops:
            for storage in op.writes:
                producer[storage] = op.id
            # A state is made by the operator that draws from it, though it is not among the writes.
            if op.replay is not None:
                producer[op.replay] = op.id
        return producer
