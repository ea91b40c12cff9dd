"""Grouped bars as SVG, on white, without a plotting library."""

from __future__ import annotations

import math
import re
from typing import NamedTuple
from xml.sax.saxutils import escape

_COLOURS = ("#2563eb", "#f59e0b", "#059669", "#dc2626", "#7c3aed", "#0891b2")
_INK, _GRID, _AXIS = "#1f2937", "#e5e7eb", "#6b7280"
_LEFT, _RIGHT, _TOP, _BOTTOM, _PLOT_HEIGHT = 76, 24, 104, 56, 260
_BAR, _GAP, _GROUP_GAP = 34, 4, 28
_HALO = ' stroke="#ffffff" stroke-width="3" paint-order="stroke"'  # keeps a label readable on a line


class Chart(NamedTuple):
    title: str
    subtitle: str
    x_label: str
    y_label: str
    categories: tuple[str, ...]
    series: dict[str, tuple[float | None, ...]]  # None: not measured
    baseline: float | None = None  # a line to compare with


def _ticks(largest: float) -> list[float]:
    """Round steps from 0 to at least the largest value."""
    if largest <= 0.0:
        return [0.0, 1.0]
    raw = largest / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw)
    return [step * i for i in range(math.ceil(largest / step - 1e-9) + 1)]


def number(value: float) -> str:
    """Three digits or so, never in exponents."""
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.3g}" if value >= 0.001 or value == 0 else f"{value:.6f}"


def _text(x: float, y: float, text: str, size: float = 12, anchor: str = "start", more: str = "") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{_INK}" text-anchor="{anchor}"{more}>'
        f"{escape(text)}</text>"
    )


def _line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1, more: str = "") -> str:
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}" '
        f'stroke-width="{width}"{more}/>'
    )


def _rect(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{colour}"/>'


def _legend(names: list[str]) -> list[str]:
    parts, x = [], 24.0
    for name, colour in zip(names, _COLOURS):
        parts += [_rect(x, 68, 12, 12, colour), _text(x + 18, 78, name)]
        x += 42 + 7 * len(name)
    return parts


def _group_width(bars: int) -> float:
    return bars * _BAR + (bars - 1) * _GAP + _GROUP_GAP


def _bars(chart: Chart, top_value: float, bottom: float) -> list[str]:
    parts, group = [], _group_width(len(chart.series))
    for place, category in enumerate(chart.categories):
        start = _LEFT + place * group + _GROUP_GAP / 2
        for index, values in enumerate(chart.series.values()):
            x, value = start + index * (_BAR + _GAP), values[place]
            height = 0.0 if value is None else _PLOT_HEIGHT * value / top_value
            if value is not None:
                parts.append(_rect(x, bottom - height, _BAR, height, _COLOURS[index]))
            label = "-" if value is None else number(value)
            parts.append(_text(x + _BAR / 2, bottom - height - 4, label, 10.5, "middle", _HALO))
        parts.append(_text(start + (group - _GROUP_GAP) / 2, bottom + 18, category, 12, "middle"))
    return parts


def draw(chart: Chart) -> str:
    """The SVG text of a chart."""
    known = [value for values in chart.series.values() for value in values if value is not None]
    ticks = _ticks(max([*known, chart.baseline or 0.0]))
    plot_width = _group_width(len(chart.series)) * len(chart.categories)
    words = max(len(chart.title) * 10.5, len(chart.subtitle) * 6.6, sum(42 + 7 * len(name) for name in chart.series))
    width, height = max(_LEFT + plot_width + _RIGHT, words + 48), _TOP + _PLOT_HEIGHT + _BOTTOM
    bottom, right = _TOP + _PLOT_HEIGHT, _LEFT + plot_width

    def level(value: float) -> float:
        return bottom - _PLOT_HEIGHT * value / ticks[-1]

    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="Helvetica, Arial, sans-serif">',
        _rect(0, 0, width, height, "#ffffff"),
        _text(24, 32, chart.title, 18, more=' font-weight="bold"'),
        _text(24, 54, chart.subtitle),
        *_legend(list(chart.series)),
    ]
    for tick in ticks:
        parts.append(_line(_LEFT, level(tick), right, level(tick), _GRID if tick else _AXIS))
        parts.append(_text(_LEFT - 8, level(tick) + 4, number(tick), 11, "end"))
    if chart.baseline is not None:
        parts.append(
            _line(_LEFT, level(chart.baseline), right, level(chart.baseline), _AXIS, 1.5, ' stroke-dasharray="6 4"')
        )
    parts += _bars(chart, ticks[-1], bottom)
    middle = _TOP + _PLOT_HEIGHT / 2
    parts.append(_text(24, middle, chart.y_label, 12, "middle", f' transform="rotate(-90 24 {middle:.1f})"'))
    parts.append(_text(_LEFT + plot_width / 2, bottom + 42, chart.x_label, 12, "middle"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def grid(charts: list[Chart], columns: int) -> str:
    """Several charts in one SVG, in rows from left to right; the width of a column is that of its widest chart."""
    drawn = [draw(chart) for chart in charts]
    sizes = [tuple(int(n) for n in re.search(r'width="(\d+)" height="(\d+)"', text).groups()) for text in drawn]
    columns = max(1, min(columns, len(charts)))
    widths = [max((size[0] for size in sizes[column::columns]), default=0) for column in range(columns)]
    rows = [sizes[at : at + columns] for at in range(0, len(sizes), columns)]
    heights = [max(size[1] for size in row) for row in rows]
    width, height = sum(widths), sum(heights)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}">',
        _rect(0, 0, width, height, "#ffffff"),
    ]
    for place, text in enumerate(drawn):
        row, column = divmod(place, columns)
        at = f'x="{sum(widths[:column])}" y="{sum(heights[:row])}"'
        parts.append(text.rstrip("\n").replace("<svg ", f"<svg {at} ", 1))
    return "\n".join([*parts, "</svg>"]) + "\n"
