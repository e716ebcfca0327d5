"""Panels that measure on a cache that dropped rows: each says so, and one click rebuilds them for all."""

from __future__ import annotations

from app.kit.measurement import RebuildOffer
from engine.spec.cache import CacheSpec
from engine.spec.presets import cache_preset
from engine.spec.tuning import tuned
from engine.wire.commands import SetCache
from tests.app.panels.desk import PromptedDesk


def test_a_cache_that_dropped_rows_says_so_once_and_offers_to_rebuild_them(prompted: PromptedDesk) -> None:
    models, damage, evicted = prompted.models, prompted.damage, prompted.shell.window.panels["evicted"]
    before = {name: dock.geometry() for name, dock in prompted.shell.window.docks.docks.items()}
    prompted.shell.intents.send(SetCache(tuned(cache_preset("h2o").spec, budget=8)))
    prompted.until(lambda: models.status.now.cache.budget == 8)  # type: ignore[union-attr]
    prompted.until(lambda: models.measurements.what_if.refusal and models.measurements.damage.refusal)
    assert "the change of mode after step 0 may have" in evicted._empty.text()
    evicted.measure()  # type: ignore[attr-defined]
    prompted.until(lambda: models.measurements.regret.refusal)
    assert models.status.failure == ""
    assert {name: dock.geometry() for name, dock in prompted.shell.window.docks.docks.items()} == before
    offers = [offer for offer in prompted.shell.window.findChildren(RebuildOffer) if offer.isVisible()]
    assert len(offers) == 3
    assert "dropped rows" in damage.why.text()
    models.status.fail("There is no such folder: choose another.")
    damage.offer.setFocus()
    damage.offer.click()
    both = models.measurements.damage, models.measurements.what_if
    prompted.until(lambda: all(each.answer is not None for each in both), may_fail=True)  # what was told stays
    found, answer = models.measurements.damage.answer, models.measurements.what_if.answer
    assert found is not None
    assert answer is not None
    assert models.status.failure.startswith("There is no such folder")  # nobody asked for anything else
    assert found.request.rebuild
    assert answer.request.rebuild
    assert found.num_rows == models.timeline.num_tokens(0) - 1
    assert damage._provenance.accessibleName().startswith("on rebuilt rows")
    assert "rebuilt from the tokens" in prompted.what_if.foot.text()
    assert not [offer for offer in prompted.shell.window.findChildren(RebuildOffer) if offer.isVisible()]
    prompted.shell.intents.send(SetCache(CacheSpec()))
    prompted.until(lambda: models.status.now.cache == CacheSpec())  # type: ignore[union-attr]
    assert not models.measurements.is_rebuilding
