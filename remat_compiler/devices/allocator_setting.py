"""How the user set torch's caching allocator."""

from __future__ import annotations

import os
from collections.abc import Mapping

EXPANDABLE = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
"""The setting under which segments grow; see `expandable_segments`."""
_VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")


def segments_expand(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether the environment sets ``expandable_segments:True``, as torch reads it when it first uses a GPU."""
    settings = ",".join(environment.get(name, "") for name in _VARIABLES).replace(" ", "").lower().split(",")
    return "expandable_segments:true" in settings
