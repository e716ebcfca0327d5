"""The paces of a run."""

from __future__ import annotations

from msgspec import Struct

from engine.wire.commands import PICTURES_PER_SECOND, SetPace


class Pace(Struct, frozen=True):
    """One pace: its name, its short label, its text in a menu, its tip, and the command that sets it."""

    name: str
    label: str
    text: str
    tip: str
    command: SetPace


USUAL_PACE = str(PICTURES_PER_SECOND)
PACES = {
    pace.name: pace
    for pace in (
        Pace(
            "1",
            "1 token/s",
            "1 token a second",
            "A run goes slowly: one token a second, to be followed by eye",
            SetPace(1, None),
        ),
        Pace(
            "5", "5 tokens/s", "5 tokens a second", "A run goes slowly: five tokens a second at most", SetPace(5, None)
        ),
        Pace(
            USUAL_PACE,
            f"{PICTURES_PER_SECOND} pictures/s",
            f"{PICTURES_PER_SECOND} pictures a second",
            f"A run goes as fast as it can, and is shown {PICTURES_PER_SECOND} times a second: no token is left out, "
            "several come at once where decoding is faster",
            SetPace(None, PICTURES_PER_SECOND),
        ),
        Pace(
            "all",
            "every token",
            "A picture after every token",
            "A picture is taken after every token, and a run is as slow as that makes it",
            SetPace(None, None),
        ),
    )
}
