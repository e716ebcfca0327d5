"""What if and codec damage in the window, with the real engine behind it; and what they send and refuse."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.kit.measurement import RebuildOffer
from app.panels.damage.view import CHANNELS, EFFECT, PLAN, DamageView
from app.panels.what_if.draw import pairs
from app.panels.what_if.view import WhatIfView
from app.shell import Shell
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_preset
from engine.spec.tuning import tuned
from engine.wire.commands import MapDamage, SetCache, WhatIf
from engine.wire.events import Failed
from engine.wire.measurements import Shift, WhatIfAnswer
from engine.wire.records import Candidate
from tests.app.conftest import turn
from tests.app.driver import Driver
from tests.app.fake_engine import FakeEngine

TEXT = "Once upon a time there was a little girl named Lily. She loved to play with her red ball in the park, and"


def panels(shell: Shell) -> tuple[WhatIfView, DamageView]:
    what_if, damage = shell.window.panels["what_if"], shell.window.panels["damage"]
    assert isinstance(what_if, WhatIfView)
    assert isinstance(damage, DamageView)
    return what_if, damage


class Desk(Driver):
    """A window on the bundled model, a prompt sent and read."""

    def __init__(self, qapp: QApplication) -> None:
        super().__init__(qapp, prompt=TEXT)
        self.window.arrange("truth")
        self.window.actions_["prompt.send"].trigger()
        self.until(lambda: len(self.models.timeline) > 0 and self.controller.is_settled)
        self.what_if, self.damage = panels(self.shell)

    def answered(self) -> WhatIfAnswer:
        """The answer to what the knobs say now."""
        wanted = self.what_if.knobs.spec()
        self.until(lambda: (a := self.models.measurements.what_if.answer) is not None and a.request.cache == wanted)
        found = self.models.measurements.what_if.answer
        assert found is not None
        return found


@pytest.fixture
def desk(qtbot: QtBot, qapp: QApplication) -> Iterator[Desk]:
    desk = Desk(qapp)
    yield desk
    desk.close()


def test_dragging_shows_the_real_next_token_and_leaves_the_live_cache_alone(desk: Desk) -> None:
    bytes_before = desk.models.timeline.latest.num_bytes.stored  # type: ignore[union-attr]
    first = desk.answered()
    assert first.kept_ratio < 1
    assert first.step == desk.models.timeline.latest.step  # type: ignore[union-attr]
    knobs = desk.what_if.knobs
    knobs.choose("h2o", "exact")
    few = desk.answered()
    knobs.knobs["budget"].track.setValue(1)  # two rows
    fewer = desk.answered()
    assert fewer.kept_ratio < few.kept_ratio
    assert fewer.kv_bytes < few.kv_bytes < few.exact_bytes
    assert fewer.kl > 0
    assert desk.what_if.state is not None
    assert desk.what_if.state.answer == fewer
    shown = pairs(fewer, 12)
    assert shown
    assert [p.rank_before for p in shown] == sorted(p.rank_before for p in shown)
    assert any(p.rank_after == 1 for p in shown)
    by_id = {c.token_id: c.prob for c in fewer.before}
    for shift in fewer.shifts:
        if shift.token_id in by_id:
            assert shift.prob_before == pytest.approx(by_id[shift.token_id], rel=1e-4)
    assert "recomputed" in desk.what_if._provenance.accessibleName()
    assert "untouched" in desk.what_if.foot.text()
    # a new step is asked about anew
    desk.shell.window.actions_["run.step"].trigger()
    desk.until(
        lambda: (
            desk.models.measurements.what_if.answer is not None and desk.models.measurements.what_if.answer.step == 1
        )
    )
    assert desk.models.timeline.latest.num_bytes.stored > bytes_before  # type: ignore[union-attr]
    # looking back: nothing of the live step is shown
    desk.models.selection.update(step=0)
    assert "looking back" in desk.what_if._empty.text()
    desk.models.selection.update(step=None)
    # what was tried becomes the live cache
    desk.what_if.use.click()
    desk.until(lambda: desk.models.status.now.cache == knobs.spec())  # type: ignore[union-attr]
    desk.until(lambda: desk.models.measurements.what_if.refusal)
    assert "dropped rows" in desk.what_if.refusal.text()
    assert desk.models.status.failure == ""


def test_a_cache_that_dropped_rows_says_so_once_and_offers_to_rebuild_them(desk: Desk) -> None:
    models, damage, evicted = desk.models, desk.damage, desk.shell.window.panels["evicted"]
    before = {name: dock.geometry() for name, dock in desk.shell.window.docks.docks.items()}
    desk.shell.intents.on_cache_chosen(tuned(cache_preset("h2o").spec, budget=8))
    desk.until(lambda: models.status.now.cache.budget == 8)  # type: ignore[union-attr]
    desk.until(lambda: models.measurements.what_if.refusal and models.measurements.damage.refusal)
    assert "the change of mode before step 1 may have" in evicted._empty.text()
    evicted.measure()  # type: ignore[attr-defined]
    desk.until(lambda: models.measurements.regret.refusal)
    assert models.status.failure == ""
    assert {name: dock.geometry() for name, dock in desk.shell.window.docks.docks.items()} == before
    offers = [offer for offer in desk.shell.window.findChildren(RebuildOffer) if offer.isVisible()]
    assert len(offers) == 3
    assert "dropped rows" in damage.why.text()
    models.status.fail("There is no such folder: choose another.")
    damage.offer.setFocus()
    damage.offer.click()
    both = models.measurements.damage, models.measurements.what_if
    desk.until(lambda: all(each.answer is not None for each in both), may_fail=True)  # what was told stays
    found, answer = models.measurements.damage.answer, models.measurements.what_if.answer
    assert found is not None
    assert answer is not None
    assert models.status.failure.startswith("There is no such folder")  # nobody asked for anything else
    assert found.request.rebuild
    assert answer.request.rebuild
    assert found.num_rows == models.timeline.num_tokens(0) - 1
    assert damage._provenance.accessibleName().startswith("on rebuilt rows")
    assert "rebuilt from the tokens" in desk.what_if.foot.text()
    assert not [offer for offer in desk.shell.window.findChildren(RebuildOffer) if offer.isVisible()]
    desk.shell.intents.on_cache_chosen(CacheSpec())
    desk.until(lambda: models.status.now.cache == CacheSpec())  # type: ignore[union-attr]
    assert not models.measurements.is_rebuilding


def test_the_damage_is_measured_when_at_rest_read_and_planned(desk: Desk) -> None:
    desk.damage.controls.choose("int8")
    desk.until(lambda: desk.models.measurements.damage.answer is not None and desk.damage.state.found is not None)
    found = desk.models.measurements.damage.answer
    assert found is not None
    assert found.num_rows == desk.models.timeline.num_tokens(0) - 1
    assert desk.damage.maps.limit > 0
    plot = desk.damage.maps.plots()[1]
    place = QPointF(plot.left() + plot.width() * 0.5, plot.top() + plot.height() * 0.6).toPoint()
    QTest.mouseMove(desk.damage.maps, place)
    QTest.mouseClick(desk.damage.maps, Qt.MouseButton.LeftButton, pos=place)
    now = desk.models.selection.now
    assert now.tensor == "values"
    assert now.position is not None
    index = found.layers.index(now.layer)
    value = float(found.values.by_token[index, now.kv_head, now.position // found.tokens_per_column])
    shown = desk.damage.maps.item_at(QPointF(place))
    assert shown is not None
    assert shown[1].value == pytest.approx(value)
    for view in (CHANNELS, EFFECT, PLAN):
        desk.damage.choose(view)
        assert not desk.damage.grab().toImage().isNull()
    desk.damage.plan.set_share(0.5)
    desk.damage.ask_plan()
    desk.until(
        lambda: desk.models.measurements.damage.answer is not None and desk.models.measurements.damage.answer.plan
    )
    found = desk.models.measurements.damage.answer
    assert found is not None
    assert found.plan_bytes is not None
    assert found.plan_bytes <= desk.damage.plan.budget_bytes
    desk.damage.plan.applied.emit()
    desk.until(lambda: desk.models.status.now.cache.codec == found.plan_codec)  # type: ignore[union-attr]


# ---- against an engine that answers when told to -----------------------------------------------------------------


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
    return panels(shell)[0]


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
    assert view._provenance.accessibleName() == "estimate"
    engine.answer(reply(first, 0, " dog"))
    turn(shell)
    assert view._provenance.accessibleName() == "recomputed"
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
    engine.emit(Failed("too old", reply_to=before))
    turn(shell)
    assert view.refusal.text() == "", "a refusal of an older question is none of this one"
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
