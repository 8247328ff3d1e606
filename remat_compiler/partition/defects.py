"""Errors of planning that are no defect, and how one that is gets told of."""

from __future__ import annotations

from remat_compiler import torch_compat
from remat_compiler.errors import OptionError, RanksDiffer, UnknownName, UnsupportedTorch
from remat_compiler.partition.result import NoPlan

NO_DEFECT = (NoPlan, OptionError, RanksDiffer, UnknownName, UnsupportedTorch, torch_compat.DynamoRestart)
"""Errors meant for the user, and Dynamo's own restarts: it traces a function again once it learnt more of it."""


def in_brief(error: Exception) -> str:
    """The kind of an error, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
