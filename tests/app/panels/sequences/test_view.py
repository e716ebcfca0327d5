from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPoint, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.models import Models
from app.panels.sequences.table import (
    BUTTON,
    BUTTONS,
    FORK,
    PAGES,
    REMOVE,
    SERVED,
    SHARED,
    STATE,
    STOP,
    TOKENS,
)
from app.panels.sequences.view import SequencesView
from app.shell import Shell
from engine.spec.cache import CacheSpec
from engine.spec.sampling import SamplingParams
from engine.wire import events
from engine.wire.commands import Fork, RemoveSequence, SetSampling, Step, StopSequence, SubmitPrompt
from engine.wire.events import Failed, Restarted, StateChanged, Submitted
from engine.wire.prefix_match import AllFullPagesHit, Converted, Forked, NothingFollows
from engine.wire.status import SequenceInfo
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.page_story import SPEC
from tests.app.panels.pages.test_view import Desk


@pytest.fixture
def desk(models: Models) -> Desk:
    desk = Desk(models)
    desk.take(desk.story.admit(0, list(range(13))))
    desk.take(desk.story.admit(1, [*range(10), 90, 91, 92]))
    return desk


@pytest.fixture
def view(qtbot: QtBot, desk: Desk) -> Iterator[SequencesView]:
    view = SequencesView(desk.models)
    view.resize(560, 220)
    view.show()
    QApplication.processEvents()
    yield view
    view.close()
    view.deleteLater()


def text(view: SequencesView, row: int, column: int) -> str:
    return str(view._model.index(row, column).data())


def button(view: SequencesView, row: int, name: str) -> QPoint:
    rect = view._table.visualRect(view._model.index(row, BUTTONS))
    return QPoint(rect.right() - 4 - BUTTON * 3 + BUTTON * (STOP, FORK, REMOVE).index(name) + 10, rect.center().y())


def test_rows_say_what_a_sequence_holds(view: SequencesView) -> None:
    assert view._model.rowCount() == 2
    assert (text(view, 1, 0), text(view, 1, TOKENS), text(view, 1, PAGES)) == ("1", "13", "4")
    assert (text(view, 1, SHARED), text(view, 1, SERVED)) == ("2", "8")
    assert text(view, 0, STATE) == "decode"


