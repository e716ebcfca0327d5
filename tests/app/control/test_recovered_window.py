"""A session whose window was killed is opened again with the real engine: the window shows what it showed before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QPushButton

from app.control.recovering import Recovering
from app.kit.theme import current_theme
from app.models.saved_view import SavedView, read_view, view_text
from engine.saved.journal import JournalFolder
from engine.saved.session import SavedSession, entries_of
from engine.spec.cache import cache_preset
from engine.spec.condition import Breakpoint
from engine.spec.edit import Rows, Zero
from tests.app.driver import Driver

STOP = "entropy > 2"


CACHE = cache_preset("int8").spec


class Told(Struct, frozen=True):
    """What the window says of the token that comes next, and the steps that the timeline marks in red."""

    bars: tuple[object, ...]
    summary: str
    source: str
    chosen_next: str | None
    red: tuple[int, ...]


def told(driver: Driver) -> Told:
    view, chips = driver.window.next_token, driver.window.tokens.state
    assert view.state is not None
    assert chips is not None
    return Told(view.state.rows, view.state.summary, view.provenance_label.text, chips.pending, red_marks(driver))


def red_marks(driver: Driver) -> tuple[int, ...]:
    """The steps with a red block above them."""
    bar, nodes = driver.window.timeline, driver.models.timeline.nodes
    painted, red = bar.grab().toImage(), current_theme().color("bad")
    ratio = painted.devicePixelRatio()
    at = [round(bar.track.x_of(index) * ratio) for index in range(len(nodes))]
    return tuple(node for node, x in zip(nodes, at, strict=True) if painted.pixelColor(x, round(3 * ratio)) == red)


def place_of(driver: Driver) -> tuple[object, ...]:
    """Where the window looks, and how its panels stand."""
    return driver.models.selection.now, driver.models.viewport.now.head_place, driver.window.docks.arrangement


def look_elsewhere(driver: Driver) -> tuple[object, ...]:
    """Look at a cell of an earlier step, with the head pinned, another scale of attention and other panels in front;
    returns the place when it is recorded."""
    driver.window.arrange("inspect")
    scales = driver.window.attention.segments
    QTest.mouseClick(scales, Qt.MouseButton.LeftButton, pos=scales.rects()[1].center().toPoint())
    driver.window.docks.bring_forward(("timings", "notes"))
    driver.models.selection.update(step=driver.models.timeline.steps[2], layer=3, kv_head=1, lens="values")
    driver.models.selection.update(position=4, channel=5)
    driver.models.viewport.update(head_place=(1, 2, "keys"))
    found = place_of(driver)
    driver.until(lambda: read_view(driver.controller.saving.session.view) == view_now(driver))
    assert {"timings", "notes"} <= set(driver.window.docks.arrangement.fronts)
    return found


def view_now(driver: Driver) -> SavedView | None:
    return read_view(view_text(driver.models, driver.window.docks.arrangement))


def undone_and_redone(driver: Driver) -> tuple[Told, Told]:
    """What is told without the newest edit, and with it again."""
    found = []
    for key, count in (("edit.undo", 0), ("edit.redo", 1)):
        driver.window.actions_[key].trigger()
        driver.wait_until_idle(lambda count=count: len(driver.models.edits.on_path()) == count)  # type: ignore[misc]
        found.append(told(driver))
    return found[0], found[1]


def recover(driver: Driver, session: SavedSession, folder: JournalFolder) -> None:
    """Take up a session as a killed window leaves it."""
    journal = folder.new()
    journal.append(*entries_of(session))
    journal.close()
    recovering = Recovering(folder, driver.models, driver.controller, "", driver.shell)
    driver.window.recovery.accepted.connect(recovering.on_accepted)
    recovering.look()
    driver.until(lambda: driver.models.recovery.offered is not None)
    driver.window.recovery.accepted.emit()
    driver.wait_until_idle(lambda: folder.ended() and not driver.models.status.has_file)


@pytest.fixture
def driver(qapp: QApplication) -> Iterator[Driver]:
    """A window on a prompt, a run that a stop halted, and an edit that moves the next token."""
    driver = Driver(qapp)
    driver.send("Once upon a time there was a cat")
    driver.intents.on_breakpoints_changed((Breakpoint(1, STOP),))
    driver.window.actions_["run.run"].trigger()
    driver.wait_until_idle(lambda: driver.models.breakpoints.hits)
    driver.intents.on_edited(Zero(0, Rows(1, 9)))
    driver.wait_until_idle(
        lambda: driver.models.edits.made and driver.models.edits.kl(driver.models.edits.made[0].step)
    )
    yield driver
    driver.close()


def test_a_recovered_window_tells_of_the_next_token_and_of_its_stops_what_it_told(
    driver: Driver, tmp_path: Path
) -> None:
    folder = JournalFolder(tmp_path)
    before = told(driver)
    undone, redone = undone_and_redone(driver)
    assert before == redone
    assert before.bars != undone.bars, "the edit moves the next token"
    assert (before.source, undone.source) == ("after the edit", "recorded")
    assert set(driver.models.breakpoints.hits) <= set(before.red)
    place = look_elsewhere(driver)
    session = driver.controller.saving.session
    driver.window.arrange("learn")
    driver.window.attention.choose("linear")
    driver.models.selection.update(step=None, layer=0, kv_head=0, position=None)
    driver.intents.on_breakpoints_changed(())
    recover(driver, session, folder)
    driver.until(lambda: red_marks(driver))
    assert place_of(driver) == place
    assert driver.window.attention.segments.choice == "head"
    driver.models.selection.update(step=None)
    driver.wait_until_idle(lambda: driver.window.tokens.state is not None)
    assert told(driver) == before
    (other,) = [one for one in driver.window.next_token.findChildren(QPushButton) if one.text() == "Other…"]
    assert other.isEnabled(), "another text can be typed at once"
    assert undone_and_redone(driver) == (undone, redone)
    bar = driver.window.timeline
    assert f"breakpoint: {STOP} · entropy" in bar.tip_at(
        QPoint(round(bar.track.x_of(driver.models.timeline.nodes.index(before.red[-1]))), 0)
    )


@pytest.mark.parametrize("is_left", [False, True])
def test_a_recovered_window_tells_the_bytes_of_the_mode_that_was_chosen_last(
    driver: Driver, tmp_path: Path, is_left: bool
) -> None:
    newest = driver.models.history.live
    assert newest is not None
    driver.choose(CACHE)
    held = driver.models.timeline.num_bytes(None)
    if is_left:  # the change is in a node of its own then
        for step in (newest - 1, newest + 1):
            driver.look_at(step)
            driver.window.actions_["run.go_on"].trigger()
            driver.wait_until_idle(lambda step=step: driver.models.history.live == step)  # type: ignore[misc]
    recover(driver, driver.controller.saving.session, JournalFolder(tmp_path))
    again = driver.models.timeline.num_bytes(None)
    assert driver.models.status.now.cache == CACHE
    assert held is not None
    assert again is not None
    assert (again.stored, again.exact) == (held.stored, held.exact)
