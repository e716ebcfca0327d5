"""The frame of every panel."""

from __future__ import annotations

from app.kit.theme import DARK, LIGHT
from app.shell import Shell


def test_the_words_of_every_frame_take_the_colours_of_another_theme(shell: Shell) -> None:
    for choice, theme in (("light", LIGHT), ("dark", DARK), ("light", LIGHT)):
        shell.set_theme(choice)  # type: ignore[arg-type]
        for name, panel in shell.window.panels.items():
            titles, details = panel.title_label, panel.detail
            assert titles.palette().color(titles.foregroundRole()).name() == theme.text, (choice, name)
            assert details.palette().color(details.foregroundRole()).name() == theme.muted, (choice, name)
