"""Questions to `fit` that it cannot answer: each is refused with the reason and the way out."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn

import remat_compiler
from fitting.paper_answers import (
    refusals,
)
from remat_compiler.cli.main import main
from remat_compiler.devices.gpus import GPUS
from remat_compiler.errors import OptionError, PaperFailure
from remat_compiler.fitting.fit import located
from remat_compiler.fitting.paper_process import call_in_process
from remat_compiler.fitting.request import FitRequest

INTERPRETED = {"inner": "eager"}


@pytest.fixture(scope="module")
def refused() -> dict[str, tuple[str, str]]:
    found: dict[str, tuple[str, str]] = call_in_process(refusals)
    return found


@pytest.mark.parametrize(
    ("case", "error", "says"),
    [
        ("device", "UnknownName", "did you mean 'h100'"),
        ("no loss", "OptionError", r"shape \(4, 8\) rather than a loss; give `loss`"),
        ("autocast", "OptionError", "no type that autocast computes in; allowed: bf16"),
        ("optimizer", "UnknownName", "did you mean .*Adamax"),
        ("on the CPU", "OptionError", "'weight' on cpu.*leave the device open"),
        ("real memory", "OptionError", "'weight' in real memory .256 bytes on cpu"),
        ("budget", "OptionError", "memory_budget must be"),
        ("runs the step itself", "OptionError", "LBFGS runs the step as often as it likes.*--optimizer none"),
        ("sizes by data", "PaperFailure", r"aten.nonzero.default at paper_answers.py:\d+, .*cannot be told beforehand"),
        ("times kernels", "OptionError", "max_autotune=True.*chooses kernels by timing them"),
        (
            "no inputs",
            "OptionError",
            "got an object of type Linear; return the model, its inputs, and perhaps the loss",
        ),
    ],
)
def test_what_cannot_be_answered_says_why(
    case: str, error: str, says: str, refused: dict[str, tuple[str, str]]
) -> None:
    kind, message = refused[case]
    assert kind == error
    assert re.search(says, message)


def inputs(batch: int) -> torch.Tensor:
    return torch.zeros(batch, 8)


class Counting(nn.Module):
    """Its shapes hang on its data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)[x.sum(1) > 0].sum()


def raising() -> nn.Module:
    raise KeyError("no such layer")


@pytest.mark.usefixtures("new_interpreter")
def test_an_error_of_the_users_own_comes_with_its_traceback() -> None:
    with pytest.raises(PaperFailure, match=r"(?s)KeyError: 'no such layer'.*in raising") as caught:
        remat_compiler.fit(raising, inputs, device="t4", batches=[4], options=INTERPRETED)
    assert "Traceback" in str(caught.value)


def test_a_step_whose_shapes_hang_on_its_data_is_named_with_the_line() -> None:
    """The traceback would be that of torch."""
    line = re.escape("return self.layer(x)[x.sum(1) > 0].sum()")
    with pytest.raises(
        PaperFailure, match=rf"aten\.nonzero\.default at test_fit_refusals\.py:\d+, {line}.*cannot be told"
    ) as caught:
        remat_compiler.fit(Counting, inputs, device="t4", batches=[4], options=INTERPRETED)
    assert "Traceback" not in str(caught.value)


def test_without_triton_the_user_reads_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("remat_compiler.fitting.fit.find_spec", lambda _: None)
    with pytest.raises(OptionError, match="pip install"):
        remat_compiler.fit(Counting, inputs, device="h100")
    # Interpreted graphs need none, and a variable says so as well as an option.
    monkeypatch.setenv("REMAT_INNER", "eager")
    assert located(FitRequest(Counting, "h100")).device == GPUS["h100"]


@pytest.mark.parametrize(
    ("function", "more", "says"),
    [
        ("train.py", [], "name a file and a function"),
        ("nowhere.py:make", [], "there is no file"),
        ("train.py:mak", [], "did you mean 'make'"),
        ("train.py:make", ["--batch", "4,x"], "--batch takes whole numbers"),
    ],
)
def test_wrong_use_of_the_command(
    function: str, more: list[str], says: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("def make(): pass\n")
    path = tmp_path / function
    assert main(["fit", str(path), "--device", "h100", "--inner", "eager", *more]) == 2
    assert says in capsys.readouterr().err
