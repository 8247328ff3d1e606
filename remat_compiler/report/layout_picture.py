"""The picture of layouts, as SVG: addresses over the steps of a plan, a rectangle for each storage in each life.

Layouts of one step stand side by side on one scale of bytes, so that the gaps of one are seen beside the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from remat_compiler.ir.graph import OpId, StorageKind
from remat_compiler.ir.plan import Plan
from remat_compiler.ir.problem import RematProblem
from remat_compiler.report import svg
from remat_compiler.simulate.lives import OwnedLife
from remat_compiler.units import format_bytes

_HEIGHT, _LEFT, _TOP, _RIGHT, _GAP = 560, 78, 104, 20, 28
_PLOT_WIDTH, _PLOT_HEIGHT = 500, 372
_BOTTOM = _TOP + _PLOT_HEIGHT


class BlockKind(str, Enum):
    """What a block of memory holds, in the words of the legend."""

    SAVED = "saved for the backward"
    RECOMPUTED = "recomputed"
    GRADIENT = "gradient"
    TEMPORARY = "temporary"


_COLORS = {
    BlockKind.SAVED: svg.BLUE,
    BlockKind.RECOMPUTED: "#e8912d",
    BlockKind.GRADIENT: "#3f9b63",
    BlockKind.TEMPORARY: svg.GREY,
}


@dataclass(frozen=True, slots=True)
class DrawnBlock:
    """A rectangle: in the steps `start` to `stop` (half-open), the bytes from `offset` on.

    Attributes:
        start: First step.
        stop: First step at which it is gone.
        offset: Its first byte.
        size_bytes: Its bytes.
        kind: What it holds.
    """

    start: int
    stop: int
    offset: int
    size_bytes: int
    kind: BlockKind


@dataclass(frozen=True, slots=True)
class DrawnLayout:
    """One layout.

    Attributes:
        name: Who placed the blocks.
        total_bytes: Memory that it takes.
        blocks: The blocks.
    """

    name: str
    total_bytes: int
    blocks: tuple[DrawnBlock, ...]


@dataclass(frozen=True, slots=True)
class _Axes:
    """From steps and bytes to picture coordinates, in the plot whose left edge is at `left`."""

    left: float
    num_steps: int
    top_bytes: int

    def x(self, step: float) -> float:
        return self.left + _PLOT_WIDTH * step / max(self.num_steps, 1)

    def y(self, size: float) -> float:
        # SVG counts from the top down.
        return _TOP + _PLOT_HEIGHT * (1 - size / max(self.top_bytes, 1))


def block_kind(problem: RematProblem, plan: Plan, one: OwnedLife) -> BlockKind:
    """What an allocation of a plan holds."""
    if one.storage is None:
        return BlockKind.TEMPORARY
    storage, maker = problem.graph.storages[one.storage], problem.graph.producers()[one.storage]
    if storage.kind in (StorageKind.GRADIENT, StorageKind.TANGENT):
        return BlockKind.GRADIENT
    made, freed = one.life.made, one.life.freed
    if maker is not None and _ran_before(plan, maker, made):
        return BlockKind.RECOMPUTED
    crosses = made < plan.boundary and (freed is None or freed > plan.boundary)
    return BlockKind.SAVED if crosses else BlockKind.TEMPORARY


def _ran_before(plan: Plan, op: OpId, step: int) -> bool:
    """Whether the execution of an operator at or after a step is not its first."""
    return plan.steps.index(op) < step


def layout_svg(title: str, plan: Plan, largest_live_bytes: int, layouts: Sequence[DrawnLayout]) -> str:
    """The picture.

    Args:
        title: The first line.
        plan: The plan that all layouts are of.
        largest_live_bytes: Most bytes that are alive at once: no layout takes less.
        layouts: The layouts, from left to right.
    """
    width = _LEFT + len(layouts) * (_PLOT_WIDTH + _GAP) - _GAP + _RIGHT
    # A little stays free above the highest block.
    top = int(1.04 * max([largest_live_bytes, *(layout.total_bytes for layout in layouts), 1]))
    body = [svg.text(_LEFT, 30, title, size=17, weight="bold"), *_legend()]
    for number, layout in enumerate(layouts):
        axes = _Axes(_LEFT + number * (_PLOT_WIDTH + _GAP), len(plan.steps), top)
        body += _plot(axes, layout, plan, largest_live_bytes, labels=number == 0)
    return svg.document(width, _HEIGHT, body)


def _legend() -> list[str]:
    parts, x = [], float(_LEFT)
    for kind, color in _COLORS.items():
        parts += [svg.rectangle(x, 44, 12, 12, color), svg.text(x + 18, 54, kind.value)]
        x += 40 + 6.4 * len(kind.value)
    parts += [svg.rectangle(x, 44, 12, 12, svg.GRID), svg.text(x + 18, 54, "reserved, but empty")]
    x += 160
    parts.append(svg.line(x, 50, x + 22, 50, svg.RED, dash="7 4", width=1.4))
    parts.append(svg.text(x + 28, 54, "most bytes alive at once"))
    return parts


def _plot(axes: _Axes, layout: DrawnLayout, plan: Plan, largest_live_bytes: int, *, labels: bool) -> list[str]:
    """One layout with its axes."""
    over = 100 * (layout.total_bytes / max(largest_live_bytes, 1) - 1)
    # Never "-0.0 %", where an arena ends within the last unit of its alignment.
    beyond = f"{format_bytes(layout.total_bytes)}, {max(over, 0):.1f} % more than is ever alive"
    right = axes.left + _PLOT_WIDTH
    parts = [
        svg.text(axes.left, _TOP - 24, layout.name, size=14, weight="bold"),
        svg.text(axes.left, _TOP - 8, beyond, fill=svg.FAINT),
        # What the layout takes, used or not.
        svg.rectangle(
            axes.left, axes.y(layout.total_bytes), _PLOT_WIDTH, _BOTTOM - axes.y(layout.total_bytes), svg.GRID
        ),
    ]
    for block in sorted(layout.blocks, key=lambda block: (block.start, block.offset)):
        x, y = axes.x(block.start), axes.y(block.offset + block.size_bytes)
        height = axes.y(block.offset) - y
        parts.append(svg.rectangle(x, y, axes.x(block.stop) - x, height, _COLORS[block.kind], rim="#ffffff"))
    # A power of two is round in every binary unit.
    for size in range(0, axes.top_bytes + 1, 1 << (axes.top_bytes // 6).bit_length()) if labels else ():
        parts.append(svg.line(axes.left - 4, axes.y(size), axes.left, axes.y(size), svg.FAINT))
        parts.append(svg.text(axes.left - 8, axes.y(size) + 4, format_bytes(size), anchor="end", fill=svg.FAINT))
    boundary, live = axes.x(plan.boundary), axes.y(largest_live_bytes)
    return [
        *parts,
        svg.line(axes.left, _BOTTOM, right, _BOTTOM, svg.FAINT),
        svg.line(axes.left, live, right, live, svg.RED, dash="7 4", width=1.4),
        svg.line(boundary, _TOP, boundary, _BOTTOM + 20, svg.FAINT, dash="3 3"),
        svg.text(boundary - 6, _BOTTOM + 18, "forward", anchor="end", fill=svg.FAINT),
        svg.text(boundary + 6, _BOTTOM + 18, "backward", fill=svg.FAINT),
        svg.text(axes.left, _BOTTOM + 42, f"{len(plan.steps)} operators, one after the other →", fill=svg.FAINT),
    ]
