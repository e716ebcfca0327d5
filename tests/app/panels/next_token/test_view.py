"""The candidates: when one can be taken instead, and why not."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QEnterEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QMenu, QPushButton
from pytestqt.qtbot import QtBot

from app.kit.theme import load_fonts
from app.models import Models
from app.panels.attention import AttentionView
from app.panels.next_token import NextTokenView
from engine.wire.commands import BeginBranch
from engine.wire.records import StopReason
from engine.wire.status import CaptureState, OpenedFile, SequenceInfo
from tests.app import samples

STEPS = 5


@pytest.fixture
def view(qtbot: QtBot, qapp: QApplication, models: Models) -> NextTokenView:
    load_fonts()
    view = NextTokenView(models)
    qtbot.addWidget(view)
    view.resize(300, 400)
    view.show()
    models.timeline.append([samples.step_record(step) for step in range(STEPS + 1)])
    return view


@pytest.mark.parametrize(
    ("stop", "step", "why"),
    [
        (None, None, ""),
        ("stopped", None, ""),  # another token makes it go on
        ("end of text", None, ""),
        ("cache full", None, "the cache is full"),
        ("context full", None, "the model's context is full"),
        ("cache full", 2, ""),  # it was not then; to rewind is said where a token is taken
    ],
)
def test_a_token_can_be_taken_unless_there_is_no_room_for_it_now(
    view: NextTokenView, models: Models, stop: StopReason | None, step: int | None, why: str
) -> None:
    info = SequenceInfo(0, "finished" if stop else "decode", samples.PROMPT + STEPS, samples.PROMPT, 11, stop)
    status = samples.status(STEPS)
    models.status.set(type(status)(status.model, status.cache, status.sampling, (info,), STEPS, False, None))
    models.selection.update(step=step)
    models.timeline.announce(again=True)
    assert view.state is not None
    assert view.state.refusal.startswith(why)
    assert bool(view.state.refusal) == bool(why)
    taken: list[BeginBranch] = []
    view.wants.connect(taken.append)
    candidate = samples.step_record(STEPS if step is None else step).sequences[0].candidates[1]
    view.candidates.picked.emit(candidate.token_id)
    assert taken == ([] if why else [BeginBranch(0, None, (candidate.token_id,))])
    tip = view.candidates.words(candidate.token_id)
    offer = "click: take this token instead" if step is None else "click: a branch begins here with this token"
    assert tip.splitlines()[-1].startswith(why or offer)


def test_nothing_can_be_typed_or_taken_while_the_engine_is_gone(view: NextTokenView, models: Models) -> None:
    models.status.set(samples.status(STEPS))
    models.timeline.announce(again=True)
    view.resize(300, 150)
    for loss in ("gone", ""):
        models.status.lose_engine(loss)
        assert view.state is not None
        assert view.state.refusal == ("the engine is gone: restart it" if loss else "")
        assert view.other.isEnabled() == view.continuation.isEnabled() == (not loss)


def test_another_text_can_be_typed_as_soon_as_a_file_is_gone_though_its_numbers_stay(
    view: NextTokenView, models: Models
) -> None:
    """As when the session of the file goes on, and its records come before the status."""
    view.resize(300, 150)
    live, file = samples.status(STEPS), OpenedFile(Path("s.json"), 1, "Tales", STEPS, "", "", "", "", has_rows=False)
    (other,) = [button for button in view.findChildren(QPushButton) if button.text() == "Other…"]
    for status, is_possible in ((live, True), (replace(live, opened=file), False), (live, True)):
        models.status.set(status)
        models.timeline.announce(again=True)
        assert other.isEnabled() == view.continuation.isEnabled() == is_possible


def test_before_the_first_step_nothing_is_promised_that_is_not_measured(qapp: QApplication, models: Models) -> None:
    status = samples.status()
    for kind in (NextTokenView, AttentionView):
        view = kind(models)
        for level, words in (("off", "not measured now"), ("rows", "with the first step")):
            models.status.set(replace(status, capture=CaptureState(level)))
            told = view.read()
            assert isinstance(told, str)
            assert words in told, kind
        view.deleteLater()


def test_what_is_said_of_the_choice_is_explained_to_who_points_at_it(view: NextTokenView, models: Models) -> None:
    models.timeline.announce(again=True)
    assert "as open as" in view.summary.text()
    view.summary.enterEvent(QEnterEvent(QPointF(), QPointF(), QPointF()))
    assert "perplexity" in view.summary.toolTip()


@pytest.mark.parametrize("height", range(90, 420, 7))
def test_rows_are_shown_whole_or_not_at_all(view: NextTokenView, models: Models, height: int) -> None:
    models.timeline.announce(again=True)
    view.resize(300, height)
    QApplication.processEvents()
    choices, wanted = view.candidates, [one.token_id for one in samples.candidates(STEPS)]
    assert list(choices.items()) == wanted

    def shown() -> list[object]:
        """The candidates of the rows that are seen, from top to bottom."""
        assert len(wanted[: choices.room_for()]) * choices.row_height <= max(choices.height(), 17) + 1e-6
        found = [choices.item_at(QPointF(5, y + 0.5)) for y in range(choices.height())]
        return list(dict.fromkeys(one for one in found if one is not None))

    assert shown() == wanted[: choices.room_for()]
    for _ in wanted:
        QTest.keyClick(choices, Qt.Key.Key_Down)
    assert shown() == wanted[-choices.room_for() :], "the keys reach those that do not fit"
    assert choices.pointed_item == wanted[-1]


def test_a_low_panel_offers_what_can_be_typed_in_its_menu(view: NextTokenView, models: Models) -> None:
    models.timeline.announce(again=True)
    view.resize(300, 150)
    QApplication.processEvents()
    assert not view.continuation.isVisible()
    assert view.other.isVisible()
    view.other.click()
    assert view.continuation.isVisible()
    assert not view.other.isVisible()
    view.continuation.edit.clearFocus()
    view.continuation.left.emit()
    assert not view.continuation.isVisible()
    menu = QMenu()
    view.add_to_menu(menu)
    offers = {action.text(): action for action in menu.actions() if action.text()}
    assert not offers["Draw with another seed"].isEnabled(), "greedy decoding draws nothing"
    offers["Type what comes next…"].trigger()
    assert view.continuation.isVisible()
