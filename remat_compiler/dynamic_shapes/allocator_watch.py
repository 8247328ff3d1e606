"""The peaks that a device's allocator really measured, and what is learnt from them about the guards of variants.

    forward begins ─ allocated a, maximum m ──────────────────► backward has run ─ maximum n
                                    n > m: the step peaked at n - a              n = m: no higher than m - a

The peak is what the step allocates beyond what is there when it begins (parameters, inputs), as everywhere here.  The
allocator's maximum is only read, never reset: it is the user's.  So the peak of a step is known where it set a new
maximum, which is where it matters.

Not counted are the first call of a variant, in which libraries and kernels set themselves up (workspaces that stay,
buffers to time kernels with), calls whose backward had not run when the next one came, and those of a graph that
shares its budget with others, which may run meanwhile.  What eager code takes between forward and backward does count.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from remat_compiler import torch_compat
from remat_compiler.dynamic_shapes.dispatch import Dispatch
from remat_compiler.dynamic_shapes.margin import Correction
from remat_compiler.dynamic_shapes.variant import Use, Variant
from remat_compiler.options import format_bytes

logger = logging.getLogger(__name__)


class Allocator(Protocol):
    """What a device's allocator tells."""

    def allocated_bytes(self) -> int:
        """Bytes in use now."""
        ...

    def peak_bytes(self) -> int:
        """Most bytes in use at once, since whoever wanted reset that."""
        ...


@dataclass(slots=True, eq=False)
class Reading:
    """One call.

    Attributes:
        use: Its sizes.
        variant: What ran it.
        allocated_bytes: In use when it began.
        before_bytes: The allocator's maximum when it began.
        after_bytes: The same once the backward had run; `None` before.
        node: Autograd's node of the call.
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
        return self.after_bytes is None and self.node is not None and self.node() is not None


class AllocatorWatch:
    """Corrects the guards of one graph's variants.

    Args:
        dispatch: Runs them.
        allocator: Of the device that they run on.
        correction: What all variants have in common, for those to come.
    """

    def __init__(self, dispatch: Dispatch, allocator: Allocator, correction: Correction) -> None:
        self.dispatch = dispatch
        self.allocator = allocator
        self.correction = correction
        self._warm: list[Variant] = []
        self._last: Reading | None = None
        self._warned = False

    def before(self, use: Use, arguments: Sequence[Any]) -> None:
        """A call begins: learn from the one before it."""
        last, self._last = self._last, None
        if last is not None:
            if last.open:
                return
            self._learn(last)
        self._last = Reading(use, use.variant, self.allocator.allocated_bytes(), self.allocator.peak_bytes())

    def after(self, use: Use, outputs: Any) -> None:
        """Its forward has run: read the maximum again once the backward has, too."""
        reading = self._last
        if reading is None or reading.use is not use:
            return
        node = torch_compat.compiled_backward(outputs)
        if node is None or reading.variant not in self._warm:
            self._warm = [*(v for v in self.dispatch.variants if v in self._warm), reading.variant]
            self._last = None
            return
        reading.node = weakref.ref(node)

        def ended(*_: object) -> None:
            # Autograd's own thread: only read here.
            reading.after_bytes = self.allocator.peak_bytes()

        node.register_hook(ended)

    def _learn(self, reading: Reading) -> None:
        """Where the step set a new maximum, its peak is known."""
        alone = self.dispatch.allowance.is_whole
        if not alone or reading.after_bytes is None or reading.after_bytes <= reading.before_bytes:
            return
        measured = reading.after_bytes - reading.allocated_bytes
        predicted = reading.variant.predicted(reading.use.sizes)
        if predicted is None or not reading.variant.correction.learn(predicted, measured):
            return
        self.correction.learn(predicted, measured)
        logger.log(
            logging.INFO if self._warned else logging.WARNING,
            "a step at sizes %s took %s, %s more than predicted; from now on so much more is counted on",
            reading.use.sizes,
            format_bytes(measured),
            format_bytes(measured - predicted),
        )
        self._warned = True
        self.dispatch.reconsider()
