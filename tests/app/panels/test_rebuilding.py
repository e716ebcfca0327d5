"""Panels that measure on a cache that dropped rows: exact ones are rebuilt without a question, and each says so."""

from __future__ import annotations

from engine.spec.cache import cache_preset, tuned
from engine.wire.commands import SetCache
from tests.app.panels.desk import PromptedDesk


def test_rows_that_the_cache_dropped_are_rebuilt_without_a_question(prompted: PromptedDesk) -> None:
    models, damage, evicted = prompted.models, prompted.damage, prompted.shell.window.panels["evicted"]
    prompted.shell.intents.send(SetCache(tuned(cache_preset("h2o").spec, budget=8)))
    prompted.until(lambda: models.status.now.cache.retention.budget == 8)  # type: ignore[union-attr]
    all_three = models.measurements.what_if, models.measurements.damage, models.measurements.regret
    evicted.measure()  # type: ignore[attr-defined]
    prompted.until(lambda: all(each.answer is not None for each in all_three))
    assert [each.answer.is_rebuilt for each in all_three] == [True] * 3  # type: ignore[union-attr]
    assert damage.why.text() == prompted.what_if.refusal.text() == models.status.failure == ""
    assert damage.provenance_label.accessibleName().startswith("on rebuilt rows")
    assert "rebuilt from the tokens" in prompted.what_if.foot.text()
