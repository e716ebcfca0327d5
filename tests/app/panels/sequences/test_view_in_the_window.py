"""Several sequences in the window: added, forked, sampled and removed."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from app.shell import Shell
from engine.spec.sampling import NEWEST_DRAWS, SamplingParams
from engine.wire import events
from engine.wire.commands import Fork, RemoveSequence, SetSampling, Step, StopSequence, SubmitPrompt
from engine.wire.events import Failed, Restarted, StateChanged, Submitted
from engine.wire.records import SequenceForked
from engine.wire.status import SequenceInfo
from tests.app import samples
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.page_story import SPEC


class ManyEngine(FakeEngine):
    """A fake engine that adds, forks and removes sequences."""

    _changes: tuple[SequenceForked, ...] = ()  # since the newest step

    def respond(self, command: Any) -> None:
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
                self._changes = (*self._changes, SequenceForked(info.seq_id, parent, at, count))
                self.emit(events.ForkMade(parent, info.seq_id, at, count, "copied the rows", reply_to=command.id))
            case SetSampling(sampling, seq_id):
                self._set(tuple(replace(s, sampling=sampling) if s.seq_id == seq_id else s for s in known))
            case Step():
                self._prefill(known[-1].seq_id)
            case RemoveSequence(seq_id):
                self._set(tuple(s for s in known if s.seq_id != seq_id))
            case _:
                super().respond(command)  # type: ignore[arg-type]

    def _add(self, num_tokens: int, sampling: SamplingParams) -> SequenceInfo:
        new_id = max((s.seq_id for s in self.status.sequences), default=-1) + 1
        info = SequenceInfo(new_id, "waiting", num_tokens, samples.PROMPT, None, None, sampling=sampling)
        self._set((*self.status.sequences, info))
        return info

    def _prefill(self, seq_id: int) -> None:
        known = self.status.sequences
        record = samples.step_record(0, seq_id=seq_id, cache=SPEC)
        self.emit(replace(record, step=self.next_step, changes=self._changes))
        self.next_step, self._changes = self.next_step + 1, ()
        self._set(
            tuple(replace(s, phase="decode", num_tokens=samples.PROMPT) if s.seq_id == seq_id else s for s in known)
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
    assert not busy.controller.is_idle
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
    busy.window.sequences.wants.emit(Fork(0))
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
    busy.window.sequences.fork.click()
    turn(busy)
    assert engine.of(Fork) == [Fork(0, 0)]
    assert (busy.models.selection.now.seq_id, busy.models.selection.now.step) == (2, None), "the fork is live"
    assert busy.models.timeline.num_tokens(2) == samples.PROMPT - 1


def test_a_fork_shows_its_parents_present_until_it_is_stepped(busy: Shell, engine: FakeEngine) -> None:
    busy.window.sequences.wants.emit(Fork(0))
    turn(busy)
    timeline = busy.models.timeline
    assert timeline.latest is not None
    assert timeline.latest.of(1) is None
    assert timeline.part(1) is timeline.latest.of(0)
    assert busy.window.next_token.candidates.items()
    busy.intents.on_step()
    turn(busy)
    assert timeline.part(1) is timeline.latest.of(1)
    assert timeline.part(1, 0) is timeline.part(0, 0)


def test_the_sampling_fields_are_those_of_the_selected_sequence(busy: Shell, engine: FakeEngine) -> None:
    prompt = busy.window.prompt
    warm = SamplingParams(temperature=0.8, top_k=40, seed=7, draws=NEWEST_DRAWS)
    prompt.sampling_button.popup.temperature.setValue(0.8)
    prompt.sampling_button.popup.top_k.setValue(40)
    prompt.seed.setValue(7)
    turn(busy)
    assert engine.of(SetSampling)[-1] == SetSampling(warm, 0)
    busy.window.actions_["prompt.add"].trigger()
    turn(busy)
    prompt.seed.setValue(9)
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
    prompt.seed.setValue(3)
    engine.emit(StateChanged(replace(before, step=5)))
    turn(busy)
    assert prompt.sampling.seed == 3
    busy.models.status.fail("Seed 3 is refused.")
    assert prompt.sampling.seed == 0


def test_stop_and_remove_reach_the_engine(busy: Shell, engine: FakeEngine) -> None:
    busy.window.sequences.wants.emit(StopSequence(0))
    busy.window.sequences.wants.emit(Fork(0))
    turn(busy)
    busy.window.sequences.wants.emit(RemoveSequence(1))
    turn(busy)
    assert engine.of(StopSequence) == [StopSequence(0)]
    assert engine.of(RemoveSequence) == [RemoveSequence(1)]
    assert busy.models.selection.now.seq_id == 0
