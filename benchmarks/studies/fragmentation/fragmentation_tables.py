"""Rows of `fragmentation.py`, and how they are shown: tables as Markdown, a picture as SVG."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from remat_compiler.report import svg

KINDS = ("segments", "expandable")
TITLES = {"segments": "plain segments", "expandable": "expandable segments"}
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
class ArenasRow:
    """The arenas that the backend would choose for a step.

    Attributes:
        arenas: Number of arenas.
        covered_percent: Part of all allocated bytes that lies in them.
        arena_ratio: Most bytes of arenas at once, over the most bytes alive at once of what lies in them.
        packing_ratio: The same of the arena by itself that is worst.
        at_peak: Bytes alive at the peak by what they are.
    """

    arenas: int
    covered_percent: float
    arena_ratio: float
    packing_ratio: float
    at_peak: dict[str, int]


@dataclass(frozen=True, slots=True)
class StepRow:
    """One model under one budget, five steps; bytes are on top of parameters, inputs and the optimizer's state.

    Attributes:
        model: Name of the model.
        position: Position of the budget, from the smallest peak (0) to that without a budget (1).
        scale: What all sizes are multiplied by.
        alive_bytes: Most bytes alive at once, without arenas.
        online: Reserved without arenas.
        planned: Reserved with those that the backend chooses.
        throughout: Reserved with all that leave the peak as it is.
        online_stateless: Reserved without arenas if there is no optimizer.
        planned_stateless: The same with those that the backend chooses, which takes it that there is one.
        segments: The arenas chosen for plain segments.
        expandable: The arenas chosen for segments that expand.
    """

    model: str
    position: float
    scale: int
    alive_bytes: int
    online: Reserved
    planned: Reserved
    throughout: Reserved
    online_stateless: Reserved
    planned_stateless: Reserved
    segments: ArenasRow
    expandable: ArenasRow

    def arenas(self, kind: str) -> ArenasRow:
        """The arenas for a kind of `KINDS`."""
        return self.segments if kind == "segments" else self.expandable


@dataclass(frozen=True, slots=True)
class LengthsRow:
    """Steps of several lengths in a row over one allocator; bytes as in `StepRow`.

    Attributes:
        model: Name of the model.
        scale: What all sizes are multiplied by.
        lengths: The lengths, as parts of the longest, in order.
        budget_bytes: The budget, before it is scaled.
        alive_bytes: Most bytes alive at once.
        online: Reserved without arenas.
        planned: Reserved with arenas that the backend chooses for the longest length, and has at all of them.
        alone: Reserved if each length has the arenas that would be chosen if there were no other.
        throughout: Reserved with all arenas that leave the peak of the longest length as it is.
        online_in_orders: Reserved without arenas if the same lengths come in other orders.
        planned_in_orders: Reserved in these orders with the arenas chosen for the longest.
        segments: The arenas chosen for plain segments.
        expandable: The arenas chosen for segments that expand.
    """

    model: str
    scale: int
    lengths: tuple[float, ...]
    budget_bytes: int
    alive_bytes: int
    online: Reserved
    planned: Reserved
    alone: Reserved
    throughout: Reserved
    online_in_orders: tuple[Reserved, ...]
    planned_in_orders: tuple[Reserved, ...]
    segments: ArenasRow
    expandable: ArenasRow


def over_percent(reserved_bytes: int, alive_bytes: int) -> float:
    """Bytes reserved beyond those that are alive at once, in percent of them."""
    return 100 * (reserved_bytes / max(alive_bytes, 1) - 1)


def step_tables(rows: Sequence[StepRow]) -> Iterator[str]:
    """All tables of five steps."""
    for is_scaled in (True, False):
        chosen = [row for row in rows if (row.scale > 1) == is_scaled]
        if not chosen:
            return
        yield from ("", "## Sizes scaled to 8 GiB at the peak" if is_scaled else "## Sizes as they are", "")
        yield from over_table(chosen)
        yield from ("", *summary_table(chosen), "", *stateless_table(chosen))
        for kind in KINDS:
            yield from ("", f"### Arenas for {TITLES[kind]}", "", *arena_table(chosen, kind))
    chosen = [row for row in rows if row.scale > 1]
    yield from ("", "## At the peak, scaled, plain segments", "", *peak_table(chosen, "segments"))


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
    """Online → planned; one figure if the backend chooses no arenas."""
    if row is None:
        return "-"
    online, planned = (over_percent(one.of(kind), row.alive_bytes) for one in (row.online, row.planned))
    return f"{online:.1f} → {planned:.1f}" if row.arenas(kind).arenas else f"{online:.1f}"


def summary_table(rows: Sequence[StepRow]) -> Iterator[str]:
    """Mean and worst of all models for each budget: online, with the backend's choice, and with arenas throughout."""
    yield "| budget at | segments | planned | throughout | lower | expandable | planned | throughout | lower |"
    yield "|---|--:|--:|--:|--:|--:|--:|--:|--:|"
    for position in sorted({row.position for row in rows}, reverse=True):
        own = [row for row in rows if row.position == position]
        cells = []
        for kind in KINDS:
            ways = zip(*((row.online, row.planned, row.throughout) for row in own))
            cells += [_mean_and_worst([one.of(kind) for one in way], own) for way in ways]
            lower = sum(row.planned.of(kind) < row.online.of(kind) for row in own)
            cells.append(f"{lower} of {len(own)}")
        yield f"| {100 * position:g} % | {' | '.join(cells)} |"


