"""`remat_compiler.max_batch`: the largest batch, or the longest input, whose training step fits a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from remat_compiler.devices.cpus import Device
from remat_compiler.fitting.batch_search import Search
from remat_compiler.fitting.fit import located
from remat_compiler.fitting.max_batch_report import MaxBatch
from remat_compiler.fitting.request import AT_HAND, FitRequest, Separate
from remat_compiler.fitting.room import Confirmed, Question, Room
from remat_compiler.fitting.side_by_side import side_by_side


def max_batch(
    make_model: Callable[[], Any],
    make_inputs: Callable[[int], Any],
    *,
    device: str | Device = AT_HAND,
    budget: float | str | int | None = None,
    loss: Callable[[Any], Any] | None = None,
    autocast: str | None = None,
    optimizer: Callable[[Any], Any] | str | None = "AdamW",
    options: Mapping[str, Any] | None = None,
    capacity: str | int | None = None,
    step_in_backward: bool = False,
) -> MaxBatch:
    """The largest number that `make_inputs` can be called with such that the step fits the device.

    The number may be a batch or a length: whatever makes the step larger as it grows.  It is searched for by plans
    alone, and the step that is found is compiled and measured on fake tensors.  That the next larger one does not fit
    is the planner's estimate.

    Args:
        make_model: As for `remat_compiler.fit`, as are the arguments that are not named here.
        make_inputs: Makes the inputs of one step of that size.
        device: The GPU, by default the one that is there; ``"cpu"`` for the CPU of this machine.
        budget: Without one, the step may take all that the device leaves for it, but for a reserve of 5 % for
            fragmentation; bytes limit that further; 1.0 asks for the largest step without recomputation.
        loss: Takes the model's outputs and gives the loss.
        autocast: Type that autocast computes in.
        optimizer: Takes the model's parameters and gives an optimizer, or the name of a class of `torch.optim`.
        options: Further options of the backend.
        capacity: Memory of the device that the step may have.
        step_in_backward: As for `remat_compiler.fit`.

    Raises:
        OptionError, UnknownName, PaperFailure: As `remat_compiler.fit` does.
    """
    make = Separate(make_model, make_inputs, loss)
    given = dict(options or {})
    return largest_batch(FitRequest(make, device, budget, (), autocast, optimizer, given, capacity, step_in_backward))


def largest_batch(request: FitRequest) -> MaxBatch:
    """`max_batch` for a request, whose batches do not matter; raises the same errors."""
    request = located(request)

    def ask(questions: Sequence[Question]) -> list[Room | Confirmed]:
        what = " and ".join(f"{'compiling' if one.confirm else 'planning'} for {one.batch}" for one in questions)
        return side_by_side(what, _answered_here, [(request, one) for one in questions])

    return Search(ask).run()


def _answered_here(request: FitRequest, question: Question) -> Room | Confirmed:
    # Imported in the new process alone: this one may do without torch.
    from remat_compiler.fitting.probe import confirm, probe

    if not question.confirm:
        return probe(request, question.batch)
    return confirm(request, question.batch, question.budget_bytes, question.scale)
