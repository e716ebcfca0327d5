"""Why a row was evicted, in the real window: the rule and the heads; facts that are not recorded are not claimed."""

from __future__ import annotations

from app.panels.evicted import WHY
from engine.spec.cache import CacheSpec
from engine.spec.retention import RetentionSpec
from engine.wire.commands import SetCache
from tests.app.panels.desk import Desk, click


def test_the_panel_names_the_rule_and_the_scores_of_an_evicted_row(desk: Desk) -> None:
    desk.run(CacheSpec(retention=RetentionSpec("h2o", budget=12, sinks=1)))
    view = desk.evicted
    view.choose(WHY)
    assert view.headline.text().startswith("The latest: step 6 evicted")
    assert view.rule.text() == "H2O: Keeps the tokens that received most attention, and the latest."
    assert "Zhang et al., 2023" in view.formula.text()
    drop = desk.models.evictions.latest(desk.models.selection.now.seq_id, 0)[0]
    position = int(drop.eviction.positions[0])
    desk.models.selection.update(position=position, layer=drop.eviction.layer, kv_head=drop.eviction.kv_head or 0)
    assert f"({position}) was evicted from" in view.headline.text()
    assert "of 24 heads" in view.heads.accessibleDescription()
    assert "lowest kept" in view.plot.words.text()
    assert "protected" in view.plot.words.text()
    view.grab()
    place = view.heads.cell_of(2, 1).center()
    click(view.heads, place.x(), place.y())
    assert (desk.models.selection.now.layer, desk.models.selection.now.kv_head) == (2, 1)
    desk.models.selection.update(position=0)
    assert "is held by every head" in view.headline.text(), "a sink"


def test_a_dropped_row_is_picked_from_its_dot(desk: Desk) -> None:
    desk.run(CacheSpec(retention=RetentionSpec("knorm", budget=12)), steps=2)
    desk.evicted.choose(WHY)
    desk.models.selection.update(step=0)
    canvas = desk.evicted.plot.canvas
    assert canvas.chart is not None
    place = canvas.frame.point_of(*canvas.chart.points[0])
    click(canvas.viewport(), place.x(), place.y())
    now = desk.models.selection.now
    (drop,) = [
        d for d in desk.models.evictions.latest(now.seq_id, 0) if (d.eviction.layer, d.eviction.kv_head) == (0, 0)
    ]
    assert now.position in drop.eviction.positions


def test_what_the_records_do_not_tell_is_not_claimed(desk: Desk) -> None:
    """A change of mode drops rows without a step: the panel must not say that they are held."""
    desk.run(CacheSpec())
    desk.evicted.choose(WHY)
    assert "Growing keeps every row" in desk.evicted.empty.text()
    spec = CacheSpec(retention=RetentionSpec("knorm", budget=12))
    desk.intents.send(SetCache(spec))
    desk.until(lambda: desk.models.status.now.cache == spec)
    desk.intents.on_step()
    desk.until(lambda: desk.controller.is_idle and len(desk.models.timeline) == 8)
    desk.models.selection.update(position=3)
    desk.wait_until_idle()
    text = desk.evicted.headline.text()
    assert "change of mode" in text or "at least" in text
