"""A comparison as one HTML page: both sides, verdict, pictures and every number. The page loads nothing from
elsewhere."""

from __future__ import annotations

import base64
import html
import platform
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

from msgspec import Struct
from PySide6.QtCore import QPoint, QSize
from PySide6.QtGui import QImage
from PySide6.QtWidgets import QFileDialog, QWidget

from app.draw.format import exact, token_label
from app.kit.files import png_bytes, save_text
from app.kit.plot import Plot
from app.kit.provenance import token_name
from app.kit.theme import Theme, current_theme
from app.kit.widgets import prose
from app.kit.words import place_words
from app.models import Models
from app.models.comparison import Comparison
from app.panels.compare import words
from app.panels.compare.maps import CompareMaps, CompareMapsState
from app.panels.compare.steps_view import TITLES, ComparedQuantity, compare_chart, largest_of_layers, value_of
from engine.wire.comparison import ComparedStep, ComparisonStarted
from engine.wire.records import Candidate

_MAPS, _PLOT = QSize(1500, 460), QSize(740, 220)
_SHARPNESS = 2
HEADS = (
    "step", "tokens", "KL(A ‖ B), nats", "max |Δ logit|", "top-1", "A says", "p", "B says", "p",
    "K error", "V error", "attention", "A ms", "B ms", "A bytes", "B bytes",
)  # fmt: skip


