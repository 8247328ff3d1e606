"""The report of one planned graph: plain data, stored with the plan, so that a cache hit has it too."""

from __future__ import annotations

from dataclasses import dataclass, field

from remat_compiler.errors import FormatError
from remat_compiler.ir.codec import OPTIONAL, from_document, to_document
from remat_compiler.ir.graph import StorageKind
from remat_compiler.ir.plan import Decision, PlanStatus
from remat_compiler.report.curve import StepCurves
from remat_compiler.report.notebook import Shown
from remat_compiler.units import counted, format_bytes

_VERSION = 2


@dataclass(frozen=True, slots=True)
class Origin:
    """Where an operator comes from.

    Attributes:
        op: Name of the operator, or empty where none is meant.
        target: Printed operator, such as ``aten.mm.default``.
        module: Module path of the user's model, or empty.
        source: User's source line, such as ``model.py:12``, or empty.
    """

    op: str = ""
    target: str = ""
    module: str = ""
    source: str = ""

    def __str__(self) -> str:
        where = " ".join(part for part in (f"at {self.source}" if self.source else "", self.module) if part)
        return f"{self.op} {where}".strip()


@dataclass(frozen=True, slots=True)
class StorageDecision:
    """What becomes of one forward storage that the backward part of the plan reads.

    Attributes:
        storage: Name of the storage.
        size_bytes: Its bytes.
        decision: Kept until it is needed, made again, or moved away.
        repeats: How often its operator runs again.
        added_ns: Time of these repetitions.
        reason: Why, in words.
        made_by: The operator that makes it.
    """

    storage: str
    size_bytes: int
    decision: Decision
    repeats: int
    added_ns: int
    reason: str
    made_by: Origin


@dataclass(frozen=True, slots=True)
class LiveStorage:
    """One piece of memory alive at the peak.

    Attributes:
        storage: Name of the storage, or ``workspace`` for what the operator allocates while it runs.
        size_bytes: Its bytes.
        kind: What it is for.
        made_by: The operator that makes it; empty for tangents.
    """

    storage: str
    size_bytes: int
    kind: StorageKind
    made_by: Origin


@dataclass(frozen=True, slots=True)
class StageTime:
    """Seconds that one stage of the compilation took."""

    stage: str
    seconds: float


@dataclass(frozen=True, slots=True)
class PeakPoint:
    """A step of the plan, or an operator, that needs the most bytes.

    Attributes:
        peak_bytes: Bytes alive together.
        in_backward: Whether that is in the backward graph.
        origin: The operator that runs; empty where kept storages alone make the peak.
    """

    peak_bytes: int
    in_backward: bool
    origin: Origin


@dataclass(frozen=True, slots=True)
class ChunkedRegion:
    """What is computed in chunks: a loss or a layer around a product, with the gradients of all in it.

    Attributes:
        chunks: How many chunks there are.
        product: Name of the product that makes its largest value.
        source: The line of the user's program that it comes from, such as ``model.py:41``; empty when not known.
        whole_bytes: Bytes of that value.
        chunk_bytes: Bytes of its largest chunk.
        what: ``"loss"``, ``"layer"`` or ``"attention"``.
        count: How many there are of this place and of these sizes.
    """

    chunks: int
    product: str
    source: str
    whole_bytes: int
    chunk_bytes: int
    what: str = field(default="loss", metadata=OPTIONAL)
    count: int = field(default=1, metadata=OPTIONAL)

    def __str__(self) -> str:
        named, each = (counted(self.count, self.what), " each") if self.count > 1 else (self.what, "")
        sizes = f"{format_bytes(self.whole_bytes)} → {format_bytes(self.chunk_bytes)}{each}"
        return f"{named} in {self.chunks} chunks ({self.source or self.product}): {sizes}"


