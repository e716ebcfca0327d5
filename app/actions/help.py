"""The Help menu."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.control.actions import Action

if TYPE_CHECKING:
    from app.shell import Shell


def _open_palette(shell: Shell) -> None:
    from app.window.palette import Palette

    Palette(shell.actions, shell.window).open_over(shell.window)


def _open_keys(shell: Shell) -> None:
    from app.dialogs.keys import KeysDialog

    KeysDialog(shell.actions, shell.window).open()


def _open_about(shell: Shell) -> None:
    from app.dialogs.about import AboutDialog

    AboutDialog(shell.window).open()


HELP = (
    (
        Action("help.palette", "Find any action", _open_palette, key="Ctrl+Shift+P", tip="Every action by its name"),
        Action("help.keys", "Keys", _open_keys, key="?", tip="Which key does what"),
    ),
    (Action("help.about", "About KV Loupe", _open_about, tip="Version, licence and what it runs on"),),
)
