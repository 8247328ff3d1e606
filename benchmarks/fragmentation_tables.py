"""Rows of `fragmentation.py`, and how they are shown: tables as Markdown, a picture as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from remat_compiler.report import svg

KINDS = ("segments", "expandable")
_SHOWN_PART = 0.01
"""Part of the peak from which on a kind of allocation is named."""


@dataclass(frozen=True, slots=True)
class Reserved:
    """Most bytes reserved, with either kind of segments."""

    segments: int
    expandable: int

    def of(self, kind: str) -> int:
        """Those of a kind of `KINDS`."""
        return self.segments if kind == "segments" else self.expandable


@dataclass(frozen=True, slots=True)
class StepRow:
    """One model under one budget, five steps; bytes are on top of parameters, inputs and the optimizer's state.

    Attributes:
        model: Name of the model.
        position: Position of the budget, from the smallest peak (0) to that without a budget (1).
        scale: What all sizes are multiplied by.
        alive_bytes: Most bytes alive at once, without arenas.
        plain: Reserved without arenas.
        planned: Reserved with arenas.
        plain_stateless: Reserved without arenas if there is no optimizer.
        planned_stateless: The same with arenas.
        used: Whether the backend would keep the arenas, with plain segments and with those that expand.
        arenas: Number of arenas.
        covered_percent: Part of all allocated bytes that lies in them.
        arena_ratio: Most bytes of arenas at once, over the most bytes alive at once of what lies in them.
        packing_ratio: The same of the arena by itself that is worst.
        at_peak: Bytes alive at the peak by what they are, before they are scaled.
    """

    model: str
    position: float
    scale: int
    alive_bytes: int
    plain: Reserved
    planned: Reserved
    plain_stateless: Reserved
    planned_stateless: Reserved
    used: tuple[bool, bool]
    arenas: int
    covered_percent: float
    arena_ratio: float
    packing_ratio: float
    at_peak: dict[str, int]


@dataclass(frozen=True, slots=True)
class LengthsRow:
    """Steps of several lengths in a row over one allocator; bytes as in `StepRow`.

    Attributes:
        model: Name of the model.
        scale: What all sizes are multiplied by.
        lengths: The lengths, as parts of the longest, in order.
        budget_bytes: The budget of all of them, before it is scaled.
        alive_bytes: Most bytes alive at once.
        plain: Reserved without arenas.
        planned: Reserved if each length has its arenas where the backend would keep them.
        throughout: Reserved if all have them.
        used: Number of lengths whose arenas the backend would keep, with either kind of segments.
    """

    model: str
    scale: int
    lengths: tuple[str, ...]
    budget_bytes: int
    alive_bytes: int
    plain: Reserved
    planned: Reserved
    throughout: Reserved
    used: tuple[int, int]


def over_percent(reserved_bytes: int, alive_bytes: int) -> float:
    """Bytes reserved beyond those that are alive at once, in percent of them."""
    return 100 * (reserved_bytes / max(alive_bytes, 1) - 1)


def step_tables(rows: Sequence[StepRow]) -> Iterator[str]:
    """All tables of five steps."""
    for is_scaled in (False, True):
        chosen = [row for row in rows if (row.scale > 1) == is_scaled]
        yield from ("", "## Sizes scaled to 8 GiB at the peak" if is_scaled else "## Sizes as they are", "")
        yield from over_table(chosen)
        yield from ("", *summary_table(chosen), "", *stateless_table(chosen))
    chosen = [row for row in rows if row.scale > 1]
    yield from ("", "## Arenas", "", *arena_table(chosen), "", "## At the peak", "", *peak_table(chosen))


def over_table(rows: Sequence[StepRow]) -> Iterator[str]:
    """Reserved beyond alive in percent, a row for each model, a column for each kind of segments and budget."""
    positions = sorted({row.position for row in rows}, reverse=True)
    heads = [f"{kind}, {100 * position:g} %" for kind in KINDS for position in positions]
    yield f"| model | alive, MB | {' | '.join(heads)} |"
    yield f"|---|--:|{'--:|' * len(heads)}"
    for model in dict.fromkeys(row.model for row in rows):
        by = {row.position: row for row in rows if row.model == model}
        cells = [_over_cell(by.get(position), kind) for kind in KINDS for position in positions]
        alive = " / ".join(f"{by[position].alive_bytes / 1e6:.0f}" for position in positions if position in by)
        yield f"| {model} | {alive} | {' | '.join(cells)} |"


def _over_cell(row: StepRow | None, kind: str) -> str:
    """Without → with arenas; in brackets if the backend would not keep them."""
    if row is None:
        return "-"
    plain, planned = (over_percent(one.of(kind), row.alive_bytes) for one in (row.plain, row.planned))
    return f"{plain:.1f} → {planned:.1f}" if row.used[KINDS.index(kind)] else f"{plain:.1f} ({planned:.1f})"


def decided(row: StepRow, kind: str) -> float:
    """Percent reserved beyond what is alive, with arenas where the backend would keep them."""
    chosen = row.planned if row.used[KINDS.index(kind)] else row.plain
    return over_percent(chosen.of(kind), row.alive_bytes)


def summary_table(rows: Sequence[StepRow]) -> Iterator[str]:
    """Mean and worst of all models for each budget: without arenas, where the backend keeps them, and throughout."""
    yield "| budget at | segments | planned | throughout | kept | expandable | planned | throughout | kept |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for position in sorted({row.position for row in rows}, reverse=True):
        own = [row for row in rows if row.position == position]
        cells = []
        for kind in KINDS:
            plain = [over_percent(row.plain.of(kind), row.alive_bytes) for row in own]
            planned = [decided(row, kind) for row in own]
            throughout = [over_percent(row.planned.of(kind), row.alive_bytes) for row in own]
            cells += [f"{fmean(one):.1f} / {max(one):.1f}" for one in (plain, planned, throughout)]
            cells.append(f"{sum(row.used[KINDS.index(kind)] for row in own)} of {len(own)}")
        yield f"| {100 * position:g} % | {' | '.join(cells)} |"


def stateless_table(rows: Sequence[StepRow]) -> Iterator[str]:
    """Mean and worst of all models without an optimizer, with arenas whether or not the backend would keep them."""
    yield "| budget at | segments | arenas throughout | expandable | arenas throughout |"
    yield "|---|--:|--:|--:|--:|"
    for position in sorted({row.position for row in rows}, reverse=True):
        own = [row for row in rows if row.position == position]
        cells = []
        for kind in KINDS:
            for ways in zip(*((row.plain_stateless, row.planned_stateless) for row in own)):
                over = [over_percent(way.of(kind), row.alive_bytes) for way, row in zip(ways, own)]
                cells.append(f"{fmean(over):.1f} / {max(over):.1f}")
        yield f"| {100 * position:g} % | {' | '.join(cells)} |"


def arena_table(rows: Sequence[StepRow]) -> Iterator[str]:
    """Number of arenas, what they cover, and what they take beyond what lies in them."""
    positions = sorted({row.position for row in rows}, reverse=True)
    yield f"| model | {' | '.join(f'{100 * position:g} %' for position in positions)} |"
    yield f"|---|{'--:|' * len(positions)}"
    for model in dict.fromkeys(row.model for row in rows):
        by = {row.position: row for row in rows if row.model == model}
        cells = [_arena_cell(by.get(position)) for position in positions]
        yield f"| {model} | {' | '.join(cells)} |"


def _arena_cell(row: StepRow | None) -> str:
    if row is None:
        return "-"
    return f"{row.arenas}, {row.covered_percent:.0f} %, {row.arena_ratio:.3f}, {row.packing_ratio:.3f}"


def peak_table(rows: Sequence[StepRow]) -> Iterator[str]:
    """What is alive at the peak under the smallest budget, by what it is."""
    yield "| model | MB at the peak | in arenas | outside |"
    yield "|---|--:|--:|---|"
    for model in dict.fromkeys(row.model for row in rows):
        row = min((row for row in rows if row.model == model), key=lambda row: row.position)
        total = max(sum(row.at_peak.values()), 1)
        outside = {kind: size for kind, size in row.at_peak.items() if kind != "in arenas"}
        named = [f"{kind} {size / 1e6:.2f}" for kind, size in outside.items() if size >= _SHOWN_PART * total]
        rest = sum(size for size in outside.values() if size < _SHOWN_PART * total)
        named += [f"others {rest / 1e6:.2f}"] if rest else []
        inside = 100 * row.at_peak.get("in arenas", 0) / total
        yield f"| {model} | {total / 1e6:.2f} | {inside:.0f} % | {', '.join(named)} |"


def lengths_tables(rows: Sequence[LengthsRow]) -> Iterator[str]:
    """Reserved beyond alive in percent: without, with the backend's choice, and with arenas throughout."""
    for is_scaled in (False, True):
        chosen = [row for row in rows if (row.scale > 1) == is_scaled]
        if not chosen:
            continue
        title = f"{len(chosen[0].lengths)} lengths in a row, sizes {'scaled to 8 GiB' if is_scaled else 'as they are'}"
        yield from ("", f"## {title}", "", "| model | alive, MB | segments | planned | throughout | kept |")
        # Both kinds in one line, so that the table stays narrow.
        yield "|---|--:|--:|--:|--:|--:|"
        for row in chosen:
            cells = [
                " / ".join(f"{over_percent(one.of(kind), row.alive_bytes):.1f}" for kind in KINDS)
                for one in (row.plain, row.planned, row.throughout)
            ]
            kept = f"{row.used[0]} / {row.used[1]} of {len(row.lengths)}"
            yield f"| {row.model} | {row.alive_bytes / 1e6:.1f} | {' | '.join(cells)} | {kept} |"


