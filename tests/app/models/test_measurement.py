"""A measurement from its question to its answers. Rows of a sweep are of one request, kept when it goes on and given
up when another is asked."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from PySide6.QtWidgets import QApplication

from app.models.measurement import Measurement, MeasurementState
from engine.spec.cache import CacheSpec
from engine.spec.grid import SweepMode, SweepText
from engine.spec.sampling import Prompt
from engine.wire.encoding import decode_event, encode
from engine.wire.events import Failed
from engine.wire.measurements import CheckParity, ParityReport, Sweep, SweepRow, Swept, WhatIf, WhatIfAnswer
from engine.wire.status import Work
from tests.app import answers

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
    measurement.refuse(Failed(""))
    assert measurement.state is MeasurementState.ANSWERED
    more = Sweep(TEXTS, 2, MODES, (("none", "prompt"),), id=5)
    measurement.ask(more, None)
    work = Work("Sweeping", 1, 3, reply_to=5)
    assert measurement.work(work) is work
    measurement.take(arrived(more, "dynamic"))
    measurement.take(arrived(more, "growing", is_last=True))
    assert names(measurement) == ["none", "dynamic", "growing"]
    assert not measurement.is_waiting
    other = Sweep(TEXTS, 3, MODES, id=6)
    measurement.ask(other, None)
    assert names(measurement) == ["none", "dynamic", "growing"], "until there is something newer"
    measurement.take(arrived(other, "none"))
    assert names(measurement) == ["none"]


@pytest.fixture
def asked(qapp: QApplication) -> Measurement[WhatIfAnswer]:
    """A second question on its way, whose first was answered."""
    found: Measurement[WhatIfAnswer] = Measurement(WhatIf)
    first = WhatIf(0, CacheSpec(), id=1)
    found.ask(first, 3)
    found.take(replace(answers.what_if(first, 0.5), reply_to=1))
    found.ask(WhatIf(0, CacheSpec(), id=2), 4)
    return found


def test_a_refusal_hides_the_answer_before_and_is_over_with_the_next_question(
    asked: Measurement[WhatIfAnswer],
) -> None:
    assert asked.answer is not None
    asked.refuse(Failed("Rows were dropped.", reply_to=2))
    assert (asked.answer, asked.refusal) == (None, "Rows were dropped.")
    asked.ask(WhatIf(0, CacheSpec(), id=3), 4)
    assert (asked.refusal, asked.state) == ("", MeasurementState.WAITING)


def test_what_is_cancelled_keeps_the_answer_before(asked: Measurement[WhatIfAnswer]) -> None:
    work = Work("Trying another cache", 1, 4, reply_to=2)
    assert [asked.work(now) for now in (None, Work("Something else", 1, 2, reply_to=1), work)] == [None, None, work]
    assert asked.is_waiting
    asked.refuse(Failed(""))
    assert (asked.state, asked.work(work), asked.refusal) == (MeasurementState.ANSWERED, None, "")


def test_what_was_never_asked_is_not_out_of_date(qapp: QApplication) -> None:
    parity: Measurement[ParityReport] = Measurement(CheckParity)
    parity.outdate()
    assert parity.state is MeasurementState.NOT_ASKED
    question = CheckParity(0, id=1)
    parity.ask(question, 3)
    parity.take(replace(answers.parity(question, 0.5), reply_to=1))
    assert parity.answer_of(1) is None
    assert parity.answer_of(0) is parity.answer
    parity.outdate()
    assert (parity.answers, parity.question, parity.is_out_of_date) == ((), None, True)