def test_the_reason_of_an_end_and_a_preemption_are_said(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    ended = replace(first, state="finished", stop="cache full")
    thrown_out = replace(second, state="waiting", num_tokens=0, num_preemptions=2)
    desk.models.status.set(replace(desk.models.status.now, sequences=(ended, thrown_out)))
    assert (text(view, 0, STATE), text(view, 1, STATE)) == ("cache full", "preempted")


def test_only_what_has_not_ended_can_be_stopped(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    ended = replace(first, state="finished", stop="end of text")
    desk.models.status.set(replace(desk.models.status.now, sequences=(ended, second)))
    assert view._detail.text() == "1 of 2 unfinished"
    for seq_id, can_stop in ((0, False), (1, True), (0, False)):
        desk.models.selection.update(seq_id=seq_id)
        assert [action.isEnabled() for action in view._table.actions()] == [can_stop, True, True]
    assert [action.text() for action in view._table.actions()] == ["Stop", "Fork", "Remove"]


def test_without_pages_their_numbers_are_not_made_up(desk: Desk, view: SequencesView) -> None:
    plain = tuple(replace(info, why_not_reused=None) for info in desk.story.infos())
    desk.models.status.set(replace(desk.models.status.now, cache=CacheSpec(), sequences=plain))
    assert text(view, 1, SHARED) == "–"
    assert "choose Paged" in view._why.text()


def test_a_click_selects_the_sequence(desk: Desk, view: SequencesView) -> None:
    rect = view._table.visualRect(view._model.index(1, STATE))
    QTest.mouseClick(view._table.viewport(), Qt.MouseButton.LeftButton, pos=rect.center())
    assert desk.models.selection.now.seq_id == 1
    desk.models.selection.update(seq_id=0)
    assert view._table.currentIndex().row() == 0


def test_each_row_has_its_buttons(desk: Desk, view: SequencesView, qtbot: QtBot) -> None:
    for name, signal in ((STOP, view.stopped), (FORK, view.forked), (REMOVE, view.removed)):
        with qtbot.waitSignal(signal, timeout=1000) as caught:
            QTest.mouseClick(view._table.viewport(), Qt.MouseButton.LeftButton, pos=button(view, 1, name))
        assert caught.args == [1]


def test_a_finished_sequence_cannot_be_stopped(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    desk.models.status.set(
        replace(desk.models.status.now, sequences=(replace(first, state="finished", stop="stopped"), second))
    )
    told: list[int] = []
    view.stopped.connect(told.append)
    QTest.mouseClick(view._table.viewport(), Qt.MouseButton.LeftButton, pos=button(view, 0, STOP))
    assert told == []


def test_why_not_reused_names_both_tokens_and_the_page_border(desk: Desk, view: SequencesView) -> None:
    desk.models.selection.update(seq_id=1)
    assert view._why.text() == (
        "seq 1 · Token 10 differs: “·w90” here, “·w10” in the cache. "
        "10 equal tokens, 8 served: pages of 4. Lost to the page border: 2."
    )


REASONS = [
    (NothingFollows(0), "0 tokens served: no page in the cache begins like this prompt."),
    (NothingFollows(8), "8 tokens served: no cached page continues this prefix after token 7."),
    (AllFullPagesHit(3), "The last 3 were computed: they fill no page of 4"),
    (AllFullPagesHit(4), "the last token of a prompt is never served"),
    ("recurrent layers keep a state", "No prefix can be shared: recurrent layers keep a state."),
    (Forked(0), "Forked from seq 0: 2 of its 4 pages are shared"),
    (Converted(), "they came with the change of the cache mode"),
]


def test_every_other_reason_in_words(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    desk.models.selection.update(seq_id=1)
    for why, words in REASONS:
        assert words not in view._why.text(), why
        info = replace(second, why_not_reused=why)
        desk.models.status.set(replace(desk.models.status.now, sequences=(first, info)))
        assert words in view._why.text(), why


def test_where_no_reason_is_known_nothing_is_said(desk: Desk, view: SequencesView) -> None:
    first, second = desk.story.infos()
    desk.models.selection.update(seq_id=1)
    assert view._why.text()
    info = replace(second, why_not_reused=None)
    desk.models.status.set(replace(desk.models.status.now, sequences=(first, info)))
    assert view._why.text() == ""


# ---- through the window ------------------------------------------------------------------------------------------


class ManyEngine(FakeEngine):
    """Adds, forks and removes sequences; a silent one between two commands stays as it is."""

    def _answer(self, command: Any) -> None:
        known = self.status.sequences
        match command:
            case SubmitPrompt(alone=True):
                self.next_step = 0
                self.emit(Restarted(reply_to=command.id))
                self._set((SequenceInfo(0, "waiting", 0, samples.PROMPT, None, None),))
                self.emit(Submitted(0, *samples.prompt_tokens(), reply_to=command.id))
                self._prefill(0)
            case SubmitPrompt(alone=False):
                info = self._add(0, command.prompt.sampling or SamplingParams())
                self.emit(Submitted(info.seq_id, *samples.prompt_tokens(), reply_to=command.id))
                if command.num_steps:
                    self._prefill(info.seq_id)
            case Fork(parent, step):
                count = samples.PROMPT if step is None else samples.PROMPT - 1
                info = self._add(count, SamplingParams())
                at = 0 if step is None else step
                self.emit(events.Forked(parent, info.seq_id, at, count, "copied the rows", reply_to=command.id))
            case SetSampling(sampling, seq_id):
                self._set(tuple(replace(s, sampling=sampling) if s.seq_id == seq_id else s for s in known))
            case Step():
                self._prefill(known[-1].seq_id)
            case RemoveSequence(seq_id):
                self._set(tuple(s for s in known if s.seq_id != seq_id))
            case _:
                super()._answer(command)  # type: ignore[arg-type]

    def _add(self, num_tokens: int, sampling: SamplingParams) -> SequenceInfo:
        new_id = max((s.seq_id for s in self.status.sequences), default=-1) + 1
        info = SequenceInfo(new_id, "waiting", num_tokens, samples.PROMPT, None, None, sampling=sampling)
        self._set((*self.status.sequences, info))
        return info

    def _prefill(self, seq_id: int) -> None:
        known = self.status.sequences
        self.emit(replace(samples.step_record(0, seq_id=seq_id, cache=SPEC), step=self.next_step))
        self.next_step += 1
        self._set(
            tuple(replace(s, state="decode", num_tokens=samples.PROMPT) if s.seq_id == seq_id else s for s in known)
        )

    def _set(self, sequences: tuple[SequenceInfo, ...]) -> None:
        self.status = replace(self.status, sequences=sequences)
        self.emit(StateChanged(self.status))


@pytest.fixture
def engine() -> FakeEngine:
    return ManyEngine()


@pytest.fixture
def busy(shell: Shell, engine: FakeEngine) -> Shell:
    engine.loaded()
    turn(shell)
    shell.window.prompt.edit.set_text("Once upon a time")
    shell.window.actions_["prompt.send"].trigger()
    turn(shell)
    assert len(shell.models.timeline) == 1
    engine.sent.clear()
    return shell


def test_another_sequence_is_added_and_its_prompt_is_read(busy: Shell, engine: FakeEngine) -> None:
    busy.window.actions_["prompt.add"].trigger()
    turn(busy)
    (added,) = engine.of(SubmitPrompt)
    assert isinstance(added, SubmitPrompt)
    assert (added.alone, added.num_steps) == (False, 1)
    assert engine.of(Step) == [], "the engine reads a prompt that it has taken, and no other"
    assert busy.models.selection.now.seq_id == 1
    assert busy.models.timeline.num_tokens(0) == busy.models.timeline.num_tokens(1) == samples.PROMPT


def test_two_quick_additions_are_both_read_and_the_second_is_selected(busy: Shell, engine: FakeEngine) -> None:
    for _ in range(2):
        busy.window.actions_["prompt.add"].trigger()
    assert not busy.controller.is_settled
    turn(busy)
    assert [command.num_steps for command in engine.of(SubmitPrompt)] == [1, 1]  # type: ignore[attr-defined]
    assert busy.models.selection.now.seq_id == 2
    assert [busy.models.timeline.num_tokens(seq_id) for seq_id in range(3)] == [samples.PROMPT] * 3
    assert busy.controller.requests.sequences.is_empty


def test_a_refused_prompt_steps_nothing(busy: Shell, engine: FakeEngine) -> None:
    engine.is_silent = True
    busy.window.actions_["prompt.add"].trigger()
    words = "The prompt has 9 tokens and the page pool holds 4: shorten the prompt."
    engine.emit(Failed(words, reply_to=engine.id_of(SubmitPrompt)))
    turn(busy)
    assert engine.of(Step) == []
    assert "page pool holds 4" in busy.models.status.failure
    assert busy.controller.requests.sequences.is_empty


def test_a_fork_stands_where_its_parent_stood(busy: Shell, engine: FakeEngine) -> None:
    busy.window.sequences.forked.emit(0)
    turn(busy)
    assert engine.of(Fork) == [Fork(0, None)]
    assert busy.models.selection.now.seq_id == 1
    ids = [token.token_id for token in busy.models.timeline.tokens(1)]
    assert ids == [token.token_id for token in busy.models.timeline.tokens(0)]
    assert engine.of(Step) == []
    assert "copied the rows" in busy.models.status.notice


def test_a_fork_while_looking_back_begins_at_the_step_that_is_shown(busy: Shell, engine: FakeEngine) -> None:
    busy.window.actions_["prompt.add"].trigger()  # so that there is a step to look back from
    turn(busy)
    busy.models.selection.update(seq_id=0, step=0)
    busy.window.sequences._on_fork()
    turn(busy)
    assert engine.of(Fork) == [Fork(0, 0)]
    assert (busy.models.selection.now.seq_id, busy.models.selection.now.step) == (2, None), "the fork is live"
    assert busy.models.timeline.num_tokens(2) == samples.PROMPT - 1


def test_a_fork_shows_its_parents_present_until_it_is_stepped(busy: Shell, engine: FakeEngine) -> None:
    busy.window.sequences.forked.emit(0)
    turn(busy)
    timeline = busy.models.timeline
    assert timeline.latest is not None
    assert timeline.latest.of(1) is None
    assert timeline.part(1) is timeline.latest.of(0)
    assert busy.window.next_token._list_model.rowCount() > 0
    busy.intents.on_step()
    turn(busy)
    assert timeline.part(1) is timeline.latest.of(1)
    assert timeline.part(1, 0) is timeline.part(0, 0)


def test_the_sampling_fields_are_those_of_the_selected_sequence(busy: Shell, engine: FakeEngine) -> None:
    prompt = busy.window.prompt
    warm = SamplingParams(temperature=0.8, top_k=40, seed=7)
    prompt._sampling._popup.temperature.setValue(0.8)
    prompt._sampling._popup.top_k.setValue(40)
    prompt._seed.setValue(7)
    turn(busy)
    assert engine.of(SetSampling)[-1] == SetSampling(warm, 0)
    busy.window.actions_["prompt.add"].trigger()
    turn(busy)
    prompt._seed.setValue(9)
    turn(busy)
    assert engine.of(SetSampling)[-1] == SetSampling(replace(warm, seed=9), 1)
    sent = len(engine.of(SetSampling))
    busy.models.selection.update(seq_id=0)
    assert prompt.sampling == warm
    busy.models.selection.update(seq_id=1)
    assert prompt.sampling == replace(warm, seed=9)
    assert len(engine.of(SetSampling)) == sent, "what is shown is no wish"


def test_an_older_answer_does_not_take_back_what_is_being_set(busy: Shell, engine: FakeEngine) -> None:
    prompt, before = busy.window.prompt, engine.status
    engine.is_silent = True
    prompt._seed.setValue(3)
    engine.emit(StateChanged(replace(before, step=5)))
    turn(busy)
    assert prompt.sampling.seed == 3
    busy.models.status.fail("Seed 3 is refused.")
    assert prompt.sampling.seed == 0


def test_stop_and_remove_reach_the_engine(busy: Shell, engine: FakeEngine) -> None:
    busy.window.sequences.stopped.emit(0)
    busy.window.sequences.forked.emit(0)
    turn(busy)
    busy.window.sequences.removed.emit(1)
    turn(busy)
    assert engine.of(StopSequence) == [StopSequence(0)]
    assert engine.of(RemoveSequence) == [RemoveSequence(1)]
    assert busy.models.selection.now.seq_id == 0


def test_what_an_engine_that_is_gone_said_last_is_not_called_of_now(view: SequencesView, desk: Desk) -> None:
    assert (view.provenance_text, view._provenance.kind) == ("engine state", "live cache")
    desk.models.status.lose_engine("gone")
    assert (view.provenance_text, view._provenance.kind) == ("engine gone · last state", "past")
    desk.models.status.lose_engine("")
    assert view.provenance_text == "engine state"
