"""A compiled variant of a graph, how it is used, and those who make variants and look at their calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from remat_compiler.dynamic_shapes.margin import Correction
from remat_compiler.simulate.allowance import Allowance
from remat_compiler.simulate.step_peak import GraphMemory

PAUSE = 3.0
"""What is longer than this many of the shortest steps was more than a step: an evaluation, a checkpoint written."""
PeakBySize = Callable[[Sequence[int]], "int | None"]
"""The peak at given sizes in bytes; `None` where nothing is known of them."""
MemoryBySize = Callable[[Sequence[int]], "GraphMemory | None"]
"""The memory at given sizes; `None` where nothing is known of them."""


def unknown_memory(sizes: Sequence[int]) -> None:
    """The memory of a variant of which nothing is known."""


@dataclass(frozen=True, slots=True, eq=False)
class Variant:
    """One way to run the graph.

    Attributes:
        compiled: The callable.
        predicted: Its peak at given sizes as predicted; `None` where nothing is known of them.  Where the graph shares
            its budget with others, all that counts of it then, see `Allowance.needed_bytes`.
        added: Time that recomputation adds, as a fraction of the step.
        sizes: The sizes that it was planned for.
        label: What people are shown.
        memory: Its memory at given sizes.
        correction: What its peaks were measured to be above predictions.
    """

    compiled: Callable[..., Any]
    predicted: PeakBySize
    added: float
    sizes: tuple[int, ...]
    label: str
    memory: MemoryBySize = unknown_memory
    correction: Correction = field(default_factory=Correction)

    def peak_bytes(self, sizes: Sequence[int]) -> int | None:
        """Its peak at given sizes, corrected by what was measured; `None` where nothing is known of them."""
        peak = self.predicted(sizes)
        return None if peak is None else peak + self.correction.margin_bytes(peak)

    def fits(self, sizes: Sequence[int], limit_bytes: int) -> bool:
        """Whether it is known to stay within a budget at these sizes."""
        peak = self.peak_bytes(sizes)
        return peak is not None and peak <= limit_bytes


@dataclass(slots=True)
class Use:
    """How one combination of sizes was run.

    Attributes:
        sizes: The sizes.
        variant: What runs them now.
        calls: Calls so far.
        steps: Steps timed with this variant.
        shortest_s: Shortest of them in seconds.
        total_s: All of them; of a longer pause no more than `PAUSE` times the shortest step.
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
        added = self.variant.added
        return self.total_s / max(self.steps, 1) * added / (1.0 + added)

    @property
    def memory(self) -> GraphMemory | None:
        """What these sizes take; `None` where nothing is known of it."""
        return self.variant.memory(self.sizes)

    def time_step(self, seconds: float) -> None:
        """Note the time from a call to the next one."""
        self.shortest_s = min(self.shortest_s, seconds)
        self.total_s += min(seconds, PAUSE * self.shortest_s)
        self.steps += 1

    def run_by(self, variant: Variant) -> None:
        """Another variant from now on."""
        if variant is not self.variant:
            self.variant, self.steps, self.shortest_s, self.total_s = variant, 0, float("inf"), 0.0


class Provider(Protocol):
    """Makes variants."""

    threshold_s: float
    """Seconds lost to recomputation after which `improve` is asked."""

    def provide(self, sizes: tuple[int, ...], variants: Sequence[Variant]) -> Sequence[Variant]:
        """Variants for `sizes`, where none of `variants` fits, the one to run them last; raises where there is none."""
        ...

    def improve(self, uses: Sequence[Use], variants: Sequence[Variant], lost_s: float | None) -> Variant | None:
        """A variant that is worth its compilation for sizes like those in use; else `None`.

        Where another one has to give way, `lost_s` is what the calls so far would have taken more without it;
        infinite where none can.
        """
        ...

    def allow(self, allowance: Allowance, variants: Sequence[Variant]) -> Variant | None:
        """Keep to `allowance` from now on.

        Where there is the first variant only, which was made for less, a better one for its sizes if there is one.
        """
        ...


class Watcher(Protocol):
    """Looks at calls."""

    def before(self, use: Use, arguments: Sequence[Any]) -> None:
        """A variant is chosen for a call with these arguments; it runs next."""
        ...

    def after(self, use: Use, outputs: Any) -> None:
        """Its forward has run."""
        ...
