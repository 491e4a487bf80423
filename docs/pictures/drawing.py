"""A picture as SVG: boxes, lines and text in a few named colours, which follow the colour scheme of the page."""

from __future__ import annotations

from html import escape

# Each colour in light and in dark. Fills are pale in one and deep in the other, so that text on them stays readable.
COLOURS = {
    "ink": ("#1c2530", "#e6edf3"),
    "faint": ("#8a949e", "#8b949e"),
    "paper": ("#ffffff", "#131416"),
    "blue": ("#cfe3ff", "#1f4a80"),
    "green": ("#cdeccf", "#1f5a2c"),
    "orange": ("#ffe1b8", "#7a4a10"),
    "red": ("#ffd3d0", "#7d2a26"),
    "violet": ("#e4d7ff", "#4a3580"),
    "grey": ("#eceff2", "#2a2f36"),
}


class Drawing:
    """Coordinates are pixels from the upper left; the picture scales with the page."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def box(
        self, x: float, y: float, width: float, height: float, fill: str, text: str = "", *, small: bool = False
    ) -> None:
        corner = min(4.0, width / 4, height / 4)
        self.parts.append(
            f'<rect class="{fill} edge" x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" '
            f'rx="{_n(corner)}"/>'
        )
        lines = text.split("\n") if text else []
        step = 14 if small else 18
        for i, line in enumerate(lines):
            self.text(x + width / 2, y + height / 2 + 5 + step * (i - (len(lines) - 1) / 2), line, small=small)

    def text(
        self, x: float, y: float, text: str, *, anchor: str = "middle", small: bool = False, bold: bool = False
    ) -> None:
        kind = " ".join(["ink", *(["small"] if small else []), *(["bold"] if bold else [])])
        self.parts.append(f'<text class="{kind}" x="{_n(x)}" y="{_n(y)}" text-anchor="{anchor}">{escape(text)}</text>')

    def line(self, points: list[tuple[float, float]], *, arrow: bool = False, dashed: bool = False) -> None:
        path = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        more = (' marker-end="url(#arrow)"' if arrow else "") + (' stroke-dasharray="4 4"' if dashed else "")
        self.parts.append(f'<polyline class="wire" points="{path}"{more}/>')

    def circle(self, x: float, y: float, radius: float, fill: str, text: str = "") -> None:
        self.parts.append(f'<circle class="{fill} edge" cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"/>')
        if text:
            self.text(x, y + 4, text, small=True)

    def svg(self) -> str:
        """As a file. A picture in an <img> asks for the colour scheme of the element that it stands in."""
        light, dark = (
            "".join(f".{name}{{fill:{pair[i]}}}" for name, pair in COLOURS.items())
            + f".edge{{stroke:{COLOURS['faint'][i]}}}.wire{{stroke:{COLOURS['ink'][i]}}}"
            for i in range(2)
        )
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" '
                f'width="{self.width}" height="{self.height}" role="img">',
                f"<title>{escape(self.title)}</title>",
                "<style>text{font:14px system-ui,sans-serif}.small{font-size:11.5px}.bold{font-weight:600}"
                ".wire{fill:none;stroke-width:1.5}.edge{stroke-width:1}"
                f"{light}@media (prefers-color-scheme:dark){{{dark}}}</style>",
                '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
                'orient="auto-start-reverse"><path class="ink" d="M0 0L8 4L0 8z"/></marker></defs>',
                f'<rect class="paper" width="{self.width}" height="{self.height}"/>',
                *self.parts,
                "</svg>",
                "",
            ]
        )


def _n(value: float) -> str:
    return f"{value:.1f}".rstrip("0").rstrip(".")
