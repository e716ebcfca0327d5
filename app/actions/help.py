"""The Help menu."""

from __future__ import annotations

from app.actions import dialogs
from app.control.actions import Action

# fmt: off
HELP = (
    (
        Action("help.palette", "Ctrl+Shift+P", "Find any action", "Every action by its name", dialogs.open_palette),
        Action("help.keys", "?", "Keys", "Which key does what", dialogs.open_keys),
    ),
    (
        Action("help.about", "", "About KV Loupe", "Version, licence and what it runs on", dialogs.open_about),
    ),
)
