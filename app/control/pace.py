"""The paces of a run, and settings (pace, memory for kept steps) that are sent again to every new engine."""

from __future__ import annotations

from msgspec import Struct

from app.control.sender import Sender
from engine.wire.commands import PICTURES_PER_SECOND, SetKeptLimit, SetPace


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


class Setting:
    """One setting of the engine: sent to the present engine and to every later one. `usual` is an engine's default."""

    def __init__(self, sender: Sender, usual: SetPace | None = None) -> None:
        self._sender = sender
        self._usual = usual
        self._chosen: SetPace | SetKeptLimit | None = usual

    def choose(self, command: SetPace | SetKeptLimit | None, *, has_engine: bool) -> None:
        """Set it; if no engine has started yet, it is sent when one has. None keeps the engine's own default."""
        self._chosen = command
        if has_engine and command is not None:
            self._sender.post(command)

    def repeat(self) -> None:
        """Send it to an engine that has just started, unless it is the default."""
        if self._chosen is not None and self._chosen != self._usual:
            self._sender.post(self._chosen)
