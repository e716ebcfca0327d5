"""The timeline in pixels: what was forced is marked, however many tokens were."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QPointF, Qt
from PySide6.QtGui import QImage, QPainter, QPolygonF
from pytestqt.qtbot import QtBot

from app.draw.format import milliseconds
from app.kit.theme import current_theme
from app.models import Models
from app.panels.timeline import TimelineBar
from engine.wire.records import StepRecord, Timings
from tests.app import samples

COUNT = 40


def forced(record: StepRecord, is_forced: bool) -> StepRecord:
    return replace(record, sequences=(replace(record.sequences[0], forced=is_forced),))


def pixels_of(image: QImage) -> npt.NDArray[np.int16]:
    own = image.convertToFormat(QImage.Format.Format_RGB32)
    words = np.frombuffer(own.constBits(), np.uint8).reshape(own.height(), own.bytesPerLine() // 4, 4)
    return words[:, :, :3].astype(np.int16)


def test_a_tick_grows_when_the_surprisal_of_its_prompt_comes(qtbot: QtBot, models: Models) -> None:
    """As it would stand there had it come with the step, in the newest step or in one before."""
    records = samples.story(4)
    part = records[0].sequences[0]
    late = replace(records[0], sequences=(replace(part, surprisal=(None,) * len(part.token_ids)),))
    bar = TimelineBar(models)
    qtbot.addWidget(bar)
    bar.show()
    for count in (1, 5):
        models.timeline.clear()
        models.timeline.append([late, *records[1:count]])
        without = bar.grab().toImage()
        models.timeline.fill(0, 0, 1, tuple(value or 0.0 for value in part.surprisal[1:]))
        found = bar.grab().toImage()
        models.timeline.clear()
        models.timeline.append(records[:count])
        assert found == bar.grab().toImage()
        assert found != without


@pytest.mark.parametrize("first", [1_000, 12_000, 123_000])
def test_the_number_of_the_newest_step_ends_inside_the_bar(qtbot: QtBot, models: Models, first: int) -> None:
    steps = range(first, first + 5)
    models.timeline.append(
        [replace(record, step=step, parent=step - 1) for record, step in zip(samples.story(4), steps, strict=True)]
    )
    bar = TimelineBar(models)
    qtbot.addWidget(bar)
    bar.resize(800, bar.height())
    bar.show()
    edge = pixels_of(bar.grab().toImage())[2:, -3:]
    assert not np.ptp(edge, axis=(0, 1)).any()


@pytest.mark.parametrize("width", [104 + COUNT, 800])  # marks at every pixel, and marks apart
def test_marks_of_forced_tokens_are_triangles(qtbot: QtBot, models: Models, width: int) -> None:
    records = samples.story(COUNT)
    models.timeline.append([forced(record, record.step % 3 > 0) for record in records])
    bar = TimelineBar(models)
    qtbot.addWidget(bar)
    bar.resize(width, bar.height())
    bar.show()
    found = bar.grab().toImage()
    models.timeline.clear()
    models.timeline.append([forced(record, False) for record in records])
    wanted = bar.grab().toImage()
    assert found != wanted
    painter = QPainter(wanted)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    painter.setPen(Qt.PenStyle.NoPen)
    painter.setBrush(current_theme().color("selected"))
    for index, record in enumerate(records):
        if record.phase == "decode" and record.step % 3 > 0:
            x = 52 + round(index * (width - 104) / (len(records) - 1))
            painter.drawPolygon(QPolygonF([QPointF(x, 27), QPointF(x + 4.5, 34), QPointF(x - 4.5, 34)]))
    painter.end()
    assert np.abs(pixels_of(found) - pixels_of(wanted)).max() <= 1


def test_a_tip_tells_how_long_a_step_took_if_anybody_measured(qtbot: QtBot, models: Models) -> None:
    bar = TimelineBar(models)
    qtbot.addWidget(bar)
    bar.show()
    first, other = samples.step_record(0), samples.step_record(1)
    models.timeline.append([first, replace(other, timings=Timings(0.0, 0.0, 0.0, 0.0))])
    bar.grab()
    heads = {bar.tip_at(QPoint(x, 20)).splitlines()[0] for x in range(bar.width())}
    took_ms = milliseconds(first.timings.total_ms)
    assert heads == {f"step 0 · {first.phase} · {took_ms}", f"step 1 · {other.phase}"}
