"""`remat_compiler.max_batch`: the largest batch, or the longest input, whose training step fits a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from remat_compiler.fitting.fit import checked_gpu
from remat_compiler.fitting.fit_report import FitReport, gib
from remat_compiler.fitting.largest import bracket, estimated, next_numbers
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import FitRequest, Separate
from remat_compiler.fitting.room import Confirmed, Room
from remat_compiler.fitting.side_by_side import num_processes, side_by_side
from remat_compiler.progress import progress


@dataclass(frozen=True, slots=True)
class MaxBatch:
    """The answer.

    Attributes:
        batch: The largest batch; 0 if not even one fits.
        budget_bytes: ``memory_budget`` in bytes under which it fits, `None` if it is a fraction.
        report: The step at that batch; at batch 1 if it does not fit.
        next: What planning says of the next larger batch; `None` where that was not asked.
    """

    batch: int
    budget_bytes: int | None
    report: FitReport
    next: Room | None = None

    def to_json(self) -> str:
        """All figures, for tools."""
        beyond = None if self.next is None else asdict(self.next)
        record = {"max_batch": self.batch, "budget_bytes": self.budget_bytes, "next": beyond}
        return json.dumps({**record, **json.loads(self.report.to_json())}, indent=1)

    def __str__(self) -> str:
        if not self.batch:
            return f"not even 1 fits\n{self.report}"
        under = "" if self.budget_bytes is None else f', with options={{"memory_budget": {self.budget_bytes}}}'
        lines = [f"the largest is {self.batch}{under}", "", *str(self.report).splitlines()]
        if self.next is not None:
            lines += [
                "",
                f"{self.next.batch} does not fit: its smallest peak is estimated {gib(-self.next.slack_bytes())} above "
                f"the {gib(self.next.left_bytes)} that are left for it",
            ]
        return "".join(f"{line}\n" for line in lines)


def max_batch(
    make_model: Callable[[], Any],
    make_inputs: Callable[[int], Any],
    *,
    device: str,
    budget: float | str | int | None = None,
    loss: Callable[[Any], Any] | None = None,
    autocast: str | None = None,
    optimizer: Callable[[Any], Any] | str | None = "AdamW",
    options: Mapping[str, Any] | None = None,
) -> MaxBatch:
    """The largest number that `make_inputs` can be called with such that the step fits the device.

    The number may be a batch or a length: whatever makes the step larger as it grows.  It is searched for by plans
    alone, and the step that is found is compiled and measured on fake tensors.  That the next larger one does not fit
    is the planner's estimate.

    Args:
        make_model: As for `remat_compiler.fit`, as are the arguments that are not named here.
        make_inputs: Makes the inputs of one step of that size.
        device: Name of the GPU.
        budget: Without one, the step may take all that the device leaves for it, but for a reserve of 5 % for
            fragmentation; bytes limit that further; 1.0 asks for the largest step without recomputation.
        loss: Takes the model's outputs and gives the loss.
        autocast: Type that autocast computes in.
        optimizer: Takes the model's parameters and gives an optimizer, or the name of a class of `torch.optim`.
        options: Further options of the backend.

    Raises:
        OptionError, UnknownName, PaperFailure: As `remat_compiler.fit` does.
    """
    make = Separate(make_model, make_inputs, loss)
    return largest_batch(FitRequest(make, device, budget, (), autocast, optimizer, dict(options or {})))


def largest_batch(request: FitRequest) -> MaxBatch:
    """`max_batch` for a request, whose batches do not matter; raises the same errors."""
    checked_gpu(request)

    def plan(batches: Sequence[int]) -> list[Room]:
        what = f"planning for {' and '.join(map(str, batches))}"
        return side_by_side(what, _probe_here, [(request, batch) for batch in batches])

    def confirm(batch: int, scale: float) -> Confirmed:
        with progress(f"generating code for {batch}"):
            found: Confirmed = call_in_process(_confirm_here, request, batch, scale)
        return found

    return largest_of(plan, confirm)


def largest_of(plan: Callable[[Sequence[int]], list[Room]], confirm: Callable[[int, float], Confirmed]) -> MaxBatch:
    """The largest batch.

    Args:
        plan: Plans the step at some batches.
        confirm: Compiles the step at a batch, under a budget so many times smaller than what there is.
    """
    known: dict[int, Room] = {}
    while asked := next_numbers(_slack(known), num_processes()):
        known.update(zip(asked, plan(asked)))
    found, without = bracket(_slack(known))
    beyond = known.get(without) if without is not None else None
    # At least the smallest step is measured, if only to show why it does not fit.
    batch, scale = max(found, 1), 1.0
    while True:
        step = confirm(batch, scale)
        if not step.over:
            return MaxBatch(batch, step.budget_bytes, step.report, beyond)
        if batch == 1:
            return MaxBatch(0, None, step.report)
        # Emitted code, or the allocator, takes more than was planned: as much more, it is taken, at other batches.
        scale *= 1 + step.over
        batch, beyond = max(1, min(estimated(_slack(known, scale)), batch - 1)), None


def _slack(known: Mapping[int, Room], scale: float = 1.0) -> dict[int, int]:
    return {batch: room.slack_bytes(scale) for batch, room in known.items()}


def _probe_here(request: FitRequest, batch: int) -> Room:
    # Imported in the new process alone: this one may do without torch.
    from remat_compiler.fitting.probe import probe

    return probe(request, batch)


def _confirm_here(request: FitRequest, batch: int, scale: float) -> Confirmed:
    from remat_compiler.fitting.probe import confirm

    return confirm(request, batch, scale)
