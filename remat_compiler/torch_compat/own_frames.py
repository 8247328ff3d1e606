"""Dynamo leaves this project's own functions alone.

A compiled function that calls ``loss.backward()`` runs it in eager, with Dynamo looking at each Python frame below, as
the hooks of a backward are.  Those of torch it skips by their files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from torch._dynamo import trace_rules

from remat_compiler.torch_compat.patches import OWN_FRAMES
from remat_compiler.torch_compat.patching import replace

_OWN = f"{Path(__file__).resolve().parents[1].as_posix()}/"


@cache
def skip_own_frames() -> None:
    """Have Dynamo compile no frame of this project; functions that are called while it traces are still inlined."""
    replace(OWN_FRAMES, _skipping)


def _skipping(original: Any) -> Any:
    def check_file(filename: str | None, is_inlined_call: bool = False, *more: Any, **others: Any) -> Any:
        if not is_inlined_call and filename is not None and filename.startswith(_OWN):
            return trace_rules.SkipResult(True, "a function of remat")
        return original(filename, is_inlined_call, *more, **others)

    return check_file
