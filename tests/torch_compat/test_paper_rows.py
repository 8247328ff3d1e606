"""What a GPU on paper changes of torch: all of it is there in this version, and used."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import remat_compiler
from remat_compiler.errors import OptionError, UnknownName
from remat_compiler.torch_compat import paper_cuda, paper_rows
from remat_compiler.torch_compat.paper_device import paper_device, paper_gpu
from remat_compiler.torch_compat.paper_rows import CUDA, INTERFACE, PAPER_PATCHES
from remat_compiler.torch_compat.patch import Patch
from remat_compiler.torch_compat.patches import PATCHES

FOLDER = Path(remat_compiler.__file__).parent / "torch_compat"


@pytest.mark.parametrize("patch", PAPER_PATCHES, ids=lambda patch: patch.name)
def test_every_target_is_there_and_takes_what_is_known(patch: Patch) -> None:
    place = patch.place()
    assert hasattr(place.owner, place.attribute) or patch.optional


def test_targets_are_unique_and_every_row_is_used() -> None:
    targets = [patch.target for patch in (*PATCHES, *PAPER_PATCHES)]
    assert len(set(targets)) == len(targets)
    named = {name for name, value in vars(paper_rows).items() if isinstance(value, Patch)}
    sources = [file for file in FOLDER.glob("paper_*.py") if file.name != "paper_rows.py"]
    read = {n.id for file in sources for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Name)}
    assert named <= read
    assert len(PAPER_PATCHES) == len(named) + len(CUDA) + len(INTERFACE)


def test_every_question_has_an_answer() -> None:
    from remat_compiler.devices.gpus import GPUS

    answers = paper_cuda._answers(GPUS["h100"])
    asked = set(CUDA) | {paper_cuda._NAMES.get(name, name) for name in INTERFACE}
    assert asked == set(answers)
    assert answers["get_device_capability"]() == (9, 0)


def test_an_unknown_device_changes_nothing() -> None:
    before = torch.cuda.is_available
    with pytest.raises(UnknownName, match="h100"), paper_device("h10"):
        pass
    assert paper_gpu() is None
    assert torch.cuda.is_available is before


def test_a_device_that_is_there_is_not_stood_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(OptionError, match="CUDA_VISIBLE_DEVICES"), paper_device("h100"):
        pass
