"""Made-up answers of the caching allocator of a GPU."""

from __future__ import annotations

import pytest
import torch


class MadeUpAllocator:
    """Reserves what is asked for and keeps it, as torch's does."""

    def __init__(self, patch: pytest.MonkeyPatch, reserved: int, allocated: int) -> None:
        self.reserved, self.allocated = reserved, allocated
        patch.setattr(torch.cuda, "is_initialized", lambda: True)
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
        patch.setattr(torch.cuda, "memory_reserved", lambda: self.reserved)
        patch.setattr(torch.cuda, "memory_allocated", lambda: self.allocated)
        patch.setattr(torch.cuda, "empty_cache", self.empty_cache)

    def measure_with(self, size: int) -> None:
        """Take as much, and let go of it."""
        self.reserved = max(self.reserved, self.allocated + size)

    def empty_cache(self) -> None:
        self.reserved = self.allocated
