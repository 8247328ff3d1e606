"""A compiled variant of a graph and its use; the interfaces of what makes variants and what watches their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from remat_compiler.dynamic_shapes.margin import Margin
from remat_compiler.dynamic_shapes.room_by_size import MovedBySize
from remat_compiler.step_model.allowance import Allowance
from remat_compiler.step_model.graph_memory import GraphMemory

PAUSE = 3.0
"""A time longer than this many of the shortest steps holds more than a step: an evaluation, a checkpoint written."""


class KnownMemory(Protocol):
    """The memory of a compiled step by the sizes of its inputs, as far as it is known."""

    def peak_bytes(self, sizes: Sequence[int], limit_bytes: int) -> int | None:
        """The peak at these sizes; `None` if it is not known.

        An estimate is checked if it is so near to `limit_bytes` that its error could matter.
        """
        ...

    def memory(self, sizes: Sequence[int]) -> GraphMemory | None:
        """The peak, and the bytes alive between forward and backward and after both; `None` if not known."""
        ...


class GrowingArenas(Protocol):
    """Arenas that serve all sizes up to the largest so far."""

    def grow(self, sizes: Sequence[int], fits: Callable[[tuple[int, ...]], bool]) -> None:
        """Plan arenas for these sizes if those so far are too small.

        Args:
            sizes: Sizes of a call that is to come.
            fits: Whether a step of some sizes keeps to the budget.
        """
        ...


class NothingKnown:
    """The memory of a variant whose conditions on the sizes are not known: it never fits, so it runs no call."""

    def peak_bytes(self, sizes: Sequence[int], limit_bytes: int) -> None:
        """Unknown."""

    def memory(self, sizes: Sequence[int]) -> None:
        """Unknown."""


def no_inputs(positions: Sequence[int], sizes: Sequence[int]) -> int:
    """Bytes of inputs, 0: for a graph that shares its budget with none, which never needs them."""
    return 0


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One way to run the graph.

    Attributes:
        compiled: The callable.
        known: Its memory by size.
        added: Time that recomputation adds, as a fraction of the step.
        sizes: The sizes that it was planned for.
        label: Its purpose, for messages.
        input_bytes: Bytes of the arguments at given positions, at given sizes.
        margin: The measured excess of its peaks over the predictions.
        arenas: The places of its values, if these are planned.
        moved: What it moves off the device; `None` for nothing.
    """

    compiled: Callable[..., Any]
    known: KnownMemory
    added: float
    sizes: tuple[int, ...]
    label: str
    input_bytes: Callable[[Sequence[int], Sequence[int]], int] = no_inputs
    margin: Margin = field(default_factory=Margin)
    arenas: GrowingArenas | None = None
    moved: MovedBySize | None = None

    def prepare(self, sizes: Sequence[int], allowance: Allowance) -> None:
        """Make ready for calls at these sizes.

        Raises:
            OffloadError: There is no room for what they move off the device.
        """
        if self.moved is not None:
            self.moved.room.grow(self.moved.bytes_at(sizes))
        if self.arenas is not None:
            self.arenas.grow(sizes, lambda at: self.fits(at, allowance))

    def memory(self, sizes: Sequence[int]) -> GraphMemory | None:
        """Its predicted memory at given sizes; `None` if it is not known."""
        return self.known.memory(sizes)

    def predicted_bytes(self, sizes: Sequence[int], allowance: Allowance) -> int | None:
        """The bytes at given sizes to compare with `allowance.limit_bytes`; `None` if it may not run there.

        It may not if its memory is not known, or if it would move more off the device than it may.  Else this is its
        peak and, if the graph shares its budget with others, the bytes that it holds while they run; see
        `Allowance.needed_bytes`.
        """
        if self.moved is not None and not self.moved.is_within(sizes):
            return None
        if allowance.is_whole:
            # Held bytes are within the peak; the peak alone is cheaper to know, for an estimate needs no dry run.
            return self.known.peak_bytes(sizes, allowance.limit_bytes)
        memory = self.known.memory(sizes)
        return None if memory is None else allowance.needed_bytes(memory, self.input_bytes(allowance.passed, sizes))

    def needed_bytes(self, sizes: Sequence[int], allowance: Allowance) -> int | None:
        """The predicted bytes with the margin that measurements taught."""
        predicted = self.predicted_bytes(sizes, allowance)
        return None if predicted is None else predicted + self.margin.bytes_on(predicted)

    def fits(self, sizes: Sequence[int], allowance: Allowance) -> bool:
        """Whether it is known to keep to `allowance` at these sizes."""
        needed = self.needed_bytes(sizes, allowance)
        return needed is not None and needed <= allowance.limit_bytes


@dataclass(slots=True)
class Use:
    """How one combination of sizes was run.

    Attributes:
        sizes: The sizes.
        variant: The variant that runs them now.
        calls: Calls so far.
        steps: Steps timed with this variant.
        shortest_s: The shortest of them in seconds.
        total_s: The sum of them; each counts at most `PAUSE` times the shortest.
    """

    sizes: tuple[int, ...]
    variant: Variant
    calls: int = 0
    steps: int = 0
    shortest_s: float = float("inf")
    total_s: float = 0.0

    @property
    def added_s(self) -> float:
        """Seconds of one step that recomputation takes."""
        # The measured time includes recomputation: of `1 + added`, the part `added`.
        added = self.variant.added
        return self.total_s / max(self.steps, 1) * added / (1.0 + added)

    @property
    def memory(self) -> GraphMemory | None:
        """The memory at these sizes; `None` if it is not known."""
        return self.variant.memory(self.sizes)

    def time_step(self, seconds: float) -> None:
        """Note the time from a call to the next one."""
        # The shortest first: of the very first step all counts.
        self.shortest_s = min(self.shortest_s, seconds)
        self.total_s += min(seconds, PAUSE * self.shortest_s)
        self.steps += 1

    def run_by(self, variant: Variant) -> None:
        """Run these sizes by another variant from now on."""
        if variant is not self.variant:
            # Times of one variant say nothing of another; the calls are those of the sizes, and stay.
            self.variant, self.steps, self.shortest_s, self.total_s = variant, 0, float("inf"), 0.0


class Provider(Protocol):
    """Makes variants."""

    threshold_s: float
    """Seconds lost to recomputation after which `better_variant` is called."""

    def variants_for(
        self, sizes: tuple[int, ...], variants: Sequence[Variant], allowance: Allowance
    ) -> Sequence[Variant]:
        """New variants for `sizes`, which none of `variants` fits; the last one runs them.  Raises if there is none."""
        ...

    def better_variant(
        self, uses: Sequence[Use], variants: Sequence[Variant], lost_s: float | None, allowance: Allowance
    ) -> Variant | None:
        """A variant that is worth its compilation for sizes like those in use; `None` if there is none.

        If another variant must be evicted for it, `lost_s` is the time that the calls so far would have taken more
        without that one; infinite if none can be evicted.
        """
        ...

    def after_change(self, variants: Sequence[Variant], before: Allowance, allowance: Allowance) -> Variant | None:
        """Forget refusals and estimates under the former allowance, `before`.

        Returns:
            A better variant for the first sizes, if the only variant so far was made under a smaller allowance.
        """
        ...


class Watcher(Protocol):
    """Is told of calls."""

    def before(self, use: Use, arguments: Sequence[Any]) -> None:
        """Called once a variant is chosen for a call with these arguments, before it runs."""
        ...

    def after(self, use: Use, outputs: Any) -> None:
        """Called when the forward of that call has run."""
        ...
