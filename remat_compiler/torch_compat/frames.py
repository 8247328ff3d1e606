"""Dynamo's own records of the functions that it tried to compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch._dynamo.eval_frame
from torch._dynamo.utils import counters


def is_asked_for(backend: Callable[..., Any]) -> bool:
    """Whether a compiled function uses this backend, called yet or not."""
    # A copy, as another thread may add one.  `torch.compile` wraps the backend together with its options.
    known = tuple(torch._dynamo.eval_frame.cached_backends.values())
    return any(getattr(one, "compiler_fn", one) is backend for one in known)


def frames_tried() -> int:
    """How many functions Dynamo tried to compile, by whatever backend."""
    return int(counters["frames"]["total"])


def reasons_to_skip() -> list[str]:
    """The first line of each reason for which parts of these functions were left to Python, the most frequent first."""
    # torch counts reasons by category; these two leave code to Python.
    found = {**counters["unimplemented"], **counters["graph_break"]}
    lines = [str(reason).strip().splitlines() for reason in sorted(found, key=lambda reason: -found[reason])]
    return list(dict.fromkeys(line[0].strip() for line in lines if line))
