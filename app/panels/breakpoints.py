"""The panel of breakpoints: a condition is typed, and the steps where it held are marked on the timeline; conditions
that are kept in the list halt runs."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QModelIndex, QSignalBlocker, Qt, QTimer, Signal
from PySide6.QtGui import QAction, QKeyEvent, QResizeEvent
from PySide6.QtWidgets import QCompleter, QLineEdit, QMenu

from app.draw.format import thousands
from app.kit.cells import CellTable, ColumnHead, TableCell
from app.kit.reader import BREAKPOINTS, SELECTION, STATUS, STEPS
from app.kit.theme import TextRole, font_fixed, font_text
from app.kit.view import View
from app.kit.widgets import (
    ActionButton,
    Spare,
    column,
    connect_all,
    own_action,
    plain_label,
    plain_tip,
    push_button,
    row,
    set_text_role,
)
from app.models import Models
from app.models.breakpoints import Search
from app.models.timeline import Timeline
from engine.counted import counted
from engine.errors import InputError
from engine.predict.capacity import setting_of
from engine.spec.condition import HOW_TO_COMBINE, ROWS, Breakpoint, help_lines, parsed, why_never

EXAMPLES = [quantity.example for quantity in ROWS]
HEADS = (
    ColumnHead("on", "Whether a run halts there: a click switches it", is_words=True),
    ColumnHead("halt after a step where", "The condition: a click looks for it in the past", is_words=True, most=900),
    ColumnHead("held", "At how many steps of the timeline it held"),
    ColumnHead("last at", "The newest of those up to the step that is shown"),
    ColumnHead("with", "The values there", is_words=True, most=900, takes_rest=True),
)
ON_COLUMN = 0


class BreakpointRow(Struct, frozen=True):
    """A stop of the list: at how many steps it held (None: not searched yet), the newest of them up to the step shown,
    with its values, and why it can never hold here."""

    breakpoint: Breakpoint
    num_held: int | None
    last_at: int | None
    value: str
    problem: str


def cells_of(row: BreakpointRow, *, is_marked: bool) -> tuple[TableCell, ...]:
    """Return one row of the table; a breakpoint that is off is dimmed."""
    breakpoint = row.breakpoint
    role: TextRole = "selected" if is_marked else "text" if breakpoint.is_enabled else "muted"
    state = "" if breakpoint.is_enabled else "\nOff: runs do not halt there"
    tip = f"{breakpoint.text}{state}" + (f"\n{row.problem}" if row.problem else "")
    held = "…" if row.num_held is None else thousands(row.num_held)
    last = "–" if row.last_at is None else thousands(row.last_at)
    value = TableCell(row.problem, "warning", tip) if row.problem else TableCell(row.value, "muted", tip)
    return (
        TableCell("● on" if breakpoint.is_enabled else "○ off", "accent" if breakpoint.is_enabled else "muted", tip),
        TableCell(breakpoint.text, role, tip, is_bold=is_marked),
        TableCell(held, role, tip),
        TableCell(last, role, tip),
        value,
    )


def hint(is_finding: bool) -> str:
    """Say what to type and what Enter will do, while the field is empty."""
    enter = "Enter goes from one to the next" if is_finding else "Enter adds a breakpoint: runs halt there"
    return f"Type a condition: the steps where it held are marked on the timeline, and {enter}."


def enter_words(kept: Breakpoint | None, *, is_finding: bool, walks: bool) -> str:
    """Say what Enter will do with the typed condition; `kept` is the breakpoint of the list that has it."""
    is_off = kept is not None and not kept.is_enabled
    state = " · switched off: runs do not halt there" if is_off else ""
    if not is_finding and (is_off or kept is None):
        return f"{state} · Enter: {'switch it on' if is_off else 'add breakpoint'}"
    return f"{state} · Enter: go to the next" if walks else state


def found_words(search: Search, timeline: Timeline, step: int | None) -> str:
    """Say at how many of the recorded steps the typed condition held, as far as they are searched."""
    if search.is_too_slow:
        return "the pattern takes too long: write a simpler one"
    if not len(timeline):
        return "no step to search yet"
    far = "" if search.is_done else f" · {counted(search.num_seen, 'step')} searched so far"
    unknown = f" · not known at {thousands(search.num_unknown)} of them" if search.num_unknown else ""
    held = f"held at {thousands(len(search.matches))} of {counted(len(timeline), 'step')}"
    verdict = search.verdicts.get(step) if step is not None else None
    here = f" · here {verdict.value}" if verdict is not None else ""
    return f"{held}{here}{unknown}{far}"


WIDE = 520  # pixels; from this width on the buttons of the marked breakpoint are shown
TYPING_MS = 250  # the condition is read only after such a pause: half of one would be reported as an error


class BreakpointsState(Struct, frozen=True):
    """All breakpoints; the id of the marked one; the condition that is searched for; the text about it, and whether
    that is a problem."""

    rows: tuple[BreakpointRow, ...]
    marked: int | None
    query: str
    words: str
    is_problem: bool


class ConditionLine(QLineEdit):
    """The field for a condition; it offers an example of every quantity. Signals: `left()`, Esc has emptied it;
    `entered(direction)`, Enter (1) or Shift+Enter (-1)."""

    left = Signal()
    entered = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self.setFont(font_fixed(12))
        self.setAccessibleName("Condition")
        self.setPlaceholderText("entropy > 2")
        self.setToolTip("\n".join((*help_lines(), HOW_TO_COMBINE)))
        completer = QCompleter(EXAMPLES, self)
        completer.setFilterMode(Qt.MatchFlag.MatchContains)
        completer.setCaseSensitivity(Qt.CaseSensitivity.CaseInsensitive)
        self.setCompleter(completer)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() == Qt.Key.Key_Escape and self.text():
            self.clear()
            self.left.emit()
        elif event.key() in (Qt.Key.Key_Return, Qt.Key.Key_Enter):
            self.close_list()
            self.entered.emit(-1 if event.modifiers() & Qt.KeyboardModifier.ShiftModifier else 1)
        else:
            super().keyPressEvent(event)
            if self.text() in EXAMPLES:  # it would offer what stands there, and hide what is said of it below
                self.close_list()

    def close_list(self) -> None:
        """Close the list of examples, so that Enter takes the text as it was typed."""
        if (completer := self.completer()) is not None and (offered := completer.popup()) is not None:
            offered.hide()


class BreakpointsView(View[BreakpointsState]):
    """Lists the breakpoints, and searches for a condition. Signal: `breakpoints_changed(breakpoints)`."""

    name = "breakpoints"
    follows = (BREAKPOINTS, SELECTION, STATUS, STEPS)

    breakpoints_changed = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._marked: int | None = None
        self.problem = ""
        self._is_finding = False  # True: Enter goes to the next match; False: it keeps the condition as a breakpoint
        self.line = ConditionLine()
        self.table = CellTable("Breakpoints")
        self.words = plain_label(font=font_text(11.5), wraps=True)
        self.words.setMinimumWidth(1)
        self.words.setAccessibleName("What is found")
        self.previous, self.next = (ActionButton(arrow, is_small=True) for arrow in "‹›")
        for button in (self.previous, self.next):
            button.setFixedWidth(26)
        self.examples = push_button("Examples", self._on_examples, "Conditions to begin with, one for each quantity")
        self.add = push_button(
            "Add breakpoint", self._on_add, "Keep the condition, switched on: runs halt after a step where it holds"
        )
        self.change = push_button("Change", self._on_change, "Put the condition in the place of the marked breakpoint")
        self.delete = push_button("Delete", self._on_delete, "Take the marked breakpoint out of the list")
        self.typing = QTimer(self, singleShot=True, interval=TYPING_MS)
        self.add_to_strip(self.examples)
        spare = Spare(row(self.change, self.delete))
        top = row((self.line, 1), self.previous, self.next, self.add, spare)
        self.set_body(column(top, self.words, (self.table, 1), spacing=6))
        self.change_it = own_action(self.table, "Change to what is typed", self._on_change)
        self._delete_it = own_action(self.table, "Delete", self._on_delete, key="Del")
        self.table.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        connect_all(
            (self.typing.timeout, self.look),
            (self.line.textEdited, self._on_typed),
            (self.line.entered, self._on_entered),
            (self.line.textChanged, self._on_text),
            (self.line.left, self.look),
            (self.table.clicked, self._on_cell),
            (self.table.confirmed, self.switch),
        )
        self.follow(models)

    def begin_finding(self) -> None:
        """Focus the condition; Enter then goes to the steps where it held."""
        self._is_finding = True
        self._begin()

    def _begin(self) -> None:
        self.line.setFocus(Qt.FocusReason.ShortcutFocusReason)
        self.line.selectAll()
        self.refresh()

    # ---- input of the user ---------------------------------------------------------------------------------------

    def _on_typed(self) -> None:
        self.typing.start()

    def _on_text(self, text: str) -> None:
        """Search at once if the text was cleared with the field's button or chosen from the examples."""
        if not text or not self.line.hasFocus():
            self.look()

    def look(self) -> None:
        """Search the recorded steps for the typed condition; show why if it cannot be read."""
        self.typing.stop()
        self.problem = ""
        try:
            self._models.breakpoints.search(self.line.text())
        except InputError as error:
            self.problem = str(error)
            self._models.breakpoints.search("")
        self.refresh()

    def _on_entered(self, direction: int) -> None:
        """Keep a new condition on Enter, unless the user is searching; otherwise go to the next or previous match."""
        if self.typing.isActive() or self.line.text().strip() != self._models.breakpoints.query:
            self.look()
        if direction > 0 and not self._is_finding and self.add.isEnabled():
            self._on_add()
        else:
            (self.next if direction > 0 else self.previous).click()

    def halt_there(self) -> None:
        """Keep the typed condition as a breakpoint; if there is no new one, focus the field, so that Enter keeps what
        is typed."""
        self._is_finding = False
        self.look()
        if self.add.isEnabled():
            self._on_add()
        else:
            self._begin()

    def _on_add(self) -> None:
        """Keep the typed condition as a breakpoint; one that is in the list and switched off is switched on."""
        self.line.close_list()
        self.look()
        text = self.line.text().strip()
        if self.problem or not text:
            return
        if (kept := self._models.breakpoints.kept(text)) is not None:
            if not kept.is_enabled:
                self._marked = kept.id
                self.switch(kept)
            return
        try:
            breakpoints = self._models.breakpoints.with_added(text)
        except InputError as error:
            self.problem = str(error)
            self.refresh()
            return
        self._marked = breakpoints[-1].id
        self.breakpoints_changed.emit(breakpoints)

    def _on_change(self) -> None:
        self.look()
        if not self.problem and self.line.text().strip():
            self._replace(self._marked, text=self.line.text().strip())

    def _on_delete(self) -> None:
        kept = tuple(breakpoint for breakpoint in self._models.breakpoints.listed if breakpoint.id != self._marked)
        self._marked = None
        self.breakpoints_changed.emit(kept)

    def switch(self, breakpoint: Breakpoint) -> None:
        """Switch a breakpoint on or off."""
        self._replace(breakpoint.id, is_enabled=not breakpoint.is_enabled)

    def _replace(self, breakpoint_id: int | None, **changes: Any) -> None:
        """Change one breakpoint of the list."""
        listed = self._models.breakpoints.listed
        self.breakpoints_changed.emit(
            tuple(replace(one, **changes) if one.id == breakpoint_id else one for one in listed)
        )

    def _on_cell(self, index: QModelIndex) -> None:
        """Mark the clicked stop and search for its condition; a click in the first column switches it on or off."""
        if (breakpoint := self.table.key_at(index.row())) is None:
            return
        if index.column() == ON_COLUMN:
            self.switch(breakpoint)
            return
        self._marked = breakpoint.id
        self._show_text(breakpoint.text)

    def _show_text(self, text: str) -> None:
        with QSignalBlocker(self.line):
            self.line.setText(text)
        self.look()

    def _on_examples(self) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        menu.setToolTipsVisible(True)
        for quantity in ROWS:
            action = menu.addAction(f"{quantity.example.replace('&', '&&')}\t{quantity.meaning}")
            action.setData(quantity.example)
        menu.triggered.connect(self._on_example)
        menu.popup(self.examples.mapToGlobal(self.examples.rect().bottomLeft()))

    def _on_example(self, action: QAction) -> None:
        self._marked = None
        self._show_text(str(action.data()))
        self.line.setFocus()

    # ---- painting ------------------------------------------------------------------------------------------------

    def read(self) -> BreakpointsState:
        breakpoints = self._models.breakpoints
        marked = self._marked if any(breakpoint.id == self._marked for breakpoint in breakpoints.listed) else None
        search = breakpoints.queried
        problem = self.problem or (self._why_never(breakpoints.query) if breakpoints.query else "")
        words = problem or (self._found(search) if search is not None else hint(self._is_finding))
        return BreakpointsState(
            tuple(map(self._row, breakpoints.listed)), marked, breakpoints.query, words, bool(problem)
        )

    def _found(self, search: Search) -> str:
        latest, step = self._models.timeline.latest, self._models.selection.now.step
        here = step if step is not None else latest.step if latest is not None else None
        kept = self._models.breakpoints.kept(search.text)
        enter = enter_words(kept, is_finding=self._is_finding, walks=bool(search.matches))
        return found_words(search, self._models.timeline, here) + enter

    def _row(self, breakpoint: Breakpoint) -> BreakpointRow:
        search = self._models.breakpoints.of(breakpoint.text)
        if search is None:
            return BreakpointRow(breakpoint, None, None, "", "")
        step = self._models.selection.now.step
        count = len(search.matches) if step is None else bisect_right(search.matches, step)
        last = search.matches[count - 1] if count else None
        value = search.verdicts[last].value if last is not None else ""
        num_held = len(search.matches) if search.is_done else None
        return BreakpointRow(
            breakpoint, num_held, last, value, self._engine_problem(breakpoint) or self._why_never(breakpoint.text)
        )

    def _engine_problem(self, breakpoint: Breakpoint) -> str:
        """The problem that the engine reports for a breakpoint; empty if none."""
        return next((each.problem for each in self._models.status.now.breakpoints if each.breakpoint == breakpoint), "")

    def _why_never(self, text: str) -> str:
        model, comparison = self._models.status.now.model, self._models.comparison.now
        if model is None:
            return ""
        setting = setting_of(model, self._models.status.now.cache, is_compared=comparison is not None)
        return why_never(parsed(text), setting)

    def show_state(self, state: BreakpointsState) -> None:
        on = sum(row.breakpoint.is_enabled for row in state.rows)
        self.set_detail(f"{thousands(on)} of {thousands(len(state.rows))} on" if state.rows else "")
        cells = [cells_of(row, is_marked=row.breakpoint.id == state.marked) for row in state.rows]
        self.table.show_cells(HEADS, cells, [row.breakpoint for row in state.rows])
        self.words.setText(state.words)
        self.words.setToolTip(plain_tip(state.words))
        set_text_role(self.words, "warning" if state.is_problem else "muted")
        self._show_buttons(state)

    def _show_buttons(self, state: BreakpointsState) -> None:
        """Show the buttons for the typed condition and, in a wide panel, those for the marked breakpoint."""
        text, is_marked = self.line.text().strip(), state.marked is not None
        kept = self._models.breakpoints.kept(text)
        is_new = bool(text) and not self.problem and kept is None
        is_off = kept is not None and not kept.is_enabled
        self.add.setText("Switch on" if is_off else "Add breakpoint")
        self.add.setVisible(is_new or is_off or not text)
        self.add.setEnabled(is_new or is_off)
        self.change.setVisible(is_new and is_marked and self.width() >= WIDE)
        self.delete.setVisible(is_marked and self.width() >= WIDE)
        self.change_it.setEnabled(is_new and is_marked)
        self._delete_it.setEnabled(is_marked)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.state is not None:
            self._show_buttons(self.state)

    def add_to_menu(self, menu: QMenu) -> None:
        menu.addActions([self.change_it, self._delete_it])
        menu.addSeparator()
