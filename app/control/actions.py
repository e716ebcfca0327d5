"""Actions: how one is declared, and all of them as `QAction`s for menus, keys, tool tips, palette and list of keys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal

from msgspec import Struct
from PySide6.QtCore import QObject, Qt, Signal
from PySide6.QtGui import QAction, QActionGroup, QKeySequence
from PySide6.QtWidgets import QApplication, QWidget

from app.control.conditions import marks, reasons
from app.models import Models
from engine.wire.message import Command

if TYPE_CHECKING:
    from app.shell import Shell

# Where a shortcut works: in the whole window, or only while a widget of that kind has the focus, so that letters and
# Space can still be typed elsewhere.
Where = Literal["window", "picture", "rows", "timeline"]


class Action(Struct, frozen=True):
    """The declaration of one action: its name and key, its text and tip, what it does or sends to the engine, what it
    needs to be possible, where its key works, and under which other words, separated by commas, people look for it.
    `more` is a line of its tip: what is known at present about its effect."""

    name: str
    key: str
    text: str
    tip: str
    do: Callable[[Shell], object] | Command
    needs: str = ""  # one of `reasons`; empty: nothing
    where: Where = "window"
    is_check: bool = False
    also: str = ""
    more: Callable[[Models], str] | None = None


class Submenu(Struct, frozen=True):
    """A menu inside another: its title and its groups. `subject` stands before its actions' texts in the palette; the
    title if not given."""

    title: str
    groups: tuple[tuple[Action, ...], ...]
    subject: str = ""


Group = Sequence[Action | Submenu]

# The title of a menu and its groups of entries; a line is drawn between two groups.
Menus = Mapping[str, Sequence[Group]]


def declared_in(menus: Menus) -> list[Action]:
    """Every action, in the order of the menus."""
    return [action for groups in menus.values() for _, action in _actions_in(groups)]


def _actions_in(groups: Sequence[Group], subject: str = "") -> Iterator[tuple[str, Action]]:
    """The actions of a menu and of those inside it, with the subject of the submenu that each is in."""
    for entry in (entry for group in groups for entry in group):
        if isinstance(entry, Submenu):
            yield from _actions_in(entry.groups, entry.subject or entry.title)
        else:
            yield subject, entry


class Actions(QObject):
    """The declared actions as `QAction`s; `refresh()` disables those that are not possible and puts why in their tip.

    Signals: `triggered(Action)`, the same by menu, key, button or palette; `refreshed()` when a reason changed.
    """

    triggered = Signal(object)
    refreshed = Signal()

    def __init__(self, models: Models, menus: Menus, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._models = models
        self.menus = menus
        self._subjects = {
            action.name: subject or title.replace("&", "")
            for title, groups in menus.items()
            for subject, action in _actions_in(groups)
        }
        self._declared = {action.name: action for action in declared_in(menus)}
        self._barred: dict[str, str] = {}
        self._reasons: dict[str, str] = {}
        self._num_records = 0  # of the timeline, when reasons were looked for
        self._places: dict[Where, list[QWidget]] = {}
        self._group = QActionGroup(self)
        self._group.setExclusionPolicy(QActionGroup.ExclusionPolicy.None_)
        self._actions = {name: self._make(action) for name, action in self._declared.items()}
        # One connection for all actions: a lambda per action would keep the window alive.
        self._group.triggered.connect(self._on_triggered)
        states = (
            models.status, models.selection, models.draft, models.comparison, models.edits, models.kept_sessions,
        )  # fmt: skip
        others = (
            models.timeline.reset, models.history.reshaped, models.breakpoints.changed, models.breakpoints.found,
            models.status.engine_changed,
        )  # fmt: skip
        for moved in (*others, *(state.changed for state in states)):
            moved.connect(self._on_moved)
        models.timeline.appended.connect(self._on_appended)
        self.refresh()

    def __getitem__(self, name: str) -> QAction:
        return self._actions[name]

    def names(self) -> Iterable[str]:
        return self._actions.keys()

    def declared(self, name: str) -> Action:
        return self._declared[name]

    def full_name(self, name: str) -> str:
        """An action's text after the name of its menu: `Run: Step`."""
        text = self._actions[name].text()
        return text if ": " in text else f"{self._subjects[name]}: {text}"

    def attach(self, where: Where, widget: QWidget) -> None:
        """Make the shortcuts declared for `where` work while that widget, or one inside it, has the focus."""
        widget.addActions([self._actions[name] for name, action in self._declared.items() if action.where == where])
        self._places.setdefault(where, []).append(widget)

    def reason(self, name: str) -> str:
        """Why an action is disabled, or the empty text."""
        return self._reasons.get(name, "")

    def disabled_by(self, key: QKeySequence) -> str:
        """The name of the disabled action that has a key at the focus; empty if there is none."""
        barred = (name for name, reason in self._reasons.items() if reason and key in self._actions[name].shortcuts())
        return next((name for name in barred if self._acts_here(self._declared[name].where)), "")

    def why_not(self, name: str) -> str:
        """Why an action is not possible now, as a sentence; empty if it is possible."""
        reason = self.reason(name)
        text = self._actions[name].text().rstrip("…") if reason else ""
        return f"{text} is not possible now. {reason[:1].upper()}{reason[1:].rstrip('.')}." if reason else ""

    def _acts_here(self, where: Where) -> bool:
        """Whether the shortcuts of a place act where the focus is."""
        if where == "window":
            return True
        if (focused := QApplication.focusWidget()) is None:
            return False
        return any(place is focused or place.isAncestorOf(focused) for place in self._places.get(where, ()))

    def check(self, name: str, is_on: bool) -> None:
        """Set the check mark of an action without emitting `triggered`."""
        self._actions[name].setChecked(is_on)

    def tell_more(self) -> None:
        """Write into tool tips what is known at present; called when a menu with such actions opens."""
        for name, action in self._declared.items():
            if action.more is not None:
                self._tell(name)

    def _tell(self, name: str) -> None:
        action = self._declared[name]
        more = "" if action.more is None else action.more(self._models)
        self._actions[name].setToolTip(tool_tip(action, self.reason(name), more))

    def bar(self, reasons: Mapping[str, str]) -> None:
        """Disable actions that the focused panel cannot do: why, by name of the action, or the empty text if it can."""
        self._barred = dict(reasons)
        self.refresh()

    def refresh(self) -> None:
        """Enable the actions that are possible now, disable the others, and set the check marks."""
        self._num_records = len(self._models.timeline)
        for name, is_on in marks(self._models).items():
            self._actions[name].setChecked(is_on)
        found = reasons(self._models)
        barred = {name: found[action.needs] for name, action in self._declared.items() if action.needs} | self._barred
        if barred == self._reasons:
            return
        news = [name for name, reason in barred.items() if reason != self._reasons.get(name, "")]
        self._reasons = barred
        for name in news:
            self._actions[name].setEnabled(not barred[name])
            self._tell(name)
        self.refreshed.emit()

    def _on_appended(self) -> None:
        # Beyond the beginning of the history, a record makes an action possible only where something is selected.
        now = self._models.selection.now
        has_selection = now.position is not None or now.step is not None
        if self._num_records < 4 or (has_selection and not self._models.status.now.running):
            self._on_moved()

    def _on_moved(self) -> None:
        self._models.refreshes.ask(self.refresh)

    def _make(self, declared: Action) -> QAction:
        action = QAction(declared.text, self._group)
        action.setData(declared.name)
        action.setCheckable(declared.is_check)
        if declared.key:
            action.setShortcuts(_shortcuts(declared.key))
        in_window = declared.where == "window"
        context = Qt.ShortcutContext.WindowShortcut if in_window else Qt.ShortcutContext.WidgetWithChildrenShortcut
        action.setShortcutContext(context)
        action.setToolTip(tool_tip(declared))
        action.setStatusTip(declared.tip)
        action.setMenuRole(QAction.MenuRole.NoRole)
        return action

    def _on_triggered(self, action: QAction) -> None:
        self.triggered.emit(self._declared[action.data()])
        if action.isCheckable():
            self._on_moved()  # the click has switched its check mark, whatever came of it


def _shortcuts(key: str) -> list[QKeySequence]:
    keys = [key]
    if key.endswith("Return"):
        keys.append(key.replace("Return", "Enter"))  # the number pad's is another key
    return [QKeySequence(one) for one in keys]


def native(key: str) -> str:
    """A shortcut as this operating system writes it."""
    return QKeySequence(key).toString(QKeySequence.SequenceFormat.NativeText)


def tool_tip(action: Action, reason: str = "", more: str = "") -> str:
    """The action's text and key, its tip, `more`, and why it is not possible now, as plain text of several lines."""
    key = f"  ({native(action.key)})" if action.key else ""
    tip = "".join(f"\n{line}" for line in (action.tip, more) if line)
    why = f"\nNot now: {reason}" if reason else ""
    return f"{action.text.rstrip('…')}{key}{tip}{why}"
