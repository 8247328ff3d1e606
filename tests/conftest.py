"""How all tests run: with kernels that compile quickly, and one thread for each worker."""

from __future__ import annotations

import os

# Before torch is imported.  Vectorized kernels allocate the same and take twice as long to compile; what a test is to
# see with them runs with TORCHINDUCTOR_VEC_ISA_OK=1.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "0")
os.environ.setdefault("OMP_NUM_THREADS", "1")
