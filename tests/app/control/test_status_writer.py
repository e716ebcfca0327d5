from __future__ import annotations

from msgspec import structs

from app.control.controller import Controller
from app.control.events import StatusWriter
from app.control.requests import MeasurementControl, Replaying
from app.control.sender import Sender
from app.models import Models
from engine.spec.cache import CacheSpec
from engine.wire.events import Restarted, StateChanged
from engine.wire.pages import PageAllocated
from engine.wire.status import Work
from tests.app import samples
from tests.app.fake_engine import FakeEngine


def test_another_model_resets_the_selection(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    models.selection.update(layer=5, kv_head=3, position=9)
    other = samples.model_info("Other", shape=samples.geometry(layers=2, kv_heads=1))
    engine.emit(Restarted(), StateChanged(structs.replace(samples.status(), model=other)))
    stepped.tick()
    now = models.selection.now
    assert (now.layer, now.kv_head, now.position, now.step) == (0, 0, None, None)


def test_a_sequence_that_is_gone_gives_its_place_to_the_newest(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    three = tuple(samples.SequenceInfo(seq_id, "decode", 14, 4, 11, None) for seq_id in range(3))
    engine.emit(StateChanged(structs.replace(engine.status, sequences=three)))
    stepped.tick()
    models.selection.update(seq_id=1)
    engine.emit(StateChanged(structs.replace(engine.status, sequences=(three[0], three[2]))))
    stepped.tick()
    assert models.selection.now.seq_id == 2


def test_counts_of_a_running_engine_are_known_but_not_announced(
    controller: Controller, models: Models, engine: FakeEngine
) -> None:
    heard: list[object] = []
    models.status.changed.connect(lambda old, new: heard.append(new))
    for count in (5, 6, 7):
        engine.emit(StateChanged(samples.status(1, num_tokens=count, running=True)))
        controller.tick()
    assert len(heard) == 1  # it began to run
    assert models.status.now.sequences[0].num_tokens == 7
    engine.emit(StateChanged(samples.status(1, num_tokens=8)))
    controller.tick()
    assert len(heard) == 2  # it stopped


def test_a_status_with_an_equal_model_forgets_no_page(stepped: Controller, models: Models, engine: FakeEngine) -> None:
    """Over a wire every status brings a model of its own."""
    first = models.timeline.records[0]
    assert engine.status.model is not None
    models.pages.take(structs.replace(first, page_events=(PageAllocated(0, 7),)))
    engine.emit(StateChanged(structs.replace(engine.status, model=structs.replace(engine.status.model))))
    stepped.tick()
    assert models.pages.facts(7, first.step).owners == (0,)
    other = structs.replace(engine.status.model, fingerprint="sha256:other")
    engine.emit(StateChanged(structs.replace(engine.status, model=other)))
    stepped.tick()
    assert models.pages.facts(7, first.step).owners == ()


def test_it_is_said_once_that_the_selected_sequence_goes_on_no_more(
    stepped: Controller, models: Models, engine: FakeEngine
) -> None:
    heard: list[str] = []
    models.status.noticed.connect(heard.append)

    def tell(*stops: str | None) -> None:
        infos = (
            samples.SequenceInfo(seq_id, "finished" if stop else "decode", 14, 4, 11, stop)  # type: ignore[arg-type]
            for seq_id, stop in enumerate(stops)
        )
        engine.emit(StateChanged(structs.replace(engine.status, sequences=tuple(infos))))
        stepped.tick()

    models.selection.update(seq_id=1)
    tell(None, "end of text")  # it had ended before it was known here
    tell(None, None)
    tell("stopped", None)  # another one
    assert heard == []
    tell("stopped", "cache full")
    tell("stopped", "cache full")
    assert len(heard) == 1
    assert heard[0].startswith("Sequence 1: the cache is full")


def test_a_status_with_other_work_waits_for_no_picture(models: Models, engine: FakeEngine) -> None:
    sender = Sender(engine.send)
    writer = StatusWriter(models, MeasurementControl(models, sender), Replaying(models, sender))
    now = samples.status(1, num_tokens=8)
    assert not writer.can_wait, "there is none yet"
    writer.keep_newest(StateChanged(now))
    assert not writer.can_wait
    writer.write()
    others = (structs.replace(now.sequences[0], seq_id=7),)
    for status, can_wait in (
        (samples.status(2, num_tokens=9), True),
        (structs.replace(now, work=Work("Writing x", 1, 2)), False),
        (structs.replace(now, sequences=others), False),
        (structs.replace(now, cache=CacheSpec("paged")), False),
    ):
        writer.keep_newest(StateChanged(status))
        assert writer.can_wait is can_wait
