"""The Help menu."""

from __future__ import annotations

from functools import partial

from app.actions import dialogs, finding
from app.control.actions import Action

# fmt: off
HELP = (
    (
        Action("help.palette", "Ctrl+Shift+P", "Find any action", "Every action, panel, setting and place by its name",
               finding.open_palette, also="command palette, search, commands"),
        Action("help.keys", "?", "Keys", "Which key does what", dialogs.open_keys, also="shortcuts, keyboard, hotkeys"),
    ),
    (
        Action("help.begin", "", "The first five minutes", "What to do first, and what you see then",
               partial(dialogs.open_manual, page="first-five-minutes"), also="tutorial, introduction, getting started"),
        Action("help.glossary", "", "Glossary", "The words of this window, each in a sentence or two",
               partial(dialogs.open_manual, page="glossary"), also="definition, meaning, terms, words, what is"),
        Action("help.manual", "", "Manual", "Every panel on a page, with a search",
               partial(dialogs.open_manual, page=""), also="documentation, docs, readme, help"),
        Action("help.panel", "F1", "Help on this panel", "The page of the manual about the panel that has the focus",
               dialogs.open_help_on_panel, also="what is this, explain"),
    ),
    (
        Action("help.about", "", "About KV Loupe", "Version, licence and what it runs on", dialogs.open_about,
               also="version, licence, license"),
    ),
)
