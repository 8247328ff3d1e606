"""What is wrong with a command that runs a step is told before the user's file runs, which may import for a minute."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from remat_compiler.cli.function_in_file import check_function
from remat_compiler.cli.main import main
from remat_compiler.errors import OptionError, UnknownName

FILE = """
from pathlib import Path
Path(__file__).with_suffix(".ran").touch()

def make(batch):
    raise ValueError("no such data")

def alone():
    pass

def with_default(batch=3, *, seed=0):
    pass

def of_two(batch, length):
    pass
"""
PAPER = ("--device", "h100", "--inner", "eager")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "steps.py"
    path.write_text(FILE)
    return path


@pytest.mark.parametrize("command", ["fit", "plan"])
@pytest.mark.parametrize(
    ("function", "more", "says"),
    [
        ("make", (), "takes 'batch', and no batch is given; give one by --batch N"),
        ("mak", ("--batch", "4"), "unknown function 'mak' in "),
        ("alone", ("--batch", "4"), "takes no batch; leave out --batch"),
        ("of_two", ("--batch", "4"), "takes batch, length; it is called with the batch alone"),
        ("make", ("--batch", "0"), "--batch takes whole numbers of at least 1, got 0"),
        ("make", ("--batch", "4", "--budget", "4XB"), "unknown unit 'XB'"),
        ("make", ("--batch", "4", "--budget", "150%"), "at most 1.0 or 100 %"),
        ("make", ("--batch", "4", "--device", "h101"), "unknown"),
        ("make", ("--batch", "4", "--chunks", "often"), 'chunks must be "auto", "never" or a whole number'),
    ],
)
def test_what_is_wrong_is_told_before_the_file_runs(
    command: str, function: str, more: tuple[str, ...], says: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, f"{file}:{function}", *PAPER, *more]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("remat: ")
    assert says in said.err
    assert "Traceback" not in said.err
    assert not file.with_suffix(".ran").exists()


def test_an_unknown_optimizer_is_told_before_the_file_runs(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fit", f"{file}:make", *PAPER, "--batch", "4", "--optimizer", "Adamw2"]) == 2
    assert "unknown optimizer 'Adamw2'; did you mean 'AdamW'" in capsys.readouterr().err
    assert not file.with_suffix(".ran").exists()


def test_an_error_of_the_function_is_told_from_the_users_own_frames_on(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["fit", f"{file}:make", *PAPER, "--batch", "4"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["remat: ValueError: no such data", "Traceback (most recent call last):"]
    assert lines[2].startswith(f'  File "{file}"')
    assert lines[-1] == "ValueError: no such data"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("from elsewhere import make", "make"),
        ("from elsewhere import *", "make"),
        ("try:\n    import a\nexcept ImportError:\n    def make(n): pass", "make"),
        ("make = lambda n: n", "make"),
        ("globals()['make'] = len", "make"),
        ("@decorated\ndef make(): pass", "make"),
        ("class make:\n    def __init__(self): pass", "make"),
        ("def make(*batches): pass", "make"),
        ("if True:\n    def make(): pass\nelse:\n    def make(n): pass", "make"),
    ],
)
def test_a_function_that_is_not_understood_is_left_to_the_run(text: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / "made.py"
    path.write_text(text)
    check_function(path, name, called_with_batch=True)


@pytest.mark.parametrize(
    ("batch", "says"),
    [((), "cannot be called without a batch: "), (("--batch", "4"), "cannot be called with the batch: ")],
)
def test_a_function_that_is_only_known_once_the_file_runs_is_told_of_likewise(
    batch: tuple[str, ...], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "later.py"
    path.write_text("def of_any(batch, length): pass\nmake = of_any\n")
    assert main(["fit", f"{path}:make", *PAPER, *batch]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"remat: make(batch, length) of {path} {says}missing a required argument")
    assert "give a batch by --batch N" in told
    assert "Traceback" not in told


def test_a_batch_that_is_left_out_is_the_functions_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "steps.py"
    path.write_text(
        "import torch\n"
        "def make(batch=24):\n"
        "    return torch.nn.Linear(64, 64), torch.zeros(batch, 64), lambda y: y.square().mean()\n"
    )
    assert main(["fit", f"{path}:make", *PAPER, "--optimizer", "none", "--json"]) == 0
    (point,) = json.loads(capsys.readouterr().out)["points"]
    assert (point["batch"], point["input_bytes"]) == (None, 24 * 64 * 4)
    assert point["fits"]


def test_what_fits_passes_and_a_file_of_no_python_does_not(file: Path, tmp_path: Path) -> None:
    check_function(file, "make", called_with_batch=True)
    check_function(file, "alone", called_with_batch=False)
    for called_with_batch in (True, False):
        check_function(file, "with_default", called_with_batch=called_with_batch)
    with pytest.raises(UnknownName):
        check_function(file, "batch", called_with_batch=True)
    (tmp_path / "broken.py").write_text("def make(:\n")
    with pytest.raises(OptionError, match=r"broken\.py cannot be read as Python"):
        check_function(tmp_path / "broken.py", "make", called_with_batch=True)


def test_help_lists_the_types_of_autocast() -> None:
    program = "import sys; from remat_compiler.cli.main import main; main(['fit', '--help'])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "bf16, bfloat16, float16, fp16" in " ".join(done.stdout.split())
