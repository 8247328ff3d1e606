"""Dynamo's own records of the functions that it tried to compile."""

from __future__ import annotations

from collections import Counter

import torch._dynamo.config
from torch._dynamo.utils import counters


def frames_tried() -> int:
    """How many functions Dynamo tried to compile, by whatever backend."""
    return int(counters["frames"]["total"])


def reasons_to_skip() -> Counter[str]:
    """How often Dynamo left parts of these functions to Python for each reason, named by its first line."""
    found: Counter[str] = Counter()
    # torch counts reasons by category; these two leave code to Python.
    for category in ("unimplemented", "graph_break"):
        for reason, times in counters[category].items():
            lines = str(reason).strip().splitlines()
            if lines:
                found[lines[0].strip()] += times
    return found


def traces_recurrent_layers() -> bool:
    """Whether Dynamo traces `nn.RNN`, `nn.LSTM` and `nn.GRU`, rather than leaving what calls them to Python."""
    return bool(torch._dynamo.config.allow_rnn)
