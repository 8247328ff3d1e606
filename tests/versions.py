"""What differs between versions of torch, as far as tests see it."""

from __future__ import annotations

import torch

TORCH = tuple(int(part) for part in torch.__version__.split(".")[:2])
DENSE_GRADIENTS = TORCH < (2, 12)
"""AOTAutograd makes the gradient behind a sum dense: one more tensor of the size of the output."""
TRACING_HOLDS_OTHER_THREADS = TORCH < (2, 13)
"""A thread that calls its compiled function while another one traces is told that it traces it, with any backend."""
ASSUMES_ODD_SIZES = TORCH < (2, 12)
"""A pooling over an odd size makes Dynamo assume that the size is odd, or even, for good."""
HOLDS_INCOMING_GRADIENTS = TORCH < (2, 12)
"""AOTAutograd itself keeps a backward's incoming gradients until it ends."""
