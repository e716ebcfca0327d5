"""Rows of a sweep as they arrive: of one request, kept when it goes on, given up when another is asked."""

from __future__ import annotations

from app.models.measurement import Measurement, State
from engine.spec.cache import CacheSpec
from engine.spec.grid import SweepMode
from engine.spec.sampling import Prompt
from engine.spec.texts import SweepText
from engine.wire.commands import Sweep
from engine.wire.encoding import decode_event, encode
from engine.wire.events import Work
from engine.wire.measurements import SweepRow, Swept

MODES = tuple(SweepMode(name, CacheSpec(name)) for name in ("none", "dynamic", "growing"))
TEXTS = (SweepText("prompt", Prompt(token_ids=(1, 2, 3))),)


def row(cache: str) -> SweepRow:
    return SweepRow(cache, 8, 1.0, 0.0, 1.0, 2.0, 0.0, True, "prompt")


def arrived(request: Sweep, cache: str, is_last: bool = False) -> Swept:
    """An answer as it comes through a pipe: everything in it is new."""
    event = decode_event(encode(Swept(request, row(cache), is_last, reply_to=request.id)))
    assert isinstance(event, Swept)
    return event


def names(measurement: Measurement[Swept]) -> list[str]:
    return [answer.row.cache for answer in measurement.answers]


def test_rows_share_their_request() -> None:
    """It came with each of hundreds of rows, and holds every mode."""
    measurement: Measurement[Swept] = Measurement(Sweep)
    request = Sweep(TEXTS, 2, MODES, id=4)
    measurement.ask(request, None)
    for cache in ("none", "dynamic"):
        measurement.take(arrived(request, cache))
    assert names(measurement) == ["none", "dynamic"]
    assert all(answer.request is request for answer in measurement.answers)


def test_one_that_goes_on_keeps_its_rows_and_another_does_not() -> None:
    measurement: Measurement[Swept] = Measurement(Sweep)
    first = Sweep(TEXTS, 2, MODES, id=4)
    measurement.ask(first, None)
    measurement.take(arrived(first, "none"))
    measurement.cancel()
    measurement.follow(None)
    assert measurement.state is State.ANSWERED
    more = Sweep(TEXTS, 2, MODES, (("none", "prompt"),), id=5)
    measurement.ask(more, None)
    measurement.follow(Work("Sweeping", 1, 3, reply_to=5))
    assert (measurement.done, measurement.total) == (1, 3)
    measurement.take(arrived(first, "dynamic"))
    assert names(measurement) == ["none"], "an answer to the one that was given up is nobody's"
    measurement.take(arrived(more, "dynamic"))
    measurement.take(arrived(more, "growing", is_last=True))
    assert names(measurement) == ["none", "dynamic", "growing"]
    assert not measurement.is_waiting
    other = Sweep(TEXTS, 3, MODES, id=6)
    measurement.ask(other, None)
    assert names(measurement) == ["none", "dynamic", "growing"], "until there is something newer"
    measurement.take(arrived(other, "none"))
    assert names(measurement) == ["none"]
