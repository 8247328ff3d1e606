"""Inductor's cache of compiled code: what its keys depend on, and compiling without it."""

from __future__ import annotations

import hashlib
import shutil
from contextlib import AbstractContextManager

from torch._inductor import config as inductor_config
from torch._inductor import cpp_builder

from remat_compiler.torch_compat.patches import STEP_CACHE
from remat_compiler.torch_compat.patching import settings


def partitioner_always_runs() -> AbstractContextManager[None]:
    """Within the block AOTAutograd's cache is off, a hit in which would skip the partitioner."""
    # Inductor's own cache, a level below, stays on: it has the kernels.
    return settings({STEP_CACHE: False})


def cpp_compiler() -> str | None:
    """Path of the C++ compiler that Inductor would run; `None` if it finds none."""
    try:
        command = cpp_builder.get_cpp_compiler()
    except RuntimeError:  # also what Inductor raises of its own
        return None
    return shutil.which(command)


def inductor_fingerprint() -> str:
    """Digest of Inductor's configuration."""
    return hashlib.sha256(repr(sorted(inductor_config.get_config_copy().items(), key=str)).encode()).hexdigest()
