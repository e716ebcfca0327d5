from __future__ import annotations

from itertools import pairwise

import pytest
from PySide6.QtCore import QPoint, Qt
from PySide6.QtGui import QColor, QImage, QPainter
from pytestqt.qtbot import QtBot

from app.kit.theme import Theme, current_theme
from app.panels.tokens import PADDING, ROW_HEIGHT, SurprisalKey, TokenCanvas, surprisal_color
from app.shell import Shell
from engine.wire.commands import BeginBranch, Force
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.mouse import turn_wheel

STEPS = 400


@pytest.fixture
def desk(shell: Shell, engine: FakeEngine) -> Shell:
    """A text that is longer than its panel, at its end."""
    engine.loaded()
    turn(shell)
    shell.window.actions_["prompt.send"].trigger()
    turn(shell)
    shell.intents.on_run_to(STEPS)
    turn(shell)
    assert shell.window.tokens.canvas.verticalScrollBar().maximum() > 20 * ROW_HEIGHT
    assert is_at_end(shell.window.tokens.canvas)
    return shell


def is_at_end(strip: TokenCanvas) -> bool:
    bar = strip.verticalScrollBar()
    return bar.value() == bar.maximum()


def scroll(strip: TokenCanvas, notches: int) -> None:
    """Turn the wheel over the strip, up for positive notches."""
    turn_wheel(strip.viewport(), strip.viewport().rect().center(), notches)


def test_the_newest_is_followed_after_a_rewind_and_a_forced_token(desk: Shell, engine: FakeEngine) -> None:
    strip = desk.window.tokens.canvas
    desk.models.selection.update(step=100)
    turn(desk)
    assert is_at_end(strip)
    desk.window.actions_["run.go_on"].trigger()
    turn(desk)
    desk.intents.send(BeginBranch(0, None, (42,)))
    turn(desk)
    assert engine.of(Force)
    desk.intents.on_run_to(60)
    turn(desk)
    assert is_at_end(strip)
    assert not strip.follower.button.isVisible()


def test_the_newest_is_followed_in_every_layout(desk: Shell) -> None:
    strip = desk.window.tokens.canvas
    for layout in ("learn", "truth", "inspect"):
        desk.window.arrange(layout)
        turn(desk)
        assert is_at_end(strip), layout
        before = strip.verticalScrollBar().maximum()
        desk.intents.on_run_to(30)
        turn(desk)
        assert strip.verticalScrollBar().maximum() > before, layout
        assert is_at_end(strip), layout


def test_a_reader_who_scrolled_away_stays_and_finds_back(desk: Shell, qtbot: QtBot) -> None:
    strip = desk.window.tokens.canvas
    scroll(strip, 5)
    here = strip.verticalScrollBar().value()
    assert here < strip.verticalScrollBar().maximum()
    assert strip.follower.button.isVisible()
    desk.intents.on_run_to(30)
    turn(desk)
    assert strip.verticalScrollBar().value() == here
    qtbot.mouseClick(strip.follower.button, Qt.MouseButton.LeftButton)
    assert is_at_end(strip)
    assert not strip.follower.button.isVisible()
    desk.intents.on_run_to(30)
    turn(desk)
    assert is_at_end(strip)


def test_a_wheel_back_to_the_end_follows_again(desk: Shell) -> None:
    strip = desk.window.tokens.canvas
    scroll(strip, 5)
    assert not strip.follower.is_following
    scroll(strip, -9)
    assert strip.follower.is_following


def test_a_token_brought_into_view_from_elsewhere_stays_there(desk: Shell) -> None:
    strip = desk.window.tokens.canvas
    desk.models.selection.update(position=3)
    turn(desk)
    assert strip.verticalScrollBar().value() == 0
    desk.intents.on_run_to(30)
    turn(desk)
    assert strip.verticalScrollBar().value() == 0
    assert strip.follower.button.isVisible()


def test_a_reader_keeps_the_place_in_another_width(desk: Shell) -> None:
    strip = desk.window.tokens.canvas
    strip.verticalScrollBar().setValue(5 * ROW_HEIGHT)
    strip.follower.follow_if_at_end()
    first = strip.index_at(QPoint(PADDING, 0))
    assert first is not None
    desk.window.resize(1600, 1000)
    turn(desk)
    assert strip.index_at(strip.token_rect(first).center()) == first
    assert 0 <= strip.token_rect(first).top() < ROW_HEIGHT
    assert not strip.follower.is_following


def test_a_key_tells_what_the_colours_mean(desk: Shell) -> None:
    (key,) = desk.window.findChildren(SurprisalKey)
    assert key.isVisible()
    assert "0 to 7 nats" in key.accessibleName()
    shown = key.grab().toImage()
    row = [shown.pixelColor(x, shown.height() // 2) for x in range(shown.width())]
    ends = [row[0], next(before for before, color in pairwise(row) if color == current_theme().color("title_strip"))]
    for color, surprisal in zip(ends, (0.35, 7.0), strict=True):
        wanted = QColor(blended(current_theme(), surprisal))
        assert all(abs(a - b) <= 3 for a, b in zip(color.toTuple(), wanted.toTuple(), strict=True))
    assert surprisal_color(current_theme(), 0.2) is None
    assert surprisal_color(current_theme(), 7.0) == surprisal_color(current_theme(), 70.0)


def blended(theme: Theme, surprisal: float) -> str:
    """The colour of a token of that surprisal on the ground of the key."""
    top, ground = surprisal_color(theme, surprisal), theme.color("title_strip")
    assert top is not None
    image = QImage(1, 1, QImage.Format.Format_RGB32)
    image.fill(ground)
    painter = QPainter(image)
    painter.fillRect(0, 0, 1, 1, top)
    painter.end()
    return image.pixelColor(0, 0).name()


def test_a_click_behind_the_last_chip_of_a_row_selects_nothing(desk: Shell, qtbot: QtBot) -> None:
    strip = desk.window.tokens.canvas
    strip.verticalScrollBar().setValue(0)
    rects = [strip.token_rect(index) for index in range(len(strip.chips.tokens))]
    ends = [a for a, b in pairwise(rects) if b.top() > a.top() and strip.viewport().width() - a.right() > 6]
    behind = QPoint(ends[0].right() + 4, ends[0].center().y())
    desk.models.selection.update(position=0)
    qtbot.mouseClick(strip.viewport(), Qt.MouseButton.LeftButton, pos=behind)
    assert desk.models.selection.now.position is None


def test_the_way_back_to_the_newest_covers_no_token(desk: Shell, qtbot: QtBot) -> None:
    strip = desk.window.tokens.canvas
    whole = strip.viewport().height()
    scroll(strip, 6)
    turn(desk)
    button = strip.follower.button
    assert button.isVisible()
    assert strip.rect().contains(button.geometry())
    assert not button.geometry().intersects(strip.viewport().geometry())
    qtbot.mouseClick(button, Qt.MouseButton.LeftButton)
    turn(desk)
    assert is_at_end(strip)
    assert not button.isVisible()
    assert strip.viewport().height() == whole
