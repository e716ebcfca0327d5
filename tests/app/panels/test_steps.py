"""Steps at which the cache holds less than the newest picture shows: a mode that was just changed, a sequence that
gave its pages up. No panel may fail there, nor call an old picture the live cache."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace
from pytestqt.exceptions import capture_exceptions

from app.draw.format import byte_size, thousands
from app.kit.provenance import source_of
from app.models import Models
from app.panels.next_token import TAKE
from engine.spec.cache import CacheSpec, cache_preset, tuned
from engine.spec.edit import Rows, Zero
from engine.spec.sampling import SamplingParams
from engine.wire.commands import BeginBranch, Force, Fork
from tests.app import samples
from tests.app.driver import Driver
from tests.app.found import texts_in
from tests.app.panels.test_lossy_modes import TEXT

SECOND = "The dog ran home."
PAGES = CacheSpec("paged", num_pages=8, page_size=8)


def chips(driver: Driver) -> dict[str, tuple[str, str]]:
    """What every visible panel says of its source, and of which kind that is."""
    window = driver.window
    panels = {"wall": window.wall, "head": window.head, "attention": window.attention, **window.panels}
    found = {}
    for name, panel in panels.items():
        label = getattr(panel, "provenance_label", None)
        if panel.isVisible() and label is not None and label.text:
            found[name] = (label.text, label.kind)
    return found


def preempted(driver: Driver) -> int:
    """Two sequences in a pool that holds one and a half: the `seq_id` of the one that gave its pages up."""
    driver.send(TEXT)
    driver.shell.intents.on_prompt_submitted(SECOND, SamplingParams(), alone=False)
    driver.wait_until_idle(lambda: driver.models.timeline.num_tokens(1) > 0)
    for _ in range(40):
        done = len(driver.models.timeline)
        driver.loop.send(Force(0, (40 + done,)))
        driver.window.actions_["run.step"].trigger()
        driver.wait_until_idle(lambda done=done: len(driver.models.timeline) > done)  # type: ignore[misc]
        status = driver.models.status.now
        assert status is not None
        waiting = [info for info in status.sequences if info.num_preemptions and not info.num_tokens]
        if waiting:
            return waiting[0].seq_id
    raise AssertionError("the pool never ran out")


@pytest.mark.parametrize("name", ["none", "allocated"])
def test_a_cache_that_was_just_given_up_is_no_live_cache(drive: Callable[..., Driver], name: str) -> None:
    driver = drive(CacheSpec())
    driver.send(TEXT)
    driver.steps(3)
    assert chips(driver)["wall"][1] == "live cache"
    with capture_exceptions() as raised:
        driver.choose(cache_preset(name).spec)
        driver.window.resize(1100, 760)
        driver.wait_until_idle()
    assert not raised
    told = "Nothing is held: no step has been computed in this cache mode yet."
    assert driver.window.wall.empty.text() == told
    assert driver.window.wall.empty_text == told
    assert driver.window.head.empty.text() == "This layer holds no K and V now."
    assert not driver.window.head.range.isVisible()
    assert driver.window.head.detail.text() == ""
    assert [panel for panel, (text, _) in chips(driver).items() if "live cache" in text] == []
    driver.steps(1)
    assert chips(driver)["wall"][0] == "recomputed"


def kv_words(driver: Driver) -> str:
    """What the status line says of the bytes of K and V."""
    return next(told for told in texts_in(driver.window.status) if told.startswith("KV "))


def test_after_a_change_of_mode_panels_tell_the_new_cache_or_say_that_theirs_is_old(
    drive: Callable[..., Driver],
) -> None:
    driver = drive(CacheSpec())
    models, window = driver.models, driver.window
    window.docks.docks["bytes"].raise_()
    driver.send(TEXT)
    driver.steps(8)
    record = models.timeline.latest
    assert record is not None
    assert kv_words(driver).startswith(f"KV {byte_size(record.num_bytes.stored)}")
    driver.choose(tuned(cache_preset("h2o").spec, budget=16, sinks=2))
    held = models.timeline.num_bytes(None)
    assert held is not None
    assert held.stored < record.num_bytes.stored / 2
    assert kv_words(driver).startswith(f"KV {byte_size(held.stored)}")
    assert f"{byte_size(held.stored)} stored" in models.status.notice
    assert thousands(held.stored) in window.panels["bytes"].facts.text()
    assert thousands(record.num_bytes.stored) not in window.panels["bytes"].facts.text()
    told = chips(driver)
    assert told["bytes"] == ("recorded", "recorded")
    for name in ("next_token", "inspector", "attention"):
        assert told[name] == ("earlier mode", "past"), name
    assert told["wall"][1] == told["head"][1] == "live cache"
    driver.look_at(record.step - 1)
    assert kv_words(driver) != f"KV {byte_size(held.stored)}"
    driver.look_at(None)
    driver.steps(1)
    assert {kind for _, kind in chips(driver).values()} <= {"recorded", "live cache"}
    assert models.timeline.num_bytes(None) is models.timeline.latest.num_bytes  # type: ignore[union-attr]


def test_an_edit_after_a_change_of_mode_stands_in_the_new_cache(drive: Callable[..., Driver]) -> None:
    driver = drive(CacheSpec("none"))
    models, window = driver.models, driver.window
    window.docks.docks["bytes"].raise_()
    driver.send(TEXT)
    driver.steps(2)
    newest = models.timeline.tip
    driver.choose(CacheSpec())
    held = models.timeline.num_bytes(None)
    assert held is not None
    assert held.stored
    driver.intents.on_edited(Zero(0, Rows(1, 2)))
    driver.wait_until_idle(lambda: models.timeline.tip != newest)
    for step in (None, models.timeline.tip):
        driver.look_at(step)
        assert models.timeline.num_bytes(step) == held
        assert kv_words(driver).startswith(f"KV {byte_size(held.stored)}")
    driver.look_at(None)
    assert thousands(held.stored) in window.panels["bytes"].facts.text()
    assert chips(driver)["inspector"] == ("earlier mode", "past")
    driver.look_at(newest)
    assert models.timeline.num_bytes(newest).stored == 0  # type: ignore[union-attr]
    driver.look_at(None)
    driver.steps(1)
    assert models.timeline.num_bytes(None) is models.timeline.latest.num_bytes  # type: ignore[union-attr]
    assert {kind for _, kind in chips(driver).values()} <= {"recorded", "live cache"}


def test_a_change_of_mode_that_was_left_is_found_again_with_its_bytes(drive: Callable[..., Driver]) -> None:
    driver = drive(CacheSpec())
    models = driver.models
    driver.send(TEXT)
    driver.steps(3)
    newest = models.timeline.tip
    assert newest is not None
    driver.choose(cache_preset("int8").spec)
    held = models.timeline.num_bytes(None)
    for step in (newest - 2, newest + 1):
        driver.look_at(step)
        driver.window.actions_["run.go_on"].trigger()
        driver.wait_until_idle(lambda step=step: models.history.live == step)  # type: ignore[misc]
    assert models.status.now.cache.codec == cache_preset("int8").spec.codec
    again = models.timeline.num_bytes(None)
    assert held is not None
    assert again is not None
    assert (again.stored, again.exact) == (held.stored, held.exact)
    assert "% of exact" in driver.window.top.size_of_cache.accessibleName()


def test_going_back_to_the_newest_step_undoes_a_change_of_mode(models: Models) -> None:
    record = samples.step_record(0)
    models.timeline.append([record])
    models.timeline.change_mode(replace(record.num_bytes, looking=7))
    assert models.timeline.is_before_change
    models.status.set(samples.status(0))
    for cache, words in ((record.cache, "recorded"), (CacheSpec("dynamic"), "earlier mode")):
        models.status.set(replace(samples.status(0), cache=cache))  # a file may have gone on in its own mode
        assert source_of(models, "recorded", "float32", 0).words == words
    assert models.timeline.num_bytes(None).looking == 7  # type: ignore[union-attr]
    models.timeline.go_to(0)
    assert not models.timeline.is_before_change
    assert models.timeline.num_bytes(None) is record.num_bytes


def test_a_sequence_without_pages_shows_no_rows_and_no_positions(drive: Callable[..., Driver]) -> None:
    driver = drive(PAGES)
    with capture_exceptions() as raised:
        driver.models.selection.update(layer=1)
        seq_id = preempted(driver)
        assert driver.models.selection.now.seq_id == seq_id, "it is viewed while it gives its pages up"
        driver.wait_until_idle()
        assert driver.window.wall.provenance_label.text == driver.window.head.provenance_label.text == ""
        for width in (1100, 1600):
            driver.window.resize(width, 800)
            driver.wait_until_idle()
    assert not raised
    window = driver.window
    assert window.wall.empty.text().startswith("Nothing is held now: the sequence gave its rows up")
    assert "held no rows after step" in window.attention.empty.text()
    assert driver.models.pictures.attention is not None
    assert not driver.models.pictures.attention.weights.size
    assert window.head.empty_text
    assert driver.models.pictures.attention.query_position == 0
    assert [panel for panel, (text, _) in chips(driver).items() if "live cache" in text] == []


def test_the_step_that_is_made_the_live_one_is_not_amber(drive: Callable[..., Driver]) -> None:
    driver = drive(CacheSpec())
    driver.send(TEXT)
    driver.steps(4)
    driver.look_at(2)
    ever_the_same = {"branches"}  # all of the tree, whichever moment is viewed
    assert {chip[1] for panel, chip in chips(driver).items() if panel not in ever_the_same} == {"past"}
    driver.window.actions_["run.go_on"].trigger()
    driver.wait_until_idle(lambda: len(driver.models.timeline) == 3)
    assert "past" not in {chip[1] for chip in chips(driver).values()}


def test_a_fork_of_a_sequence_without_pages_has_its_tokens(drive: Callable[..., Driver]) -> None:
    driver = drive(PAGES)
    models = driver.models
    seq_id = preempted(driver)
    known = [token.token_id for token in models.timeline.tokens(seq_id)]
    assert len(known) > 4
    driver.window.sequences.wants.emit(Fork(seq_id))
    driver.wait_until_idle(lambda: models.selection.now.seq_id == 2)
    assert [token.token_id for token in models.timeline.tokens(2)] == known
    assert f"with {len(known)} tokens: its rows are computed when it goes on" in models.status.notice
    assert driver.window.tokens.canvas.chips.tokens == models.timeline.tokens(2)


def test_a_full_sequence_beside_a_live_one_shows_what_its_last_step_left(drive: Callable[..., Driver]) -> None:
    driver = drive(CacheSpec("static", max_length=40))
    models, window = driver.models, driver.window
    driver.send(TEXT)
    driver.shell.intents.on_prompt_submitted(SECOND, SamplingParams(), alone=False)
    driver.wait_until_idle(lambda: models.timeline.num_tokens(1) > 0)
    last = -1
    for _ in range(40):
        done = len(models.timeline)
        driver.loop.send(Force(1, (40 + done,)))
        window.actions_["run.step"].trigger()
        driver.wait_until_idle(lambda done=done: len(models.timeline) > done)  # type: ignore[misc]
        record = models.timeline.latest
        assert record is not None
        if record.of(0) is not None:
            last = record.step
        elif record.step == last + 2:
            break
    models.selection.update(seq_id=0)
    driver.wait_until_idle()
    record, computed = models.timeline.latest, models.timeline.record(last)
    assert record is not None
    assert computed is not None
    assert record.step == last + 2
    assert models.timeline.newest_of(0) is computed
    assert len(window.next_token.candidates.items()) == len(computed.of(0).candidates) > 0  # type: ignore[union-attr]
    for panel in (window.next_token, window.attention, window.wall):
        assert panel.provenance_label.kind != "past"
        assert panel.provenance_label.whole.endswith(f"step {last}, the newest that computed this sequence")

    choices = window.next_token.candidates
    assert "the cache is full: take one that grows" in choices.words(choices.items()[0])
    asked: list[object] = []
    window.next_token.wants.connect(asked.append)
    choices.picked.emit(choices.items()[0])
    assert asked == []
    driver.shell.intents.send(BeginBranch(0, None, (50,)))
    driver.wait_until_idle()
    assert models.status.failure == ""
    assert "the cache is full" in models.status.notice
    models.selection.update(seq_id=1)
    driver.wait_until_idle()
    assert choices.words(choices.items()[0]).endswith(TAKE)
