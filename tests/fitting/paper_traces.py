"""Steps that are traced and priced on paper, for tests that hold them against others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

import remat_compiler
from fitting.paper_models import deeper
from remat_compiler.costs import calibration, families
from remat_compiler.costs.calibration import rounded
from remat_compiler.costs.rates import Rates, rates_of
from remat_compiler.devices.gpus import Gpu
from remat_compiler.fitting.counted_step import settle
from remat_compiler.fitting.made_step import made_step
from remat_compiler.fitting.paper_step import fit_on_paper
from remat_compiler.fitting.paper_step import on_paper as fit_here
from remat_compiler.fitting.request import FitRequest
from remat_compiler.fitting.step_trace import OperatorCall, StepTrace
from remat_compiler.fitting.tracing import trace_on_paper, workspaces_of
from remat_compiler.operators.table import family_of
from remat_compiler.torch_compat import (
    FakeTensorMode,
    paper_device,
    symbolic_kernels,
)


def traced(request: FitRequest) -> StepTrace:
    """The step on paper."""
    return trace_on_paper(request)


def traced_as_if_real(request: FitRequest, calls: Sequence[OperatorCall]) -> dict[str, int]:
    """What operators take inside that were sent from another process, where the step is made as for a real GPU."""
    with fit_here(request.known_device):
        step = made_step(request, 16, real=True)
        step.compile(request.budget)
        settle(step)
        return workspaces_of(calls)


def rates(device: Gpu) -> Rates:
    """How fast the device is taken to be."""
    with paper_device(device):
        return rates_of("cuda", None)


def figures_by_a_made_up_clock(device: str) -> tuple[Rates, dict[str, int]]:
    """How fast a GPU is taken to be by its data sheet, and what calibration finds of one that is just so fast."""
    with on_paper(device), pytest.MonkeyPatch.context() as patch:
        sheet = rates_of("cuda", None)

        def best(run: Callable[[], object], device_type: str, **_: object) -> int:
            with MadeUpClock(sheet) as clock:
                run()
            return round(clock.seconds * 1e9)

        for module in (calibration, families):
            patch.setattr(module, "best_computing_ns", best)
        return sheet, {name: rounded(probe()) for name, probe in calibration._probes("cuda").items()}


def decisions(device: Gpu, budget: float) -> list[tuple[str, str]]:
    """What becomes of each value under the budget, by its name."""
    remat_compiler.clear_reports()
    fit_on_paper(FitRequest(deeper, device, budget, (8,), "bf16", None, {"inner": "eager"}))
    (report,) = remat_compiler.reports()
    return [(one.storage, one.decision.value) for one in report.decisions]


class MadeUpClock(torch.utils._python_dispatch.TorchDispatchMode):
    """Seconds that operators take on a GPU of the given rates; those of float32 with TensorFloat-32 in convolutions."""

    def __init__(self, rates: Rates) -> None:
        super().__init__()
        self.rates, self.seconds = rates, 0.0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        result = func(*args, **kwargs or {})
        formula = flop_registry.get(func.overloadpacket)
        first = next(part for part in tree_leaves(args) if isinstance(part, torch.Tensor))
        if formula is not None:
            family = family_of(str(func))
            faster = 4 if family.startswith("convolution") else 1
            rate = faster * self.rates.kernel_rate(family, first.dtype)
            self.seconds += formula(*args, **kwargs or {}, out_val=result) / rate
        elif func in (torch.ops.aten.copy_.default, torch.ops.aten.add.Tensor):
            taken = 2 * first.nbytes / self.rates.bytes_per_s
            self.seconds += max(taken, self.rates.overhead_ns / 1e9)
        return result


@contextmanager
def on_paper(device: str) -> Iterator[None]:
    """Fake tensors on that GPU, whose operators torch decomposes as in a compilation."""
    with paper_device(device), FakeTensorMode(), torch.device("cuda"), symbolic_kernels():
        yield


_MASK = (128, 128)


class Named(torch.utils._python_dispatch.TorchDispatchMode):
    """Names of the operators of attention that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []
        self.mask_strides: list[int] = []
        self.mask_dtypes: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if "scaled_dot_product" in str(func):
            self.mask_dtypes += [str(x.dtype) for x in args if isinstance(x, torch.Tensor) and x.shape[-2:] == _MASK]
            self.names.append(str(func).partition("_scaled_dot_product_")[2].partition(".")[0])
            if not self.mask_strides and len(args) > 3 and isinstance(args[3], torch.Tensor):
                self.mask_strides = list(args[3].stride())
        return func(*args, **kwargs or {})


class Seen(torch.utils._python_dispatch.TorchDispatchMode):
    """Names of the operators of ATen that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if str(func).startswith("aten."):
            self.names.append(str(func).split(".")[1])
        return func(*args, **kwargs or {})