@dataclass(frozen=True, slots=True)
class StepFigures:
    """A training step that runs several planned graphs, or one several times or beside gradients, under one budget.

    Attributes:
        graphs: Planned graphs that it runs.
        peak_bytes: The predicted peak of all together, or `None` where it is not known.
        limit_bytes: The budget of all together, or `None` for none.  A fraction is one of the *predicted* peak without
            a budget, which with several graphs may be a few percent above the measured one.
        sharded_bytes: Of the peak, at most so much is what sharded modules (FSDP2) gather and scatter.
        runs: How often the step runs the graph that is reported.
        gradient_bytes: Of the peak, gradients from before the step, such as those of earlier micro-batches.
    """

    graphs: int
    peak_bytes: int | None
    limit_bytes: int | None
    sharded_bytes: int = 0
    runs: int = 1
    gradient_bytes: int = field(default=0, metadata=OPTIONAL)


@dataclass(frozen=True, slots=True)
class PlanReport(Shown):
    """What was decided for one graph, what it costs, and why.

    Attributes:
        graph_name: Name of the graph within its process, such as ``graph0``.
        num_ops: Operators that were planned (kernels, where the inner compiler fuses).
        joint_nodes: Nodes of the joint graph before contraction.
        inner: Inner compiler.
        planner: Planner whose plan is used.
        status: How the planner ended.
        budget_bytes: Largest peak allowed, or `None` for no limit.
        resident_bytes: Parameters, buffers and inputs; not part of any peak here.
        peak_before_bytes: Peak of the same step without a budget.
        estimated_peak_bytes: The simulator's peak of the plan.
        checked_peak_bytes: The peak of what the inner compiler emitted, or `None` where that is not known.
        smallest_peak_bytes: Smallest peak that a planner found, or `None` where none was sought.
        saved_before_bytes: Bytes kept from forward to backward without a budget.
        saved_bytes: Bytes kept from forward to backward under the plan.
        step_ns: Time of a step that executes every operator once, with its losses whole.
        added_ns: Time that the plan adds: recomputation, waiting for copies, and losses in chunks.
        offloaded_bytes: Bytes that the plan moves off the device in a step.
        stall_ns: The part of `added_ns` that is waiting for copies.
        chunks_ns: The part of it that chunks take: more operators, each on less, and the sums of their parts.
        lower_bound_ns: Proven lower bound of `added_ns`, with losses in these chunks.
        floor: What no plan can go below, and the operator that forces it.
        peak: The step of the plan that reaches its peak.
        decisions: Forward storages that the backward reads, largest first.
        live_at_peak: What is alive at `peak`, largest first; sums up to `estimated_peak_bytes`.
        stages: Seconds of each stage.
        step: The whole step, where it takes more than one call of this graph, or there are gradients from before it;
            `None` where it does not, or until a step is complete.
        reserved_bytes: What torch's caching allocator reserves for the step on top of what is resident and of an Adam's
            state, by a model of it with plain segments; 0 where the step is not known.
        expandable_bytes: The same with segments that expand.
        arena_bytes: Bytes of each arena in which values of the step lie; empty without any.
        covered_percent: Part of all bytes that the step allocates which lies in them.
        plain_reserved_bytes: What would be reserved without them, by the same model as `reserved_bytes` or, where the
            environment sets segments that expand, as `expandable_bytes`.
        requested_bytes: Of the checked peak, what is asked of the allocator; on CUDA the blocks that serve it may be
            larger; 0 where that is not known.
        overwriting_ops: Interpreted operators that write their result into the memory of an argument, in both graphs.
        overwritten_bytes: Bytes of their results.
        asked_bytes: The user's budget for a whole step, of which this graph may have a part; `None` if it is no number
            of bytes.
        device: Type of the device that the step runs on, such as ``cpu``; empty where that is not known.
        budget_of: What the budget covers, as the option of that name says.
        chunked: What is computed in chunks.
        memory: Live bytes over the step, for the picture; `None` in reports that were stored without.
        notes: What the user should know besides, such as a budget that was not reachable.
    """

    graph_name: str
    num_ops: int
    joint_nodes: int
    inner: str
    planner: str
    status: PlanStatus
    budget_bytes: int | None
    resident_bytes: int
    peak_before_bytes: int
    estimated_peak_bytes: int
    checked_peak_bytes: int | None
    smallest_peak_bytes: int | None
    saved_before_bytes: int
    saved_bytes: int
    step_ns: int
    added_ns: int
    lower_bound_ns: int
    floor: PeakPoint
    peak: PeakPoint
    decisions: tuple[StorageDecision, ...] = ()
    live_at_peak: tuple[LiveStorage, ...] = ()
    stages: tuple[StageTime, ...] = ()
    step: StepFigures | None = None
    notes: tuple[str, ...] = ()
    offloaded_bytes: int = field(default=0, metadata=OPTIONAL)
    stall_ns: int = field(default=0, metadata=OPTIONAL)
    reserved_bytes: int = field(default=0, metadata=OPTIONAL)
    expandable_bytes: int = field(default=0, metadata=OPTIONAL)
    arena_bytes: tuple[int, ...] = field(default=(), metadata=OPTIONAL)
    covered_percent: float = field(default=0.0, metadata=OPTIONAL)
    plain_reserved_bytes: int = field(default=0, metadata=OPTIONAL)
    requested_bytes: int = field(default=0, metadata=OPTIONAL)
    overwriting_ops: int = field(default=0, metadata=OPTIONAL)
    overwritten_bytes: int = field(default=0, metadata=OPTIONAL)
    asked_bytes: int | None = field(default=None, metadata=OPTIONAL)
    device: str = field(default="", metadata=OPTIONAL)
    budget_of: str = field(default="allocated", metadata=OPTIONAL)
    chunked: tuple[ChunkedRegion, ...] = field(default=(), metadata=OPTIONAL)
    chunks_ns: int = field(default=0, metadata=OPTIONAL)
    memory: StepCurves | None = field(default=None, metadata=OPTIONAL, repr=False)

    @property
    def peak_bytes(self) -> int:
        """The predicted peak: after the check where there was one, else the simulator's."""
        return self.estimated_peak_bytes if self.checked_peak_bytes is None else self.checked_peak_bytes

    @property
    def tells_reserved(self) -> bool:
        """Whether people are told what is reserved; on a CPU, which has no such allocator, only if they asked."""
        asked = self.budget_of == "reserved" or bool(self.arena_bytes)
        return bool(self.reserved_bytes) and (self.device != "cpu" or asked)

    def __post_init__(self) -> None:
        for name in ("num_ops", "joint_nodes", "step_ns", "added_ns", "peak_before_bytes", "estimated_peak_bytes"):
            if getattr(self, name) < 0:
                raise FormatError(f".{name}", f"expected at least 0, got {getattr(self, name)}")

    @property
    def runs(self) -> int:
        """How often a step runs the graph, as far as that is known."""
        return 1 if self.step is None else self.step.runs

    @property
    def added_percent(self) -> float:
        """Added time in percent of the step without recomputation."""
        return 100.0 * self.added_ns / self.step_ns if self.step_ns else 0.0

    @property
    def gap_percent(self) -> float:
        """How far the plan may be above the cheapest one, in percent of the step."""
        return 100.0 * (self.added_ns - self.lower_bound_ns) / self.step_ns if self.step_ns else 0.0

    @property
    def seconds(self) -> float:
        """Seconds of all stages."""
        return sum(stage.seconds for stage in self.stages)

    def to_json(self) -> str:
        """The canonical JSON of the report."""
        return to_document("report", _VERSION, self)

    @staticmethod
    def from_json(text: str | bytes) -> PlanReport:
        """The report that `text` describes; FormatError, with the place, when it describes none."""
        return from_document("report", _VERSION, PlanReport, text)
