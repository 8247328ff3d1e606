"""What a notebook shows of an answer: a card of HTML with its text and, where it has one, its picture.

The card is light by itself, so that it reads alike in light and in dark notebooks; colours stand at each element, since
themes have their own for some.  There is no script in it, all text is escaped, and a picture is an image with its data
in it: the styles of the page do not reach into it, and it shows in notebooks that are not trusted, too.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from remat_compiler.report.svg import GRID, INK

_INK = f"color:{INK};background:#ffffff;font-size:13px"
_CARD = f"{_INK};color-scheme:light;border:1px solid {GRID};border-radius:6px;padding:10px 14px;overflow-x:auto"
_CELL = f"{_INK};border:0;padding:1px 18px 1px 0;text-align:left;vertical-align:top"
_LAST = f"{_CELL};min-width:14em;overflow-wrap:anywhere"
_TEXT = f"{_INK};border:0;margin:6px 0;padding:0;font-size:12px;line-height:1.4;overflow-x:auto;white-space:pre"


class Shown:
    """An answer that notebooks show as a card; `__str__` gives its text."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return card(preformatted(str(self)))

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        """What IPython shows: the text at a terminal, and beside the card in a notebook's file, not all fields."""
        return {"text/plain": str(self).rstrip("\n"), "text/html": self._repr_html_()}


def card(*parts: str) -> str:
    """A card of parts that are HTML."""
    return f'<div style="{_CARD}">\n{chr(10).join(part for part in parts if part)}\n</div>'


def preformatted(text: str) -> str:
    """`text` in its lines, with columns aligned."""
    return f'<pre style="{_TEXT}">{escape(text.rstrip())}</pre>' if text.strip() else ""


def columns(rows: Sequence[Sequence[str]]) -> str:
    """`rows` as a table whose last column breaks its lines, and words that are longer; all rows have as many cells."""
    lines = []
    for row in rows:
        *fixed, last = (escape(cell) for cell in row)
        cells = [f'<td style="{_CELL};white-space:nowrap">{cell}</td>' for cell in fixed]
        lines.append(f'<tr style="{_INK}">{"".join(cells)}<td style="{_LAST}">{last}</td></tr>')
    return f'<table style="{_INK};border:0;border-collapse:collapse;margin:6px 0">{"".join(lines)}</table>'


def paragraph(text: str, *, bold: bool = False) -> str:
    """`text` as a paragraph."""
    weight = "bold" if bold else "normal"
    return f'<p style="{_INK};margin:4px 0;font-weight:{weight}">{escape(text)}</p>'


def folded(title: str, *parts: str, is_open: bool = False) -> str:
    """Parts that are HTML below a `title`, which shows and hides them."""
    state = " open" if is_open else ""
    head = f'<summary style="{_INK};cursor:pointer">{escape(title)}</summary>'
    return f'<details{state} style="{_INK};margin:6px 0">{head}{"".join(parts)}</details>'


def image(svg: str, words: str) -> str:
    """A picture; `words` say what it shows to those who do not see it."""
    data = b64encode(svg.encode()).decode()
    style = "max-width:100%;height:auto;background:#ffffff"
    return f'<img alt="{escape(words)}" style="{style}" src="data:image/svg+xml;base64,{data}">'
