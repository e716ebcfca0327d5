"""What the palette finds: every action, panel, setting, recent file, and word of the glossary."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from PySide6.QtCore import Qt

from app.actions import dialogs
from app.actions.parameters import parameter_entries
from app.control.actions import Actions, native
from app.dialogs.manual_pages import GLOSSARY, terms
from app.kit.labels import prose
from app.kit.panel_rows import PANELS, TIMELINE
from app.panels.prompt.words import CHAT, IDS, TEXT
from app.window.menus import RecentFiles, time_words
from app.window.palette import Entry
from engine.spec.lenses import LENSES

if TYPE_CHECKING:
    from app.shell import Shell

# Other words for the ways to write a prompt.
PROMPT_WORDS = {
    TEXT: "plain text, completion",
    CHAT: "conversation, turns, roles, messages, chat template",
    IDS: "token ids, input ids, numbers",
}


def entries(shell: Shell) -> list[Entry]:
    """All of them, in the order in which those that match equally well are listed."""
    window = shell.window
    found = [*action_entries(shell.actions)]
    found += [
        Entry(f"prompt.as_{mode}", f"Prompt: {text}", partial(_write_as, shell, mode), PROMPT_WORDS[mode], tip)
        for mode, text, tip in window.prompt.choices
    ]
    found += [
        Entry(f"panel.{name}", f"Panel: {row.title}", partial(_show_panel, shell, name), row.also, row.says)
        for name, row in PANELS.items()
    ]
    show_timeline = partial(window.timeline.setFocus, Qt.FocusReason.ShortcutFocusReason)
    found.append(Entry("panel.timeline", f"Panel: {TIMELINE.title}", show_timeline, TIMELINE.also, TIMELINE.says))
    found += parameter_entries(shell)
    found += [
        Entry(
            f"lens.{lens.name}",
            f"Lens: {lens.words}",
            partial(shell.navigator.show_lens, lens.name),
            lens.label,
            lens.formula,
        )
        for lens in LENSES.values()
    ]
    found += [*_recent_files(window.recent), *_recent_sessions(shell)]
    found += [
        Entry(f"glossary.{title}", f"Glossary: {title}", partial(dialogs.open_manual, shell, f"{GLOSSARY}#{title}"))
        for title in terms()
    ]
    return found


def _write_as(shell: Shell, mode: str) -> None:
    """Write the prompt as a text, as a conversation or as token ids."""
    shell.window.show_panel("prompt")
    shell.window.prompt.choose(mode)


def _show_panel(shell: Shell, name: str) -> None:
    """Show a panel, and say what it is: it may have been in sight already."""
    shell.window.show_panel(name)
    shell.models.status.notify(PANELS[name].says)


def action_entries(actions: Actions) -> Iterator[Entry]:
    """An entry for each action, in the order of the menus."""
    for name in actions.names():
        declared = actions.declared(name)
        yield Entry(
            name,
            actions.full_name(name),
            actions[name].trigger,
            declared.also,
            declared.tip,
            native(declared.key),
            actions.reason(name),
        )


def _recent_files(menu: RecentFiles) -> Iterator[Entry]:
    """An entry for each file of the menu of recent ones; a disabled one if it has none."""
    if not menu.actions():
        yield Entry("recent.files", "Recent files", menu.clear, "recent", why_not="no file was opened yet")
    for action in menu.actions():
        name = f"Recent file: {action.text().replace('&&', '&')}"
        yield Entry(f"recent.{action.data()}", name, action.trigger, "recent", prose(str(action.data())))


def _recent_sessions(shell: Shell) -> Iterator[Entry]:
    """An entry for each session that is kept; a disabled one if there is none."""
    kept = shell.models.kept_sessions.all
    if not kept:
        yield Entry("recent.sessions", "Recent sessions", shell.window.sessions.clear, "recent", why_not="none yet")
    for session in kept:
        name = f"Recent session: {prose(session.title)} · {time_words(session.written)}"
        do = partial(shell.session_wanted.emit, session.path)
        yield Entry(f"recent.{session.path}", name, do, "recent, former session", prose(str(session.path)))
