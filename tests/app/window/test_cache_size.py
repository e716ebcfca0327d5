"""The size of the cache in the top bar: of the step that is shown, as a share of exact in lossy modes, and never in the
way of the selectors."""

from __future__ import annotations

from itertools import pairwise

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QRect
from PySide6.QtGui import QFontMetricsF
from PySide6.QtWidgets import QApplication, QWidget

from app.draw.format import byte_size
from app.kit.theme import font_text
from app.shell import Shell
from engine.spec.cache import cache_preset
from engine.wire.events import StateChanged
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.window.test_transport import place


def lossy(shell: Shell, times: int = 4) -> int:
    """A further step in a mode that stores a part of what exact rows take; returns its number."""
    last = shell.models.timeline.latest
    assert last is not None
    held = replace(last.num_bytes, exact=times * last.num_bytes.stored)
    shell.models.timeline.append([replace(last, step=last.step + 1, num_bytes=held)])
    shell.models.timeline.announce()  # as often as texts can be read
    QApplication.processEvents()
    return last.step + 1


def test_an_exact_mode_says_its_size_alone_and_another_its_share(running: Shell) -> None:
    running.window.resize(1600, 1000)  # room for all of it
    turn(running)
    size, timeline = running.window.top.size_of_cache, running.models.timeline
    assert size.text == byte_size(timeline.records[-1].num_bytes.stored)
    lossy(running)
    stored = byte_size(timeline.records[-1].num_bytes.stored)
    assert size.text == f"{stored} · 25.0 % of exact"
    assert f"{4 * timeline.records[-1].num_bytes.stored:,}: 25.0 % of exact" in size.toolTip()
    assert size.text in size.accessibleName()


def test_the_size_at_a_step_of_another_mode_is_not_that_of_the_mode_beside_it(
    running: Shell, engine: FakeEngine
) -> None:
    running.window.resize(1600, 1000)
    size, timeline = running.window.top.size_of_cache, running.models.timeline
    engine.emit(StateChanged(samples.status(20, cache=cache_preset("int8").spec)))
    running.models.selection.update(step=4)
    turn(running)
    assert size.text == f"{byte_size(timeline.records[4].num_bytes.stored)} in Growing"
    assert size.toolTip()
    running.models.selection.update(step=None)
    turn(running)
    assert "Growing" not in size.text


def test_nothing_is_said_before_there_is_a_cache(shell: Shell, engine: FakeEngine) -> None:
    assert (shell.window.top.size_of_cache.text, shell.window.top.size_of_cache.width()) == ("", 0)
    engine.loaded()
    turn(shell)
    assert shell.window.top.size_of_cache.text == ""


@pytest.mark.parametrize("width", [1280, 1600, 2560])
@pytest.mark.parametrize("is_lossy", [False, True])
def test_it_is_whole_or_absent_and_moves_nothing(
    running: Shell, engine: FakeEngine, width: int, is_lossy: bool
) -> None:
    running.window.resize(width, 800)
    turn(running)
    at = place(running)
    top = running.window.top
    for spec in ("growing", "transformers-quantized"):
        status = samples.status(20, cache=cache_preset(spec).spec)
        assert status.model is not None
        engine.emit(
            StateChanged(replace(status, model=replace(status.model, name="a model with a long name of its own")))
        )
        turn(running)
        if is_lossy:
            lossy(running)
        turn(running)
        parts: list[QWidget] = [top.model, top.cache, top.size_of_cache]
        places = [QRect(part.mapTo(top, QPoint(0, 0)), part.size()) for part in parts]
        assert place(running) == at
        assert all(a.right() < b.left() for a, b in pairwise(places))
        assert places[-1].right() < at[0]
        assert places[0].width() >= 96
        assert places[1].width() >= top.cache.minimumSizeHint().width(), "the mode is whole"
        shown = top.size_of_cache
        assert shown.width() >= QFontMetricsF(font_text(12.5)).horizontalAdvance(shown.text), "never cut"
        if width >= 1280:
            assert shown.text.endswith("of exact" if is_lossy else "iB")
