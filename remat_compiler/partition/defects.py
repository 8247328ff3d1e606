"""Errors of planning that are no defect, and how one that is gets told of."""

from __future__ import annotations

from remat_compiler import torch_compat
from remat_compiler.errors import OptionError, RanksDiffer, UnknownName, UnsupportedTorch
from remat_compiler.log import logger_of
from remat_compiler.partition.candidate import Chunks
from remat_compiler.partition.result import NoPlan

log = logger_of(__name__)

NO_DEFECT = (NoPlan, OptionError, RanksDiffer, UnknownName, UnsupportedTorch, torch_compat.DynamoRestart)
"""Errors meant for the user, and Dynamo's own restarts: it traces a function again once it learnt more of it."""


def in_brief(error: Exception) -> str:
    """The kind of an error, and the first line of its message."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def warn_of_chunks(chunks: Chunks, error: Exception) -> None:
    """Say that fewer chunks are taken, or none."""
    log.debug("chunks failed", exc_info=error)
    log.warning(
        "%s not computed in %d chunks, since that failed (%s); please report this as a defect, with the "
        'traceback that TORCH_LOGS="+remat_compiler" shows',
        "layers are" if chunks.layers > 1 else "a loss is",
        chunks.layers if chunks.layers > 1 else chunks.losses,
        in_brief(error),
    )