_WIDTH, _LEFT, _TOP, _PANEL, _GAP, _LINE, _BETWEEN = 1000, 120, 104, 400, 44, 9, 14
_PALE = "#a9c6ea"
_TITLES = {"segments": "plain segments", "expandable": "expandable segments"}


def picture(rows: Sequence[StepRow]) -> str:
    """What is reserved beyond what is alive, scaled to 8 GiB: a line of each model for each budget, two dots on it."""
    chosen = [row for row in rows if row.scale > 1]
    models = list(dict.fromkeys(row.model for row in chosen))
    positions = sorted({row.position for row in chosen}, reverse=True)
    ways = [(way.of(kind), row.alive_bytes) for row in chosen for way in (row.plain, row.planned) for kind in KINDS]
    most = max((over_percent(*way) for way in ways), default=1.0)
    most = max(10.0, -(-most // 10) * 10)
    parts = [f"{100 * position:g}" for position in positions]
    height = _TOP + len(models) * (len(positions) * _LINE + _BETWEEN) + 58
    body = [
        svg.text(16, 26, "Reserved beyond what is alive at the peak, five steps with Adam", size=16, weight="bold"),
        svg.dot(22, 46, svg.RED),
        svg.text(32, 50, "torch's caching allocator (its model)"),
        svg.dot(262, 46, svg.BLUE),
        svg.text(272, 50, "planned offsets"),
        svg.dot(382, 46, _PALE),
        svg.text(392, 50, "the same, which the backend would not keep"),
        svg.text(16, 68, f"Budgets at {', '.join(parts)} % of the range of each model", fill=svg.FAINT),
    ]
    for n, kind in enumerate(KINDS):
        left = _LEFT + n * (_PANEL + _GAP)
        body += [svg.text(left, _TOP - 10, _TITLES[kind], weight="bold"), *_axis(left, height - 50, most)]
        y = _TOP + 8.0
        for model in models:
            if not n:
                middle = y + (len(positions) - 1) * _LINE / 2
                body.append(svg.text(_LEFT - 10, middle + 4, model, anchor="end"))
            for position in positions:
                row = next((row for row in chosen if (row.model, row.position) == (model, position)), None)
                if row is not None:
                    body += _pair(left, y, most, row, kind)
                y += _LINE
            y += _BETWEEN
    return svg.document(_WIDTH, height, body)


def _axis(left: float, bottom: float, most: float) -> Iterator[str]:
    """Lines across a panel at whole parts of its range, and their percents."""
    for part in range(6):
        x = left + part * _PANEL / 5
        yield svg.line(x, _TOP, x, bottom, svg.GRID)
        yield svg.text(x, bottom + 16, f"{part * most / 5:g} %", anchor="middle", fill=svg.FAINT, size=11)


def _pair(left: float, y: float, most: float, row: StepRow, kind: str) -> list[str]:
    """Both dots of a row, with a line between them."""
    over = [over_percent(way.of(kind), row.alive_bytes) for way in (row.plain, row.planned)]
    plain, planned = (left + max(percent, 0.0) * _PANEL / most for percent in over)
    fill = svg.BLUE if row.used[KINDS.index(kind)] else _PALE
    return [svg.line(plain, y, planned, y, svg.GREY), svg.dot(planned, y, fill), svg.dot(plain, y, svg.RED)]
