"""The arguments that describe a training step, for all commands that run one on paper."""

from __future__ import annotations

import argparse
import importlib.util
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remat_compiler.cli.function_in_file import check_function
from remat_compiler.devices.cpus import CPU
from remat_compiler.devices.gpus import GPUS
from remat_compiler.errors import OptionError, UnknownName
from remat_compiler.fitting.request import AT_HAND, PRECISIONS, FitRequest
from remat_compiler.option_values import chunks, number_text
from remat_compiler.options import OUTPUTS

ABOUT_FUNCTION = """\
FUNCTION makes a training step: it takes the batch, if --batch is given, and returns the model and its inputs (a tensor,
a tuple of positional or a dict of named arguments), and, if the model does not return its loss, a function that takes
what it returns and gives the loss.  It is called where the default device is the one asked for (a GPU is `cuda`), and
nothing is allocated.
"""
"""What the function of the first argument is to do."""


def add_step_arguments(parser: Any) -> None:
    """Add what describes a step and its device, but for batch and budget."""
    parser.add_argument("function", metavar="FILE.py:FUNCTION", help="what makes the model and its inputs")
    here = f"{AT_HAND} for the GPU that is here (the default), or {CPU} for the CPU of this machine"
    parser.add_argument("--device", default=AT_HAND, metavar="NAME", help=f"one of {', '.join(GPUS)}; {here}")
    has = "memory of the device that the step may have, such as 16GiB (what nobody uses of one that is here, else all)"
    parser.add_argument("--capacity", metavar="BYTES", help=has)
    computes_in = f"type that autocast computes in: {', '.join(sorted(PRECISIONS))}"
    parser.add_argument("--autocast", metavar="TYPE", choices=sorted(PRECISIONS), help=computes_in)
    parser.add_argument("--optimizer", default="AdamW", metavar="NAME", help="class of torch.optim, or none")
    inside = "the optimizer updates each parameter within the backward, as remat_compiler.step_in_backward has it"
    parser.add_argument("--step-in-backward", action="store_true", help=inside)
    parser.add_argument("--inner", choices=("inductor", "eager"), help="inner compiler (inductor)")
    in_chunks = "most chunks of a loss behind a large product, such as 16; auto (as planned, layers, too) or never"
    parser.add_argument("--chunks", metavar="N", help=in_chunks)
    beside = (
        "what a training loop reads of the results: all (the default), or the loss, so that logits are not computed"
    )
    parser.add_argument("--outputs", choices=OUTPUTS, help=beside)
    parser.add_argument("--json", action="store_true", help="all figures, for tools")


def add_budget_argument(parser: Any) -> None:
    """Add the budget."""
    parser.add_argument("--budget", metavar="BYTES", help="memory_budget of the backend, such as 70GiB, 80%% or 0.8")


def add_one_batch_argument(parser: Any) -> None:
    """Add what the function is called with, once."""
    parser.add_argument("--batch", metavar="N", type=_whole, help="number that FUNCTION is called with")


def request_of(
    options: argparse.Namespace, batches: tuple[int, ...], budget: str | None = None, **more: Any
) -> FitRequest:
    """The request that the arguments describe; `more` are further options of the backend.

    Raises:
        OptionError: An argument is wrong, as far as that shows without a run of the user's file.
        UnknownName: The file has no such function.
    """
    path, name = _named(options.function)
    for batch in batches:
        if batch < 1:
            raise OptionError(f"--batch takes whole numbers of at least 1, got {batch}")
    check_function(path, name, called_with_batch=bool(batches) or getattr(options, "max_batch", False))
    # What is not given here is as the environment's variables say.
    given = {name: getattr(options, name) for name in ("inner", "outputs") if getattr(options, name) is not None}
    return FitRequest(
        make=_Function(path, name),
        device=options.device,
        budget=budget,
        batches=batches,
        autocast=options.autocast,
        optimizer=None if options.optimizer.lower() == "none" else options.optimizer,
        options={**given, **_chunks(options.chunks), **more},
        capacity=options.capacity,
        step_in_backward=options.step_in_backward,
    )


def _named(function: str) -> tuple[Path, str]:
    """File and name of the function."""
    file, _, name = function.rpartition(":")
    if not file or not name.isidentifier():
        raise OptionError(f"got {function!r}; name a file and a function in it, such as train.py:make")
    path = Path(file).resolve()
    if not path.is_file():
        raise OptionError(f"there is no file {file!r}; name a file and a function in it, such as train.py:make")
    return path, name


def batches_of(text: str | None) -> tuple[int, ...]:
    """The numbers of ``--batch``."""
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError as error:
        raise OptionError(f"--batch takes whole numbers with commas between them, got {text!r}") from error


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"takes a whole number, got {text!r}") from None


def _chunks(text: str | None) -> dict[str, object]:
    """The option of that name, written as in an environment variable, if it is given."""
    if text is None:
        return {}
    value = number_text(text)
    chunks(value)
    return {"chunks": value}


class _Function:
    """A function of a file, which is run as a module where the function is called first."""

    def __init__(self, file: Path, name: str) -> None:
        self.file = file
        self.name = name
        self._found: Callable[..., Any] | None = None

    def __call__(self, *batch: Any) -> Any:
        """Call it."""
        if self._found is None:
            self._found = self._load()
            self._check(self._found, batch)
        return self._found(*batch)

    def _check(self, function: Callable[..., Any], batch: tuple[Any, ...]) -> None:
        """Raises `OptionError` if the function cannot be called so: what `check_function` cannot see in the file."""
        try:
            signature = inspect.signature(function)
        except (TypeError, ValueError):  # of some functions that are not written in Python
            return
        try:
            signature.bind(*batch)
        except TypeError as error:
            called = "with the batch" if batch else "without a batch"
            raise OptionError(
                f"{self.name}{signature} of {self.file} cannot be called {called}: {error}; give a batch by --batch N "
                "if it takes one, or leave out --batch and --max-batch"
            ) from error

    def _load(self) -> Callable[..., Any]:
        # Modules beside the file are found, as if it were run.
        sys.path.insert(0, str(self.file.parent))
        spec = importlib.util.spec_from_file_location(self.file.stem, self.file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[self.file.stem] = module
        spec.loader.exec_module(module)
        found = getattr(module, self.name, None)
        if not callable(found):
            raise UnknownName(
                "function", self.name, [n for n, v in vars(module).items() if callable(v)], str(self.file)
            )
        function: Callable[..., Any] = found
        return function
