"""How fast a run goes, how often its pictures come, and how many bytes moments may take: for any engine to come."""

from __future__ import annotations

from msgspec import Struct

from app.control.sender import Sender
from engine.wire.commands import PICTURES_PER_SECOND, SetKeptLimit, SetPace


class Pace(Struct, frozen=True):
    """One choice: its name, what the selector shows, what a menu says, and what that means."""

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
            "1/s",
            "1 token a second",
            "A run goes slowly: one token a second, to be followed by eye",
            SetPace(1, None),
        ),
        Pace("5", "5/s", "5 tokens a second", "A run goes slowly: five tokens a second at most", SetPace(5, None)),
        Pace(
            USUAL_PACE,
            f"{PICTURES_PER_SECOND}/s",
            f"{PICTURES_PER_SECOND} pictures a second",
            f"A run goes as fast as it can, and is shown {PICTURES_PER_SECOND} times a second: no token is left out, "
            "several come at once where decoding is faster",
            SetPace(None, PICTURES_PER_SECOND),
        ),
        Pace(
            "all",
            "all",
            "A picture after every token",
            "A picture is taken after every token, and a run is as slow as that makes it",
            SetPace(None, None),
        ),
    )
}


class Setting:
    """What was chosen of how the engine works, for this one and for the next; the `usual` is how one begins."""

    def __init__(self, sender: Sender, usual: SetPace | None = None) -> None:
        self._sender = sender
        self._usual = usual
        self._chosen: SetPace | SetKeptLimit | None = usual

    def choose(self, command: SetPace | SetKeptLimit | None, *, has_engine: bool) -> None:
        """From now on; an engine that has not begun yet is told when it has. None leaves it to the engine."""
        self._chosen = command
        if has_engine and command is not None:
            self._sender.post(command)

    def repeat(self) -> None:
        """It may be another engine, which begins with the usual."""
        if self._chosen is not None and self._chosen != self._usual:
            self._sender.post(self._chosen)
