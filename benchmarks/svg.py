"""A picture of lines, dots, boxes and words, as SVG text."""

from __future__ import annotations

from xml.sax.saxutils import escape


class Svg:
    """`width` x `height` pixels; y grows downwards."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._parts: list[str] = []

    def line(
        self, x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1
    ) -> None:
        self._add(
            f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
            f'stroke-width="{width}"/>'
        )

    def dot(self, x: float, y: float, radius: float, colour: str, hollow: bool = False) -> None:
        fill = "white" if hollow else colour
        self._add(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}" fill="{fill}" stroke="{colour}" '
            'stroke-width="1.2"/>'
        )

    def box(self, x: float, y: float, width: float, height: float, colour: str) -> None:
        self._add(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" '
            f'fill="{colour}"/>'
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        anchor: str = "start",
        size: int = 11,
        bold: bool = False,
    ) -> None:
        """`anchor`: start, middle or end of the words stands at `x`."""
        weight = ' font-weight="bold"' if bold else ""
        self._add(
            f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}"{weight}>'
            f"{escape(words)}</text>"
        )

    def text_of(self) -> str:
        """The picture as a file's text, on white."""
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{self.width}" '
            f'height="{self.height}" font-family="Helvetica, Arial, sans-serif">'
        )
        ground = f'<rect width="{self.width}" height="{self.height}" fill="white"/>'
        return "\n".join([head, ground, *self._parts, "</svg>"]) + "\n"

    def _add(self, part: str) -> None:
        self._parts.append(part)
