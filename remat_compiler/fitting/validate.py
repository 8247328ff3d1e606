"""`remat fit --validate`: the step on paper held against the same step on the GPU that is there."""

from __future__ import annotations

import sys
from typing import Any

from remat_compiler.devices.gpus import Gpu
from remat_compiler.errors import OptionError
from remat_compiler.fitting.fit import located
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import AT_HAND, FitRequest
from remat_compiler.fitting.step_trace import StepTrace
from remat_compiler.fitting.validation import Validation
from remat_compiler.version import __version__, installed_version

_PACKAGES = ("torch", "triton")


def validated(request: FitRequest, function: str = "") -> Validation:
    """Run a step with at most one batch on paper, then on the GPU that is there, each in a process of its own.

    Args:
        request: The step.
        function: What people call the function that makes it.

    Raises:
        OptionError: No GPU is there, or another one is asked for.
        UnknownName, PaperFailure: As `remat_compiler.fit` does.
        InfeasibleBudget: The step's budget cannot be kept.
    """
    if str(request.device) not in (AT_HAND, f"{AT_HAND}:0"):
        raise OptionError(
            f"got the device {request.device!r}, where paper is to be held against a GPU that is here; leave it out, "
            "or make it the only one that is seen by CUDA_VISIBLE_DEVICES"
        )
    request = located(request)
    gpu = request.known_device
    assert isinstance(gpu, Gpu)
    paper: StepTrace = call_in_process(_paper_here, request)
    real, versions = call_in_process(_gpu_here, request, paper.calls, hide_gpus=False)
    step = {
        "function": function,
        "batch": request.batch,
        "budget": request.budget,
        "autocast": request.autocast,
        "optimizer": str(request.optimizer),
        "options": {name: str(value) for name, value in request.options.items()},
    }
    return Validation(gpu, versions, step, paper, real)


def _paper_here(request: FitRequest) -> StepTrace:
    # Imported in the new process alone: this one may do without torch.
    from remat_compiler.fitting.tracing import trace_on_paper

    return trace_on_paper(request)


def _gpu_here(request: FitRequest, calls: Any) -> tuple[StepTrace, dict[str, str]]:
    import torch

    from remat_compiler.fitting.tracing import trace_on_gpu

    trace = trace_on_gpu(request, calls)
    versions = {"remat": __version__, "Python": sys.version.split()[0]}
    versions |= {name: installed_version(name) or "not installed" for name in _PACKAGES}
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    return trace, versions | {"CUDA": str(torch.version.cuda), "cuDNN": str(cudnn)}
