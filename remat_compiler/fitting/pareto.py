"""`remat_compiler.pareto`: the time of a training step by its peak, on a GPU that need not be there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from remat_compiler.devices.cpus import Device
from remat_compiler.errors import OptionError
from remat_compiler.fitting.fit import located
from remat_compiler.fitting.fit_report import FitPoint
from remat_compiler.fitting.pareto_report import CurvePoint, ParetoReport
from remat_compiler.fitting.request import AT_HAND, FitRequest, Separate
from remat_compiler.fitting.side_by_side import dealt, num_processes, side_by_side

DEFAULT_POINTS = 6


def pareto(
    make_model: Callable[[], Any],
    make_inputs: Callable[..., Any],
    *,
    device: str | Device = AT_HAND,
    points: int = DEFAULT_POINTS,
    batch: Any = None,
    loss: Callable[[Any], Any] | None = None,
    autocast: str | None = None,
    optimizer: Callable[[Any], Any] | str | None = "AdamW",
    options: Mapping[str, Any] | None = None,
    capacity: str | int | None = None,
    step_in_backward: bool = False,
) -> ParetoReport:
    """Compile a training step under budgets from none to the smallest that can be kept, and say what each costs.

        curve = remat_compiler.pareto(GPT, lambda n: (tokens(n), tokens(n)), device="h100", batch=16, autocast="bf16")
        print(curve)
        Path("curve.svg").write_text(curve.to_svg())

    Every point is a whole compilation by the backend's own path, whose emitted code runs on fake tensors; as many go on
    at a time as there are cores.

    Args:
        make_model: As for `remat_compiler.fit`, as are the arguments that are not named here.
        make_inputs: Makes the inputs of one step; it takes the batch, if one is given.
        device: The GPU, by default the one that is there; ``"cpu"`` for the CPU of this machine.
        points: How many budgets there are, at least 2: none, the smallest, and others at equal distances.
        batch: What `make_inputs` is called with; `None` to call it with nothing.
        loss: Takes the model's outputs and gives the loss.
        autocast: Type that autocast computes in.
        optimizer: Takes the model's parameters and gives an optimizer, or the name of a class of `torch.optim`.
        options: Further options of the backend; `max_slowdown` is unlimited unless it is given.
        capacity: Memory of the device that the step may have.
        step_in_backward: As for `remat_compiler.fit`.

    Raises:
        OptionError, UnknownName, PaperFailure: As `remat_compiler.fit` does.
    """
    batches = () if batch is None else (batch,)
    make = Separate(make_model, make_inputs, loss)
    given = dict(options or {})
    request = FitRequest(make, device, None, batches, autocast, optimizer, given, capacity, step_in_backward)
    return curve_of(request, points)


def curve_of(request: FitRequest, points: int = DEFAULT_POINTS) -> ParetoReport:
    """`pareto` for a request with at most one batch; raises the same errors."""
    if not hasattr(points, "__index__") or points < 2:
        raise OptionError(f"got points={points!r}; a curve takes a whole number of at least 2")
    request = replace(located(request), options={"max_slowdown": None, **request.options})
    ends: list[list[CurvePoint]] = side_by_side(
        "the ends of the curve", _points_here, [(request, [None]), (request, ["min"])]
    )
    (largest,), (smallest,) = ends
    between = _between(largest.point, smallest.point, points - 2)
    hands = dealt(between, num_processes())
    inner: list[list[CurvePoint]] = side_by_side(
        f"{len(between)} budgets between {len(hands)} processes", _points_here, [(request, hand) for hand in hands]
    )
    # From the largest budget to the smallest.
    found = sorted((point for hand in inner for point in hand), key=lambda one: -int(one.budget or 0))
    return ParetoReport(request.known_device, request.batch, (largest, *found, smallest))


def _between(largest: FitPoint, smallest: FitPoint, count: int) -> list[int]:
    """Budgets at equal distances between the peaks of two steps."""
    top, bottom = (point.budgeted_bytes for point in (largest, smallest))
    if top <= bottom:
        return []
    return [top - (top - bottom) * n // (count + 1) for n in range(1, count + 1)]


def _points_here(request: FitRequest, budgets: Sequence[int | str | None]) -> list[CurvePoint]:
    # Imported in the new process alone: this one may do without torch.
    from remat_compiler.fitting.paper_step import fit_on_paper

    return [CurvePoint(b, fit_on_paper(replace(request, budget=b)).points[0]) for b in budgets]