class Report(Struct, frozen=True):
    """The contents in words: `facts`; `pictures` as captions with PNG; `rows` of the table; `notes` as step, place and
    text of each bookmark."""

    facts: tuple[tuple[str, str], ...]
    pictures: tuple[tuple[str, bytes], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[tuple[str, str, str], ...] = ()


def ask_and_save(models: Models, shown: CompareMapsState | None, parent: QWidget) -> str:
    """Ask for a file and write the report; returns the message for the status line, empty if no file was chosen."""
    path, _ = QFileDialog.getSaveFileName(parent, "Save report", "comparison.html", "HTML page (*.html)")
    if not path or models.comparison.now is None:
        return ""
    report = report_of(models, models.comparison.now, shown)
    return save_text(page(report, current_theme()), Path(path)) or f"Report saved to {path}"


def report_of(models: Models, compared: ComparisonStarted, shown: CompareMapsState | None) -> Report:
    """The report of the present comparison, with the pictures that the panel shows."""
    comparison, model = models.comparison, models.status.model
    source = f"{model.source} · {model.fingerprint}" if model is not None else "–"
    place = words.departure_words(models, compared, comparison.first, comparison.num_scanned)
    facts = (
        ("A", words.side_words(compared.a, has_model=True)),
        ("B", words.side_words(compared.b, has_model=True)),
        ("Verdict", words.verdict(models, compared)[0]),
        ("Tolerance", words.tolerance_words(compared)),
        ("First departure", place.removesuffix("→").strip()),
        ("Model of A", source),
        ("Versions", versions()),
    )
    pictures = (*_map_pictures(models, compared, shown), *_plot_pictures(comparison, compared))
    rows = tuple(_row(models, compared, step) for step in comparison.steps)
    return Report(facts, pictures, rows, _notes(models))


def _notes(models: Models) -> tuple[tuple[str, str, str], ...]:
    """Every bookmark of the history."""
    return tuple((str(one.target.step), place_words(models, one.target), one.text) for one in models.bookmarks.all)


def versions() -> str:
    """The versions of this program and of the libraries that computed the numbers, as far as they are installed."""
    found = []
    for name in ("kvloupe", "torch", "transformers", "numpy"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return " · ".join([*found, f"Python {platform.python_version()}"])


# ---- numbers -----------------------------------------------------------------------------------------------------


def _row(models: Models, compared: ComparisonStarted, step: ComparedStep) -> tuple[str, ...]:
    (a_ms, a_bytes), (b_ms, b_bytes) = words.costs(models, compared, step)
    agrees = "–" if step.top1_agrees is None else "same" if step.top1_agrees else "another"
    keys, values = (largest_of_layers(array) for array in (step.keys, step.values))
    numbers = (keys, values, value_of(step, "attention"), a_ms, b_ms)
    return (
        str(step.step), str(step.num_tokens), _number(step.kl), _number(step.max_abs_logit_diff), agrees,
        *_first(step.top[0]), *_first(step.top[1]), *map(_number, numbers),
        *("–" if count is None else str(count) for count in (a_bytes, b_bytes)),
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None else exact(value)


def _first(top: Sequence[Candidate]) -> tuple[str, str]:
    return (token_label(top[0].text, 24), exact(top[0].prob)) if top else ("–", "–")


# ---- pictures ----------------------------------------------------------------------------------------------------


def _map_pictures(
    models: Models, compared: ComparisonStarted, shown: CompareMapsState | None
) -> list[tuple[str, bytes]]:
    """A, B and their difference side by side, whatever display the panel uses."""
    if shown is None:
        return []

    def name(position: int) -> str:
        return token_name(models, compared.seq_id, position)

    maps = CompareMaps(name)
    maps.resize(_MAPS)
    a, b = (words.caption(compared, side) for side in (compared.a, compared.b))
    maps.show_pictures(shown, a, b)
    content = _picture(maps)
    maps.deleteLater()
    return [(f"A, B, and A − B: {shown.subject}", content)]


def _plot_pictures(comparison: Comparison, compared: ComparisonStarted) -> list[tuple[str, bytes]]:
    quantities: tuple[ComparedQuantity, ...] = ("kl", "logits", "attention", "rows")
    found = []
    for quantity in quantities:
        chart, steps = compare_chart(comparison.steps, compared, quantity, None)
        if not steps:
            continue
        plot = Plot(TITLES[quantity])
        plot.resize(_PLOT)
        plot.show_chart(chart)
        found.append((f"{TITLES[quantity]}, by step", _picture(plot)))
        plot.deleteLater()
    return found


def _picture(widget: QWidget) -> bytes:
    """What a widget paints, on the background of a panel, in twice the resolution of a screen."""
    image = QImage(widget.size() * _SHARPNESS, QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(_SHARPNESS)
    image.fill(current_theme().color("panel"))
    widget.render(image, QPoint(), renderFlags=QWidget.RenderFlag.DrawChildren)
    return png_bytes(image)


# ---- the page ----------------------------------------------------------------------------------------------------


def page(report: Report, theme: Theme) -> str:
    """The HTML of the page. All texts are escaped, and the page may neither load nor run anything."""
    facts = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in report.facts)
    pictures = "\n".join(_figure(caption, content) for caption, content in report.pictures if content)
    heads = "".join(f"<th>{_text(head)}</th>" for head in HEADS)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in report.rows)
    notes = "\n".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in note)}</tr>" for note in report.notes)
    noted = f"<h2>Notes</h2>\n<div><table>\n<tbody>\n{notes}\n</tbody>\n</table></div>\n" if notes else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Two runs compared</title>
<style>
body {{ background: {theme.panel}; color: {theme.text}; font: 14px/1.5 Inter, system-ui, sans-serif; margin: 32px; }}
h1 {{ font-size: 20px; }} h2 {{ font-size: 15px; margin-top: 28px; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; }}
dt, figcaption {{ color: {theme.muted}; }} dd {{ margin: 0; overflow-wrap: anywhere; }}
figure {{ display: inline-block; margin: 0 14px 14px 0; }} img {{ max-width: 100%; }}
table {{ border-collapse: collapse; font: 12px "JetBrains Mono", Consolas, monospace; }}
th, td {{ text-align: right; padding: 2px 9px; border-bottom: 1px solid {theme.hairline}; white-space: pre; }}
th {{ color: {theme.muted}; }} div {{ overflow-x: auto; }}
</style>
</head>
<body>
<h1>Two runs compared</h1>
<dl>
{facts}
</dl>
<h2>Pictures</h2>
{pictures}
{noted}<h2>Every step</h2>
<div><table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
</body>
</html>
"""


def _figure(caption: str, content: bytes) -> str:
    data = base64.b64encode(content).decode("ascii")
    alt = html.escape(caption, quote=True)
    image = f'<img alt="{alt}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{_text(caption)}</figcaption></figure>"


def _text(text: str) -> str:
    return html.escape(prose(text))
