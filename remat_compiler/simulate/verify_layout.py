"""A deliberately naive checker of layouts; a layout with a defect is never executed."""

from __future__ import annotations

from remat_compiler.ir.layout import Layout, LayoutProblem


def layout_defects(problem: LayoutProblem, layout: Layout) -> list[str]:
    """One sentence for each defect of `layout` as an answer to `problem`; compares every pair of blocks."""
    blocks, offsets = problem.blocks, layout.offsets
    if len(offsets) != len(blocks):
        # Without one offset for each block there is nothing to compare.
        return [f"{len(offsets)} offsets for {len(blocks)} blocks"]
    found = []
    for i, (block, offset) in enumerate(zip(blocks, offsets)):
        if offset < 0 or offset % problem.alignment_bytes:
            found.append(f"block {i} stands at {offset}, which is no multiple of {problem.alignment_bytes}")
        if offset + block.size_bytes > layout.total_bytes:
            found.append(f"block {i} ends at {offset + block.size_bytes}, beyond {layout.total_bytes} bytes")
        for j in range(i):
            other, place = blocks[j], offsets[j]
            # Both intervals are half-open: blocks that merely touch, in time or in bytes, do not collide.
            together = block.start < other.stop and other.start < block.stop
            empty = not (block.size_bytes and other.size_bytes)
            if together and not empty and offset < place + other.size_bytes and place < offset + block.size_bytes:
                found.append(f"blocks {j} and {i} share bytes from {max(offset, place)} on")
    return found
