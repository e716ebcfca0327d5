"""What if, on the real engine and against one that answers when told to: what is sent, shown and refused."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication

from app.panels.what_if import WhatIfView, highest
from app.shell import Shell
from engine.wire.commands import SetCache
from engine.wire.events import Failed
from engine.wire.measurements import MapDamage, Shift, WhatIf, WhatIfAnswer
from engine.wire.records import Candidate
from tests.app.conftest import turn
from tests.app.fake_engine import FakeEngine
from tests.app.panels.desk import PromptedDesk


def test_dragging_shows_the_real_next_token_and_leaves_the_live_cache_alone(prompted: PromptedDesk) -> None:
    bytes_before = prompted.models.timeline.latest.num_bytes.stored  # type: ignore[union-attr]
    first = prompted.answered()
    assert first.kept_ratio < 1
    assert first.step == prompted.models.timeline.latest.step  # type: ignore[union-attr]
    knobs = prompted.what_if.knobs
    knobs.choose("h2o", "exact")
    few = prompted.answered()
    knobs.knobs["budget"].track.setValue(1)  # two rows
    fewer = prompted.answered()
    assert fewer.kept_ratio < few.kept_ratio
    assert fewer.kv_bytes < few.kv_bytes < few.exact_bytes
    assert fewer.kl > 0
    assert prompted.what_if.state is not None
    assert prompted.what_if.state.answer == fewer
    shown = highest(fewer, 12)
    assert shown
    assert [p.rank_before for p in shown] == sorted(p.rank_before for p in shown)
    assert any(p.rank_after == 0 for p in shown)
    by_id = {c.token_id: c.prob for c in fewer.before}
    for shift in fewer.shifts:
        if shift.token_id in by_id:
            assert shift.prob_before == pytest.approx(by_id[shift.token_id], rel=1e-4)
    assert "recomputed" in prompted.what_if.provenance_label.accessibleName()
    assert prompted.what_if.foot.text().endswith(" ms")
    # a new step is asked about anew
    prompted.shell.window.actions_["run.step"].trigger()
    prompted.until(
        lambda: (
            prompted.models.measurements.what_if.answer is not None
            and prompted.models.measurements.what_if.answer.step == 1
        )
    )
    assert prompted.models.timeline.latest.num_bytes.stored > bytes_before  # type: ignore[union-attr]
    # looking back: nothing of the live step is shown
    prompted.models.selection.update(step=0)
    assert "looking back" in prompted.what_if.empty.text()
    prompted.models.selection.update(step=None)
    # what was tried becomes the live cache
    prompted.what_if.use.click()
    prompted.until(lambda: prompted.models.status.now.cache == knobs.spec())  # type: ignore[union-attr]
    # rows that it evicted are computed anew for the next trial, without a question
    prompted.until(lambda: getattr(prompted.models.measurements.what_if.answer, "is_rebuilt", False))
    assert prompted.models.status.failure == ""


def shift(token_id: int, text: str) -> Shift:
    return Shift(token_id, text, 0.6, 0.4, 0, 0)


def reply(question: WhatIf, step: int, text: str = " cat") -> WhatIfAnswer:
    listed = (Candidate(7, text, -1.0, 0.4, 0.0),)
    return WhatIfAnswer(question, step, 0.25, 1.5, False, listed, listed, 0.5, 4096, 1024, 3.0, "", (shift(7, text),))


def faded(view: WhatIfView) -> set[bool]:
    """Whether the bars of the other cache are faded."""
    return {row.bars[1].is_faded for row in view.bars.table.rows}


def begun(shell: Shell, engine: FakeEngine) -> WhatIfView:
    engine.loaded()
    turn(shell)
    shell.window.arrange("truth")
    shell.window.prompt.edit.set_text("Once upon a time")
    shell.window.prompt.submit()
    turn(shell)
    panel = shell.window.panels["what_if"]
    assert isinstance(panel, WhatIfView)
    return panel


def test_a_narrow_panel_needs_no_more_height_than_a_wide_one(shell: Shell) -> None:
    """In a column of panels one that grows as the column shrinks would cover its neighbour."""
    view = WhatIfView(shell.models)
    view.show()
    least = set()
    for width in (600, 440, 395, 300):
        view.resize(width, 300)
        QApplication.processEvents()
        least.add(view.minimumSizeHint().toTuple())
    assert len(least) == 1


def test_one_question_is_out_and_the_newest_value_follows(shell: Shell, engine: FakeEngine) -> None:
    view = begun(shell, engine)
    assert len(engine.of(WhatIf)) == 1
    knob = view.knobs.knobs["window"]
    for value in (9, 3, 2):
        knob.field.setValue(value)
    turn(shell)
    assert len(engine.of(WhatIf)) == 1, "while one is being answered, nothing else is sent"
    (first,) = engine.of(WhatIf)
    assert isinstance(first, WhatIf)
    engine.answer(reply(first, 0))
    turn(shell)
    second = engine.of(WhatIf)[-1]
    assert isinstance(second, WhatIf)
    assert len(engine.of(WhatIf)) == 2
    assert second.cache.retention.window == 2
    assert faded(view) == {True}, "the old answer does not pass for the new one"
    engine.answer(reply(second, 0, " dog"))
    turn(shell)
    assert len(engine.of(WhatIf)) == 2
    assert faded(view) == {False}
    assert view.bars.table.rows[0].name == "·dog"


def test_an_estimate_gives_way_to_the_run(shell: Shell, engine: FakeEngine) -> None:
    view = begun(shell, engine)
    (first,) = engine.of(WhatIf)
    assert isinstance(first, WhatIf)
    engine.answer(replace(reply(first, 0), is_estimate=True))
    turn(shell)
    assert view.provenance_label.accessibleName() == "estimate"
    engine.answer(reply(first, 0, " dog"))
    turn(shell)
    assert view.provenance_label.accessibleName() == "recomputed"
    assert view.bars.table.rows[0].name == "·dog"
    assert len(engine.of(WhatIf)) == 1


def test_what_cannot_be_is_said_in_the_panel_and_nowhere_else(shell: Shell, engine: FakeEngine) -> None:
    view = begun(shell, engine)
    (first,) = engine.of(WhatIf)
    assert isinstance(first, WhatIf)
    engine.answer(reply(first, 0))
    turn(shell)
    view.knobs.choose("h2o", "exact")
    view.knobs.knobs["sinks"].field.setValue(9)
    view.knobs.knobs["budget"].field.setValue(3)
    turn(shell)
    assert "cannot hold 9 sinks" in view.refusal.text()
    assert view.bars.table.rows == ()
    assert not view.use.isEnabled()
    view.knobs.knobs["sinks"].field.setValue(0)
    turn(shell)
    before = engine.id_of(WhatIf)
    engine.emit(Failed("This one was given up.", reply_to=before))
    turn(shell)
    assert view.refusal.text() == "", "the newest value has been asked about since"
    last = engine.of(WhatIf)[-1]
    assert isinstance(last, WhatIf)
    assert last.cache.retention.budget == 3
    engine.emit(Failed("This rule reads attention.", reply_to=engine.id_of(WhatIf)))
    turn(shell)
    assert view.refusal.text() == "This rule reads attention."
    assert shell.models.status.failure == ""
    count = len(engine.of(WhatIf))
    turn(shell)
    assert len(engine.of(WhatIf)) == count, "what was refused is not asked again"


def test_a_panel_that_is_not_seen_asks_nothing(shell: Shell, engine: FakeEngine) -> None:
    view = begun(shell, engine)
    (first,) = engine.of(WhatIf)
    assert isinstance(first, WhatIf)
    engine.answer(reply(first, 0))
    turn(shell)
    shell.window.arrange("inspect")
    turn(shell)
    view.knobs.knobs["window"].field.setValue(2)
    turn(shell)
    assert len(engine.of(WhatIf)) == 1
    assert engine.of(MapDamage) == []
    assert engine.of(SetCache) == []
