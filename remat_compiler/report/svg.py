"""The few SVG elements that the pictures are made of, as text."""

from __future__ import annotations

from xml.sax.saxutils import escape

INK, FAINT, GRID = "#1f2933", "#6b7785", "#e4e8ec"
GREY, BLUE, RED, BROWN = "#98a4b1", "#2166c4", "#c62f2f", "#8a5a12"


def document(width: int, height: int, body: list[str], background: str = "#ffffff") -> str:
    """A picture of `width` × `height`; the page shows through if `background` is empty."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'font-family="Helvetica, Arial, sans-serif" fill="{INK}">'
    )
    behind = [rectangle(0, 0, width, height, background)] if background else []
    return "\n".join([head, *behind, *body, "</svg>", ""])


def text(
    x: float, y: float, words: str, *, anchor: str = "start", fill: str = INK, size: int = 12, weight: str = "normal"
) -> str:
    """A line of text whose baseline starts (or, by `anchor`, ends or is centred) at (`x`, `y`)."""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{fill}" font-size="{size}" '
        f'font-weight="{weight}">{escape(_printable(words))}</text>'
    )


def line(x1: float, y1: float, x2: float, y2: float, color: str, *, dash: str = "", width: float = 1.0) -> str:
    """A straight line, dashed if `dash` gives lengths of strokes and gaps."""
    dashes = f' stroke-dasharray="{dash}"' if dash else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}" '
        f'stroke-width="{width}"{dashes}/>'
    )


def rectangle(x: float, y: float, width: float, height: float, fill: str, opacity: float = 1.0, rim: str = "") -> str:
    """A filled rectangle; with sharp corners and a hairline around it, if `rim` gives its color."""
    if rim:
        return (
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}" '
            f'fill-opacity="{opacity}" stroke="{rim}" stroke-width="0.6"/>'
        )
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="2" '
        f'fill="{fill}" fill-opacity="{opacity}"/>'
    )


def dot(x: float, y: float, fill: str, rim: str = "#ffffff") -> str:
    """A round mark with a rim."""
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{fill}" stroke="{rim}" stroke-width="1.5"/>'


def shape(path: str, *, fill: str = "none", opacity: float = 1.0, stroke: str = "none") -> str:
    """A path, filled or drawn."""
    return (
        f'<path d="{path}" fill="{fill}" fill-opacity="{opacity}" stroke="{stroke}" stroke-width="1.6" '
        f'stroke-linejoin="round"/>'
    )


def cut(words: str, length: int) -> str:
    """The end of `words` if they are longer than `length`: the end of a path says more than its start."""
    return words if len(words) <= length else f"…{words[1 - length :]}"


def _printable(words: str) -> str:
    """`words` without control characters, which XML does not allow even escaped."""
    return "".join(c if c.isprintable() else " " for c in words)