def _mean_and_worst(reserved: Sequence[int], rows: Sequence[StepRow]) -> str:
    over = [over_percent(one, row.alive_bytes) for one, row in zip(reserved, rows)]
    return f"{fmean(over):.1f} / {max(over):.1f}"


def stateless_table(rows: Sequence[StepRow]) -> Iterator[str]:
    """Mean and worst of all models without an optimizer, with arenas that were chosen as if there were one."""
    yield "| budget at | segments | planned | lower, higher | expandable | planned | lower, higher |"
    yield "|---|--:|--:|--:|--:|--:|--:|"
    for position in sorted({row.position for row in rows}, reverse=True):
        own = [row for row in rows if row.position == position]
        cells = []
        for kind in KINDS:
            pairs = [(row.online_stateless.of(kind), row.planned_stateless.of(kind)) for row in own]
            cells += [_mean_and_worst(way, own) for way in zip(*pairs)]
            lower, higher = (sum(planned < online for online, planned in one) for one in (pairs, map(reversed, pairs)))
            cells.append(f"{lower}, {higher} of {len(own)}")
        yield f"| {100 * position:g} % | {' | '.join(cells)} |"


def arena_table(rows: Sequence[StepRow], kind: str) -> Iterator[str]:
    """Number of arenas, what they cover, and what they take beyond what lies in them: together, and the worst one."""
    positions = sorted({row.position for row in rows}, reverse=True)
    yield f"| model | {' | '.join(f'{100 * position:g} %' for position in positions)} |"
    yield f"|---|{'--:|' * len(positions)}"
    for model in dict.fromkeys(row.model for row in rows):
        by = {row.position: row.arenas(kind) for row in rows if row.model == model}
        yield f"| {model} | {' | '.join(_arena_cell(by.get(position)) for position in positions)} |"


def _arena_cell(row: ArenasRow | None) -> str:
    if row is None or not row.arenas:
        return "-"
    return f"{row.arenas}, {row.covered_percent:.0f} %, {row.arena_ratio:.3f}, {row.packing_ratio:.3f}"


def peak_table(rows: Sequence[StepRow], kind: str) -> Iterator[str]:
    """What is alive at the peak under the smallest budget, by what it is."""
    yield "| model | MB at the peak | in arenas | outside |"
    yield "|---|--:|--:|---|"
    for model in dict.fromkeys(row.model for row in rows):
        row = min((row for row in rows if row.model == model), key=lambda row: row.position)
        at_peak = row.arenas(kind).at_peak
        total = max(sum(at_peak.values()), 1)
        outside = {name: size for name, size in at_peak.items() if name != "in arenas"}
        named = [f"{name} {100 * size / total:.0f} %" for name, size in outside.items() if size >= _SHOWN_PART * total]
        inside = 100 * at_peak.get("in arenas", 0) / total
        yield f"| {model} | {total / 1e6:.0f} | {inside:.0f} % | {', '.join(named)} |"


def lengths_tables(rows: Sequence[LengthsRow]) -> Iterator[str]:
    """Reserved beyond alive in percent over several lengths, and the arenas for the longest."""
    for is_scaled in (True, False):
        chosen = [row for row in rows if (row.scale > 1) == is_scaled]
        if not chosen:
            continue
        title = f"{len(chosen[0].lengths)} lengths in a row, sizes {'scaled to 8 GiB' if is_scaled else 'as they are'}"
        yield from ("", f"## {title}", "")
        heads = (f"{kind} | each alone | throughout | arenas" for kind in KINDS)
        yield f"| model | alive, MB | {' | '.join(heads)} |"
        yield f"|---|--:|{'--:|' * 8}"
        yield from (_lengths_line(row) for row in chosen)
        yield from ("", "In other orders, mean:", "")
        yield "| model | segments | lower, higher | expandable | lower, higher |"
        yield "|---|--:|--:|--:|--:|"
        yield from (_orders_line(row) for row in chosen)


