"""Small charts as SVG, drawn by hand: grey words and saturated colours, so that they read on light and on dark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape

import attrs

COLOURS = ("#8c8c8c", "#2f8fd8", "#e0742c", "#3aa66b", "#b35fc4", "#c9a227", "#d0506a")
_WORDS, _RULE = "#808080", "#80808055"
_ROW, _FONT, _LABELS, _BARS, _NUMBERS = 14, 12, 240, 420, 90


@attrs.frozen
class Bars:
    """For each group a horizontal bar of each series, `series[name][group]`; what is nan is left out."""

    title: str
    groups: tuple[str, ...]
    series: Mapping[str, Sequence[float]]
    digits: int = 1

    def draw(self) -> str:
        """The chart. Bars of one series have one colour; each says its number."""
        height = 30 + len(self.groups) * self._step + 24
        return _picture(_LABELS + _BARS + _NUMBERS, height, self.title, (*self._bars(), *self._legend(height - 10)))

    @property
    def _step(self) -> int:
        return len(self.series) * _ROW + 10

    @property
    def _most(self) -> float:
        return max(value for values in self.series.values() for value in values if not math.isnan(value)) or 1.0

    def _bars(self) -> Iterator[str]:
        for at, group in enumerate(self.groups):
            top = 30 + at * self._step
            yield _text(_LABELS - 8, top + self._step / 2 - 2, group, anchor="end")
            for row, (colour, values) in enumerate(zip(_colours(self.series), self.series.values(), strict=True)):
                if not math.isnan(values[at]):
                    yield from self._bar(top + row * _ROW, values[at], colour)

    def _bar(self, top: float, value: float, colour: str) -> Iterator[str]:
        length = value / self._most * _BARS
        yield f'<rect x="{_LABELS}" y="{top}" width="{length:.1f}" height="{_ROW - 2}" fill="{colour}"/>'
        yield _text(_LABELS + length + 4, top + _ROW - 4, f"{value:,.{self.digits}f}")

    def _legend(self, y: float) -> Iterator[str]:
        return _legend(self.series, _LABELS, y)


@attrs.frozen
class Panel:
    """Lines over numbers that about double from one to the next, and so are drawn evenly. `unit`: of what is drawn."""

    title: str
    unit: str
    xs: tuple[float, ...]
    series: Mapping[str, Sequence[float]]


_WIDE, _TALL, _MARGIN = 250, 170, 44


def draw_panels(title: str, panels: Sequence[Panel], across: int = 4) -> str:
    """Panels side by side, `across` in a row; all start at 0."""
    across = min(across, len(panels))
    rows = math.ceil(len(panels) / across)
    drawn: list[str] = []
    for at, panel in enumerate(panels):
        left, top = at % across * (_WIDE + _MARGIN) + _MARGIN, at // across * (_TALL + 2 * _MARGIN) + 2 * _MARGIN - 20
        drawn += _panel(panel, left, top)
    height = rows * (_TALL + 2 * _MARGIN) + 36
    drawn += _legend(panels[0].series, _MARGIN, height - 10)
    return _picture(across * (_WIDE + _MARGIN) + 20, height, title, drawn)


def _panel(panel: Panel, left: float, top: float) -> Iterator[str]:
    most = max(value for values in panel.series.values() for value in values) or 1.0
    step = _WIDE / max(len(panel.xs) - 1, 1) * 0.92
    yield _text(left, top - 8, f"{panel.title}, {panel.unit}")
    for part in (0.0, 0.5, 1.0):
        y = top + _TALL * (1 - part)
        yield f'<path d="M{left} {y:.1f}h{_WIDE}" stroke="{_RULE}"/>'
        yield _text(left - 4, y + 4, _short(most * part), anchor="end")
    for at, x in enumerate(panel.xs):
        yield _text(left + at * step, top + _TALL + 16, _short(x), anchor="middle")
    for colour, values in zip(_colours(panel.series), panel.series.values(), strict=True):
        points = [(left + at * step, top + _TALL * (1 - value / most)) for at, value in enumerate(values)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
        yield f'<path d="M{path}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)


def _short(number: float) -> str:
    return f"{number:.0f}" if number >= 10 or number == int(number) else f"{number:.2g}"


def _colours(series: Mapping[str, Sequence[float]]) -> Sequence[str]:
    return [COLOURS[at % len(COLOURS)] for at in range(len(series))]


def _legend(series: Mapping[str, Sequence[float]], x: float, y: float) -> Iterator[str]:
    for colour, name in zip(_colours(series), series, strict=True):
        yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{colour}"/>'
        yield _text(x + 14, y, name)
        x += 30 + 6.6 * len(name)


def _text(x: float, y: float, words: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'


def _picture(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    inside = "\n".join((_text(0, 14, title), *parts))
    style = f'font-family="system-ui, sans-serif" font-size="{_FONT}" fill="{_WORDS}"'
    view = f'viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" height="{height:.0f}"'
    name = f"<title>{escape(title)}</title>"
    return f'<svg xmlns="http://www.w3.org/2000/svg" role="img" {view} {style}>\n{name}\n{inside}\n</svg>\n'
