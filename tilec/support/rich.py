"""Tables and paragraphs that print as text and show as HTML in a notebook, from the same cells.

HTML is escaped where it is made: whatever a cell holds (a name, a source line, an error) is text.
The style is inline and takes the page's own colours, so that light and dark notebooks both read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape as _escape

_CELL = "padding:2px 10px 2px 0;text-align:{side};vertical-align:top;white-space:{space}"
_CODE = "font-family:ui-monospace,Menlo,Consolas,monospace;font-size:90%"


def escape(text: object) -> str:
    """`text` as HTML, also inside of an attribute."""
    return _escape(str(text), quote=True)


def aligned(
    rows: Sequence[Sequence[str]], head: Sequence[str] = (), right: Iterable[int] = (), gap: int = 2
) -> str:
    """Rows of cells as lines with columns below one another; those numbered in `right` end at the
    same place. The last column is not padded."""
    every = [*([head] if head else []), *rows]
    if not every:
        return ""
    sides, widths = set(right), [max(map(len, column)) for column in zip(*every, strict=True)]
    lines = []
    for row in every:
        cells = [
            c.rjust(w) if i in sides else c.ljust(w) for i, (c, w) in enumerate(zip(row, widths))
        ]
        lines.append((" " * gap).join(cells).rstrip())
    return "\n".join(lines)


def html_table(
    rows: Sequence[Sequence[object]],
    head: Sequence[str] = (),
    right: Iterable[int] = (),
    code: Iterable[int] = (),
) -> str:
    """The same as an HTML table; columns in `code` are set in a fixed-width font."""
    sides, fixed = set(right), set(code)

    def cells(row: Sequence[object], tag: str) -> str:
        made = []
        for i, cell in enumerate(row):
            side, space = ("right", "nowrap") if i in sides else ("left", "pre-wrap")
            style = _CELL.format(side=side, space=space) + (f";{_CODE}" if i in fixed else "")
            made.append(f'<{tag} style="{style}">{escape(cell)}</{tag}>')
        return f"<tr>{''.join(made)}</tr>"

    top = f"<thead>{cells(head, 'th')}</thead>" if head else ""
    body = "".join(cells(row, "td") for row in rows)
    return f'<table style="border-collapse:collapse">{top}<tbody>{body}</tbody></table>'


def html_code(text: str) -> str:
    """Text as it stands, in a fixed-width font."""
    style = f"{_CODE};overflow-x:auto;margin:4px 0"
    return f'<pre style="{style}">{escape(text)}</pre>'


def html_block(title: str, *parts: str, about: str = "") -> str:
    """A title, words behind it, and parts that are HTML."""
    more = f' <span style="opacity:.7">{escape(about)}</span>' if about else ""
    head = f"<div><strong>{escape(title)}</strong>{more}</div>"
    return f'<div style="margin:6px 0">{head}{"".join(parts)}</div>'


def size_text(count: float) -> str:
    """Bytes for people: "213,056 B", "1.2 MB"."""
    if count < 1_000_000:
        return f"{count:,.0f} B"
    unit, scale = ("GB", 1e9) if count >= 1e9 else ("MB", 1e6)
    return f"{count / scale:,.1f} {unit}"


def time_text(seconds: float) -> str:
    """A duration for people: "6.1 us", "1.52 ms", "2.3 s"."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 1000 * scale:
            return f"{seconds / scale:.3g} {unit}"
    return f"{seconds:.3g} s" if seconds < 1000 else f"{seconds:,.0f} s"