def _lengths_line(row: LengthsRow) -> str:
    cells = []
    for kind, arenas in zip(KINDS, (row.segments, row.expandable)):
        ways = (row.online, row.planned, row.alone, row.throughout)
        online, planned, alone, throughout = (over_percent(one.of(kind), row.alive_bytes) for one in ways)
        cells += [f"{online:.1f} → {planned:.1f}", f"{alone:.1f}", f"{throughout:.1f}", _arena_cell(arenas)]
    return f"| {row.model} | {row.alive_bytes / 1e6:.0f} | {' | '.join(cells)} |"


def _orders_line(row: LengthsRow) -> str:
    cells = []
    for kind in KINDS:
        pairs = [(a.of(kind), b.of(kind)) for a, b in zip(row.online_in_orders, row.planned_in_orders)]
        online, planned = (fmean(over_percent(one, row.alive_bytes) for one in way) for way in zip(*pairs))
        lower, higher = sum(b < a for a, b in pairs), sum(b > a for a, b in pairs)
        cells += [f"{online:.1f} → {planned:.1f}", f"{lower}, {higher} of {len(pairs)}"]
    return f"| {row.model} | {' | '.join(cells)} |"


_WIDTH, _LEFT, _TOP, _PANEL, _GAP, _LINE, _BETWEEN = 1000, 120, 104, 400, 44, 9, 14
_PALE = "#a9c6ea"


def picture(rows: Sequence[StepRow]) -> str:
    """What is reserved beyond what is alive, scaled to 8 GiB: three dots for each model and budget."""
    chosen = [row for row in rows if row.scale > 1]
    models = list(dict.fromkeys(row.model for row in chosen))
    positions = sorted({row.position for row in chosen}, reverse=True)
    ways = [(way.of(kind), row.alive_bytes) for row in chosen for way in (row.online, row.throughout) for kind in KINDS]
    most = max((over_percent(*way) for way in ways), default=1.0)
    most = max(25.0, -(-most // 25) * 25)
    parts = [f"{100 * position:g}" for position in positions]
    height = _TOP + len(models) * (len(positions) * _LINE + _BETWEEN) + 58
    body = [
        svg.text(16, 26, "Reserved beyond what is alive at the peak, five steps with Adam", size=16, weight="bold"),
        svg.dot(22, 46, svg.RED),
        svg.text(32, 50, "torch's caching allocator (its model)"),
        svg.dot(262, 46, svg.BLUE),
        svg.text(272, 50, "planned offsets, as the backend chooses"),
        svg.dot(542, 46, _PALE),
        svg.text(552, 50, "planned offsets throughout"),
        svg.text(16, 68, f"Budgets at {', '.join(parts)} % of the range of each model", fill=svg.FAINT),
    ]
    for n, kind in enumerate(KINDS):
        left = _LEFT + n * (_PANEL + _GAP)
        body += [svg.text(left, _TOP - 10, TITLES[kind], weight="bold"), *_axis(left, height - 50, most)]
        y = _TOP + 8.0
        for model in models:
            if not n:
                middle = y + (len(positions) - 1) * _LINE / 2
                body.append(svg.text(_LEFT - 10, middle + 4, model, anchor="end"))
            for position in positions:
                row = next((row for row in chosen if (row.model, row.position) == (model, position)), None)
                if row is not None:
                    body += _dots(left, y, most, row, kind)
                y += _LINE
            y += _BETWEEN
    return svg.document(_WIDTH, height, body)


def _axis(left: float, bottom: float, most: float) -> Iterator[str]:
    """Lines across a panel at whole parts of its range, and their percents."""
    for part in range(6):
        x = left + part * _PANEL / 5
        yield svg.line(x, _TOP, x, bottom, svg.GRID)
        yield svg.text(x, bottom + 16, f"{part * most / 5:g} %", anchor="middle", fill=svg.FAINT, size=11)


def _dots(left: float, y: float, most: float, row: StepRow, kind: str) -> list[str]:
    """The dots of a row, with a line between what is without arenas and what the backend makes of it."""
    over = [over_percent(way.of(kind), row.alive_bytes) for way in (row.online, row.planned, row.throughout)]
    online, planned, throughout = (left + max(percent, 0.0) * _PANEL / most for percent in over)
    dots = [svg.dot(throughout, y, _PALE), svg.dot(online, y, svg.RED), svg.dot(planned, y, svg.BLUE)]
    return [svg.line(online, y, planned, y, svg.GREY), *dots]
