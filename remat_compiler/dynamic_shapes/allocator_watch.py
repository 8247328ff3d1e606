"""The peaks that a device's allocator measured; peaks above the predictions correct the guards of variants.

    forward begins ─ allocated a, maximum m ──────────────────► backward has run ─ maximum n
                                    n > m: the step peaked at n - a              n = m: no higher than m - a

The peak is the memory that the step allocates beyond what is there when it begins (parameters, inputs), as everywhere
in this project.  The allocator's maximum is only read, never reset: it is the user's.  So the peak of a step is known
only if it set a new maximum, which is when it matters.

Three kinds of calls are not counted: the first call of a variant, in which libraries and kernels set themselves up
(workspaces that stay, buffers to time kernels with); calls whose backward had not run when the next call came; and
calls of a graph that shares its budget with others, which may run meanwhile.  Memory of eager code between forward and
backward does count.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from remat_compiler import torch_compat
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.margin import Margin
from remat_compiler.dynamic_shapes.variant import Use, Variant
from remat_compiler.log import logger_of
from remat_compiler.units import format_bytes

logger = logger_of(__name__)


class Allocator(Protocol):
    """The figures of a device's allocator."""

    def allocated_bytes(self) -> int:
        """Bytes in use now, in blocks."""
        ...

    def peak_bytes(self) -> int:
        """Most of them at once since the user last reset this maximum."""
        ...


@dataclass(slots=True, eq=False)
class Reading:
    """One call.

    Attributes:
        use: Its sizes.
        variant: The variant that ran it.
        allocated_bytes: Bytes in use when it began.
        before_bytes: The allocator's maximum when it began.
        after_bytes: The allocator's maximum after its backward; `None` until then.
        node: Weak reference to autograd's node of the call.
    """

    use: Use
    variant: Variant
    allocated_bytes: int
    before_bytes: int
    after_bytes: int | None = None
    node: Any = None

    @property
    def open(self) -> bool:
        """Whether its backward may still run."""
        # A dead node: the outputs were dropped without a backward.
        return self.after_bytes is None and self.node is not None and self.node() is not None


class AllocatorWatch:
    """Corrects the guards of one graph's variants.

    Args:
        dispatch: Runs the variants.
        allocator: The allocator of their device.
        margin: The margin that variants to come begin with; it grows with every variant's own.
    """

    def __init__(self, dispatch: Dispatch, allocator: Allocator, margin: Margin) -> None:
        self.dispatch = dispatch
        self.allocator = allocator
        self.margin = margin
        self._warm: list[Variant] = []
        self._last: Reading | None = None
        self._warned = False

    def before(self, use: Use, arguments: Sequence[Any]) -> None:
        """A call begins: learn from the one before it."""
        last, self._last = self._last, None
        if last is not None:
            if last.open:
                # Two calls are open at once: neither peak is of one step, so neither is learnt from.
                return
            # Not as the backward ends, on autograd's thread: learning takes the lock of the dispatch.
            self._learn(last)
        self._last = Reading(use, use.variant, self.allocator.allocated_bytes(), self.allocator.peak_bytes())

    def after(self, use: Use, outputs: Any) -> None:
        """Its forward has run: arrange that the maximum is read again after its backward."""
        reading = self._last
        # Another thread's call may have come between.
        if reading is None or reading.use is not use:
            return
        node = torch_compat.compiled_backward(outputs)
        if node is None or reading.variant not in self._warm:
            # A first call; evicted variants are left out, so that they are not kept alive.
            self._warm = [*(v for v in self.dispatch.variants if v in self._warm), reading.variant]
            self._last = None
            return
        reading.node = weakref.ref(node)

        def ended() -> None:
            # This runs on autograd's own thread, so it only reads.
            reading.after_bytes = self.allocator.peak_bytes()

        torch_compat.after_backward(node, ended)

    def _learn(self, reading: Reading) -> None:
        """Grow the margins if the step set a new maximum above its prediction."""
        allowance = self.dispatch.allowance
        # Without a new maximum the peak is only known to be lower than the old one.
        if not allowance.is_whole or reading.after_bytes is None or reading.after_bytes <= reading.before_bytes:
            return
        measured = reading.after_bytes - reading.allocated_bytes
        predicted = reading.variant.predicted_bytes(reading.use.sizes, allowance)
        if predicted is None or not reading.variant.margin.learn(predicted, measured):
            return
        self.margin.learn(predicted, measured)
        # The first excess is news to the user, further ones are details.
        logger.log(
            logging.INFO if self._warned else logging.WARNING,
            "a step at sizes %s took %s, %s more than predicted; from now on so much more is counted on",
            reading.use.sizes,
            format_bytes(measured),
            format_bytes(measured - predicted),
        )
        self._warned = True
        self.dispatch.recheck_guards()
