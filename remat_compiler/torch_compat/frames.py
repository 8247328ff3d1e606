"""What Dynamo's own records tell of the functions that it looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._dynamo.eval_frame
from torch._dynamo.utils import counters


def is_asked_for(backend: Callable[..., Any]) -> bool:
    """Whether anything is compiled by this backend, called yet or not."""
    known = tuple(torch._dynamo.eval_frame.cached_backends.values())
    return any(getattr(one, "compiler_fn", one) is backend for one in known)


def frames_tried() -> int:
    """How many functions Dynamo looked at in order to compile them, by whatever backend."""
    return int(counters["frames"]["total"])


def reasons_to_skip() -> list[str]:
    """The first lines of why parts of these functions were left to Python, the most frequent first."""
    found = {**counters["unimplemented"], **counters["graph_break"]}
    lines = [str(reason).strip().splitlines() for reason in sorted(found, key=lambda reason: -found[reason])]
    return list(dict.fromkeys(line[0].strip() for line in lines if line))
