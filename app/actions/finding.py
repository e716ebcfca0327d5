"""Opens the palette: for everything, or for places alone. It is imported when it is opened, so that the window itself
opens faster."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.shell import Shell


def open_palette(shell: Shell) -> None:
    from app.actions.entries import entries
    from app.actions.parameters import TypedValue
    from app.actions.typed_place import TypedEdit, TypedPlace
    from app.window.palette import Palette

    typed = TypedEdit(shell), TypedPlace(shell), TypedValue(shell)
    Palette(entries(shell), shell.window, typed).open_over(shell.window)


def open_places(shell: Shell) -> None:
    """Open the palette for a place to go to alone."""
    from app.actions.typed_place import TypedPlace
    from app.window.palette import Palette

    places = "K[2,1,7,13] · token 7 · layer 12 · head 3 · step 40"
    Palette((), shell.window, (TypedPlace(shell),), places, none="Type a place, such as one of these.").open_over(
        shell.window
    )
