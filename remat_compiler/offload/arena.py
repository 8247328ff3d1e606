"""Which bytes of a piece of memory are taken: best fit, with neighbours merged; no memory itself."""

from __future__ import annotations

from bisect import insort

from remat_compiler.ir.plan import in_pages


class Arena:
    """The free ranges of `size_bytes` bytes, which must be whole pages."""

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        # Offset and length of each free range, by offset; no two of them touch.
        self._free = [(0, size_bytes)] if size_bytes else []

    @property
    def taken_bytes(self) -> int:
        """Bytes in use."""
        return self.size_bytes - sum(length for _, length in self._free)

    def take(self, size_bytes: int) -> int | None:
        """Offset of `size_bytes` bytes, as whole pages of the smallest free range that is large enough, if any is."""
        needed = in_pages(size_bytes)
        found = min(((length, offset) for offset, length in self._free if length >= needed), default=None)
        if found is None:
            return None
        length, offset = found
        self._free.remove((offset, length))
        if length > needed:
            insort(self._free, (offset + needed, length - needed))
        return offset

    def give_back(self, offset: int, size_bytes: int) -> None:
        """Free what `take` gave."""
        length = in_pages(size_bytes)
        if not length:
            return
        for start, extent in list(self._free):
            # A free range that ends or begins here becomes one with it.
            if start + extent == offset or start == offset + length:
                self._free.remove((start, extent))
                offset, length = min(offset, start), length + extent
        insort(self._free, (offset, length))
