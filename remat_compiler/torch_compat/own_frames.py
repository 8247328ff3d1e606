"""Functions of this project, and all that they call, which Dynamo leaves alone.

A compiled function that calls ``loss.backward()`` runs it in eager, with Dynamo looking at each Python frame below, as
the hooks of a backward are.  Those of torch it skips by their files.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from torch._C._dynamo.eval_frame import _FrameAction, _FrameExecStrategy
from torch._dynamo.types import ConvertFrameReturn

from remat_compiler.torch_compat.patches import OWN_FRAMES
from remat_compiler.torch_compat.patching import replace

_OWN = f"{Path(__file__).resolve().parents[1].as_posix()}/"
_SKIP_ALL_BELOW = _FrameExecStrategy(_FrameAction.SKIP, _FrameAction.SKIP)


@cache
def skip_own_frames() -> None:
    """Have Dynamo compile no frame of this project and none below; functions are still inlined while it traces."""
    replace(OWN_FRAMES, _skipping)


def _skipping(original: Any) -> Any:
    def __call__(self: Any, frame: Any, cache_entry: Any, frame_state: Any) -> Any:  # noqa: N807 - torch's name
        if frame.f_code.co_filename.startswith(_OWN):
            # Those of the standard library, too: some of them are called for the first time in a later step.
            return ConvertFrameReturn(frame_exec_strategy=_SKIP_ALL_BELOW)
        return original(self, frame, cache_entry, frame_state)

    return __call__
