"""The table of actions as Qt wants it; menus, shortcuts, tool tips, the palette and the list of keys read it here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QWidget

from app.control.action_table import TABLE, Entry, Scope
from app.models import Models


class Actions(QObject):
    """The table as `QAction`s. Each is bound to one slot; `refresh()` greys what is not possible and says why."""

    refreshed = Signal()

    def __init__(self, models: Models, window: QWidget) -> None:
        super().__init__(window)
        self._models = models
        self._entries = {entry.key: entry for entry in TABLE}
        self._slots: dict[str, Callable[[], object]] = {}
        self._barred: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._current = ""
        self._group = QActionGroup(self)
        self._group.setExclusionPolicy(QActionGroup.ExclusionPolicy.None_)
        self._actions = {entry.key: self._make(entry) for entry in TABLE}
        # One connection for all: a lambda per action would keep the window alive.
        self._group.triggered.connect(self._on_triggered)
        window.addActions([action for key, action in self._actions.items() if self._entries[key].scope == "window"])
        models.status.changed.connect(self.refresh)
        models.selection.changed.connect(self.refresh)
        models.timeline.reset.connect(self.refresh)
        models.draft.changed.connect(self.refresh)
        models.timeline.appended.connect(self._on_appended)
        self.refresh()

    def __getitem__(self, key: str) -> QAction:
        return self._actions[key]

    def keys(self) -> Iterable[str]:
        return self._actions.keys()

    @property
    def current(self) -> str:
        """The action that is being handled, for slots that serve several (one per cache, layout, theme)."""
        return self._current

    def entry(self, key: str) -> Entry:
        return self._entries[key]

    def bind(self, key: str, slot: Callable[[], object]) -> None:
        """Give an action its one slot, called without arguments."""
        self._entries[key]  # a misspelt key must fail here
        self._slots[key] = slot

    @property
    def unbound(self) -> list[str]:
        """Actions that would do nothing; a test keeps this empty."""
        return [key for key in self._actions if key not in self._slots]

    def attach(self, scope: Scope, widget: QWidget) -> None:
        """Let the shortcuts of a scope act while that widget, or one inside it, has the focus."""
        widget.addActions([action for key, action in self._actions.items() if self._entries[key].scope == scope])

    def reason(self, key: str) -> str:
        """Why an action is greyed, or the empty text."""
        return self._reasons.get(key, "")

    def check(self, key: str, is_on: bool) -> None:
        """Show a mark without triggering anything: `triggered` answers to people only."""
        self._actions[key].setChecked(is_on)

    def bar(self, reasons: Mapping[str, str]) -> None:
        """Why the panel in use cannot do what some actions ask of it, or the empty text where it can."""
        self._barred = dict(reasons)
        self.refresh()

    def refresh(self) -> None:
        """Enable what is possible now."""
        reasons = {key: entry.needs(self._models) for key, entry in self._entries.items() if entry.needs is not None}
        reasons |= self._barred
        if reasons == self._reasons:
            return
        for key, reason in reasons.items():
            self._actions[key].setEnabled(not reason)
            if reason != self._reasons.get(key, ""):
                self._actions[key].setToolTip(tool_tip(self._entries[key], reason))
        self._reasons = reasons
        self.refreshed.emit()

    def _on_appended(self) -> None:
        # Appending can only make things possible when history begins.
        if len(self._models.timeline) < 4 or not self._models.status.is_running:
            self.refresh()

    def _make(self, entry: Entry) -> QAction:
        action = QAction(entry.text, self._group)
        action.setData(entry.key)
        action.setCheckable(entry.is_check)
        if entry.shortcut:
            action.setShortcuts(_shortcuts(entry))
        in_window = entry.scope == "window"
        context = Qt.ShortcutContext.WindowShortcut if in_window else Qt.ShortcutContext.WidgetWithChildrenShortcut
        action.setShortcutContext(context)
        action.setToolTip(tool_tip(entry))
        action.setStatusTip(entry.tip)
        action.setMenuRole(QAction.MenuRole.NoRole)
        return action

    def _on_triggered(self, action: QAction) -> None:
        self._current = action.data()
        slot = self._slots.get(self._current)
        if slot is not None:
            slot()


def _shortcuts(entry: Entry) -> list[QKeySequence]:
    sequences = [QKeySequence(entry.shortcut)]
    if entry.shortcut.endswith("Return"):
        sequences.append(QKeySequence(entry.shortcut.replace("Return", "Enter")))  # the number pad's is another key
    return sequences


def native(shortcut: str) -> str:
    """A shortcut as this system writes it."""
    return QKeySequence(shortcut).toString(QKeySequence.SequenceFormat.NativeText)


def tool_tip(entry: Entry, reason: str = "") -> str:
    """What it does and its key, and why it is not possible now, as plain text."""
    key = f"  ({native(entry.shortcut)})" if entry.shortcut else ""
    tip = f"\n{entry.tip}" if entry.tip else ""
    why = f"\n{f'Not now: {reason}'}" if reason else ""
    return f"{entry.text.rstrip('…')}{key}{tip}{why}"
