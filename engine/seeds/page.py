"""The measured tables as one self-contained HTML file: no script, no font, no address; all text is escaped."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby

from engine.seeds.hugging_face import logit_lines, shape_lines, speed_lines
from engine.seeds.models import SeedModels
from engine.seeds.modular import allocated_lines, max_lines
from engine.seeds.published import FieldValue, SeedLine, TableKind
from engine.seeds.tutorial import length_lines, memory_lines


@dataclass(frozen=True)
class Reproduction:
    """A table: its title, and the function that measures it."""

    title: str
    lines: Callable[[SeedModels], Iterator[SeedLine]]


TABLES: Mapping[TableKind, Reproduction] = {
    "memory": Reproduction("Memory of three models at three lengths", memory_lines),
    "max": Reproduction("MAX's parameters, of the example with four dimensions", max_lines),
    "allocated": Reproduction("GPT-2's cache, allocated and never used", allocated_lines),
    "shapes": Reproduction("Shapes of input and cache, step by step", shape_lines),
    "logits": Reproduction("From logits to the next token, by hand", logit_lines),
    "lengths": Reproduction("With a cache and without, as texts grow", length_lines),
    "speed": Reproduction("200 tokens without a cache, with a dynamic one, with a static one", speed_lines),
}


def seed_lines(models: SeedModels, tables: tuple[TableKind, ...]) -> Iterator[SeedLine]:
    """The lines of these tables, each as soon as it is measured."""
    for name in tables:
        yield from TABLES[name].lines(models)


WIDTH, HEIGHT, MARGIN = 640, 300, 56
COLORS = ("#b4530a", "#1d63c4", "#3a7d34", "#7a3e9d")

STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #1c1f24; }
h1 { font-size: 1.5rem } h2 { font-size: 1.15rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100% } caption { text-align: left; color: #5a616b; padding: .2rem 0 }
th, td { text-align: left; vertical-align: top; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid #dde1e6 }
td.number { font-variant-numeric: tabular-nums } .no { color: #b3261e; font-weight: 600 } .yes { color: #2b6e2f }
small { color: #5a616b } svg { max-width: 100%; height: auto }
"""


def page(lines: Sequence[SeedLine]) -> str:
    """The whole HTML file."""
    names = [name for name in TABLES if any(line.table == name for line in lines)]
    sections = [section(TABLES[name].title, [line for line in lines if line.table == name]) for name in names]
    agreed = sum(line.agrees is True for line in lines)
    differ = [line for line in lines if line.agrees is False]
    summary = (
        f"{len(lines)} figures: {agreed} come out as in the documents, {len(differ)} do not, and the others are "
        "of another machine or of other weights, so they need not."
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>KV cache tables, measured here</title><style>{STYLE}</style></head><body>\n"
        f"<h1>The tables of the KV cache documents, measured on this machine</h1>\n<p>{escape(summary)}</p>\n"
        + "\n".join(sections)
        + "\n</body></html>\n"
    )


def section(title: str, lines: Sequence[SeedLine]) -> str:
    """The HTML of one table, with its curves."""
    documents = ", ".join(dict.fromkeys(line.document for line in lines))
    parts = [
        part
        for heading, group in groupby(lines, key=lambda line: line.heading)
        for part in (head(heading), *map(row, group))
    ]
    caption, rows = f"<caption>{escape(documents)}</caption>", "\n".join(parts)
    return f"<h2>{escape(title)}</h2>\n{curve(lines)}<table>{caption}\n{rows}\n</table>"


def head(heading: str) -> str:
    """The HTML of the head of the columns; `heading` says where the figures of the document come from."""
    names = ("figure", heading, "measured", "", "agrees", "on, and notes")
    return f"<tr>{''.join(f'<th>{escape(name)}</th>' for name in names)}</tr>"


def row(line: SeedLine) -> str:
    """The HTML of one line."""
    verdict = {True: '<td class="yes">yes</td>', False: '<td class="no">no</td>', None: "<td>–</td>"}[line.agrees]
    words = "; ".join(part for part in (line.note, line.on) if part)
    return (
        f'<tr><td>{escape(line.item)}</td><td class="number">{escape(shown(line.published))}</td>'
        f'<td class="number">{escape(shown(line.measured))}</td><td>{escape(line.unit)}</td>{verdict}'
        f"<td><small>{escape(words)}</small></td></tr>"
    )


def shown(value: FieldValue) -> str:
    """A figure in words; a dash if there is none."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ", ".join(f"{number:.5g}" for number in value)
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int) else value


# ---- curves ------------------------------------------------------------------------------------------------------


def curve(lines: Iterable[SeedLine]) -> str:
    """The series among the lines as one SVG with logarithmic axes; empty if there are none."""
    series: dict[str, list[tuple[float, float]]] = {}
    for line in lines:
        if line.series and line.at is not None and isinstance(line.measured, int | float) and line.measured > 0:
            series.setdefault(line.series, []).append((line.at, float(line.measured)))
    if not series:
        return ""
    points = [point for each in series.values() for point in each]
    x, y = LogAxis([p[0] for p in points], MARGIN, WIDTH - 110), LogAxis([p[1] for p in points], HEIGHT - MARGIN, 20)
    parts = [axes(x, y)]
    for number, (name, each) in enumerate(series.items()):
        color = COLORS[number % len(COLORS)]
        path = " ".join(f"{x.place(at):.1f},{y.place(value):.1f}" for at, value in each)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>')
        for at, value in each:
            parts.append(f'<circle cx="{x.place(at):.1f}" cy="{y.place(value):.1f}" r="3" fill="{color}"/>')
        last = each[-1]
        where = f'x="{x.place(last[0]) + 8:.1f}" y="{y.place(last[1]) + 4:.1f}"'
        parts.append(f'<text {where} fill="{color}" font-size="13">{escape(name)}</text>')
    label = "milliseconds of a step over the tokens before it"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="{label}">{"".join(parts)}</svg>\n<p><small>{label}; both axes are logarithmic</small></p>\n'
    )


class LogAxis:
    """A logarithmic axis from `start` to `end`, in the units of the picture."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self.low, self.high = min(values), max(values)
        self._start, self._end = start, end

    def place(self, value: float) -> float:
        """The position of a value on the axis."""
        span = math.log(self.high / self.low) or 1.0
        return self._start + (self._end - self._start) * math.log(value / self.low) / span


def axes(x: LogAxis, y: LogAxis) -> str:
    """The two axes with their first and last values."""
    bottom = HEIGHT - MARGIN + 12
    lines = f'<path d="M{MARGIN} 10V{bottom}H{WIDTH - 100}" fill="none" stroke="#9aa1ab"/>'
    texts = [
        (x.place(x.low), bottom + 18, "middle", f"{x.low:,.0f}"),
        (x.place(x.high), bottom + 18, "middle", f"{x.high:,.0f} tokens"),
        (MARGIN - 6, y.place(y.low) + 4, "end", f"{y.low:.3g}"),
        (MARGIN - 6, y.place(y.high) + 4, "end", f"{y.high:.3g} ms"),
    ]
    return lines + "".join(
        f'<text x="{left:.1f}" y="{top:.1f}" text-anchor="{anchor}" font-size="12" fill="#5a616b">{text}</text>'
        for left, top, anchor, text in texts
    )
