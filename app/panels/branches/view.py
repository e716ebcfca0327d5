"""The panel of the history tree: select any step, continue from it, and name, compare and delete branches."""

from __future__ import annotations

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QResizeEvent
from PySide6.QtWidgets import QMenu

from app.draw.format import byte_size, thousands
from app.kit.fields import filter_field
from app.kit.provenance import Provenance
from app.kit.reader import SELECTION, STATUS, SignalSource
from app.kit.view import View
from app.kit.widgets import (
    ActionButton,
    ElidedLabel,
    Spare,
    column,
    connect_all,
    own_action,
    plain_tip,
    row,
    set_text_role,
)
from app.kit.words import node_lines
from app.models import Models
from app.models.timeline import count_from, first_of_segment, origin_of
from app.panels.branches.tree import Drawn, TreeCanvas
from engine.counted import counted, step_numbers
from engine.wire.commands import DeleteBranch, GoTo, JoinBranches
from engine.wire.comparison import OtherStep
from engine.wire.status import EngineStatus

HISTORY = SignalSource("history")
INVITATION = "Look back and choose another token, text or seed: a branch begins there, and this one stays"
_BRIEF = "To branch: look back, then take another token"
_MANY = 6  # from this number of branches on, the filter is shown
_ALL_BUTTONS = 500  # pixels of the panel's width for all buttons to fit


class BranchesView(View[Drawn]):
    """Signals: `named(first, name)`; `compared(OtherStep)`, show the comparison with it."""

    name = "branches"
    follows = (HISTORY, SELECTION, STATUS, SignalSource("bookmarks"))

    named = Signal(int, str)
    compared = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.tree = TreeCanvas(models)
        self.line, self.hint = ElidedLabel(role="muted"), ElidedLabel(role="muted")
        self.hint.setText(INVITATION, _BRIEF)
        self.seek = filter_field("Filter the branches by name or text", 170, "Filter by name or text")
        self.seek.hide()
        self.add_to_strip(self.seek)
        self._to_delete: int | None = None  # set by the first *Delete*; the second one deletes
        self.actions_ = {
            name: own_action(self.tree, text, slot, tip=tip, key=key)
            for name, text, slot, key, tip in (
                ("go", "Go there", self._on_go, "", "Make this the live step; nothing is deleted  (Enter)"),
                ("compare", "Compare", self._on_compare, "",
                 "Compare the live step with this one, or two that are chosen  (Ctrl+click chooses several)"),
                ("join", "Run together", self._on_join, "",
                 "Bring the sequences of these steps to the live one: one batch"),
                ("name", "Name…", self.tree.begin_naming, "F2", "Give the branch a name  (F2)"),
                ("delete", "Delete…", self._on_delete, "Del",
                 "Forget this piece of the branch and all that came of it  (Del)"),
            )
        }  # fmt: skip
        made = self.actions_.items()
        self._buttons = {name: ActionButton(action.text(), action, is_small=True) for name, action in made}
        self._build()
        connect_all(
            (self.tree.chosen, self._on_chosen),
            (self.tree.picked, self._on_picked),
            (self.tree.opened, self._on_opened),
            (self.tree.named, self.named),
            (self.tree.dismissed, self._on_dismissed),
            (self.seek.textChanged, self._on_sought),
        )
        self.follow(models)

    def _build(self) -> None:
        self.tree.setContextMenuPolicy(Qt.ContextMenuPolicy.ActionsContextMenu)
        *usual, join, name, delete = self._buttons.values()
        self._spare = Spare(row(join, name, delete))
        foot = row((self.line, 1), *usual, self._spare)
        self.set_body(column((self.tree, 1), self.hint, foot, spacing=4))

    def add_to_menu(self, menu: QMenu) -> None:
        menu.addActions(list(self.actions_.values()))
        menu.addSeparator()

    # ---- showing -------------------------------------------------------------------------------------------------

    def read(self) -> Drawn | str:
        history, now, status = self._models.history, self._models.selection.now, self._models.status
        if not len(history):
            return "Every step of the run stands here as a tree: send a prompt. " + INVITATION + "."
        path, step = [], history.live
        while step is not None:
            branch = history.branch_of(step)
            path.append(branch.first)
            step = branch.parent
        why_not = "an opened file has no live step" if status.has_file else ""
        viewed = now.step if now.step in history else None
        kept = status.now.kept
        marked = frozenset(self._models.bookmarks.on_steps())
        found = [origin_of(self._models.timeline, info.seq_id) for info in status.now.sequences]
        origins = tuple((each.seq_id, each.step) for each in found if each is not None)
        return Drawn(
            history.version, history.live, viewed, now.seq_id, frozenset(path), kept, marked, origins, why_not,
            _kept_words(status.now),
        )  # fmt: skip

    def provenance(self, state: Drawn) -> Provenance:
        return Provenance("recorded", "recorded", "every step that was taken, and every edit")

    def show_state(self, state: Drawn) -> None:
        history = self._models.history
        if self._to_delete not in history:
            self._to_delete = None
        self.tree.show_tree(state)
        count, num_rows = self.tree.num_branches, len(self.tree.rows)
        self.seek.setVisible(count >= _MANY or bool(self.seek.text()))
        branches = counted(count, "branch", "branches")
        branches = branches if num_rows == count else f"{thousands(num_rows)} of {branches}"
        every = history.branches()
        numbers = step_numbers(every[0].first, max(branch.tip for branch in every))
        self.set_detail(f"{branches} · {numbers}{state.kept_words}", branches)
        self._show_line()

    def _show_line(self) -> None:
        """Describe the selected step, and enable what can be done with it."""
        history, step, state = self._models.history, self.tree.step, self.state
        if step is None or state is None:
            return
        is_live = step == history.live
        is_hint_due = is_live and self.tree.num_branches == 1 and self._to_delete is None
        self.hint.setVisible(is_hint_due)
        role, text = "muted", " · ".join(node_lines(self._models, step))
        if self._to_delete is not None:
            role, text = "warning", self._question(self._to_delete)
        set_text_role(self.line, role)  # type: ignore[arg-type]
        self.line.setText(text)
        self.line.setToolTip(
            "" if self._to_delete is not None else plain_tip("\n".join(node_lines(self._models, step)))
        )
        hint = f"{INVITATION}. " if is_hint_due else ""
        self.tree.setAccessibleDescription(hint + text)
        if len(self.tree.marked) > 1 and self._to_delete is None:
            numbers = ", ".join(map(thousands, sorted(self.tree.marked)))
            self.line.setText(f"steps {numbers} chosen")
        why_not = state.why_not or ("this is the live step" if is_live else "")
        holds_live = history.is_on_path(first_of_segment(history, step), history.live)
        self._enable("go", why_not)
        self._enable("compare", state.why_not or self._why_not_compared(is_live))
        self._enable("join", state.why_not or ("" if self._to_join else "this is the live step: choose another branch"))
        self._enable("name", "")
        self._enable("delete", state.why_not or ("the live step came of it: go elsewhere first" if holds_live else ""))
        self.actions_["delete"].setText("Delete for good" if self._to_delete is not None else "Delete…")
        self._buttons["delete"].setText(self.actions_["delete"].text())

    def _enable(self, name: str, why_not: str) -> None:
        action = self.actions_[name]
        action.setEnabled(not why_not)
        action.setToolTip(action.toolTip().split("\n")[0] + (f"\nNot now: {why_not}" if why_not else ""))

    def _question(self, step: int) -> str:
        history = self._models.history
        parent, what = history.parent_of(step), counted(count_from(history, step), "step")
        where = "from the start on" if parent is None else f"after step {thousands(parent)}"
        return f"Forget {what} {where}, for good? Delete once more; Esc keeps them"

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._spare.setVisible(self.width() >= _ALL_BUTTONS)

    # ---- intents -------------------------------------------------------------------------------------------------

    def _on_chosen(self, step: int) -> None:
        """Select a step of any branch."""
        self._to_delete = None
        self.tree.drop_picked()
        self._models.selection.update(step=step)
        self._show_line()

    def _on_sought(self, text: str) -> None:
        self.tree.seek(text)
        self.show_again()

    def _on_picked(self) -> None:
        self._to_delete = None
        self._show_line()

    @property
    def _to_join(self) -> tuple[int, ...]:
        """The marked steps, without the live one."""
        tree, live = self.tree, self._models.history.live
        chosen = tree.marked or (() if tree.step is None else (tree.step,))
        return tuple(step for step in chosen if step != live)

    def _on_join(self) -> None:
        if steps := self._to_join:
            self.tree.drop_picked()
            self.wants.emit(JoinBranches(steps))

    def _on_opened(self, step: int) -> None:
        if self.actions_["go"].isEnabled() and step != self._models.history.live:
            self.wants.emit(GoTo(step))

    def _on_go(self) -> None:
        if (step := self.tree.step) is not None:
            self.wants.emit(GoTo(step))

    def _why_not_compared(self, is_live: bool) -> str:
        """Why the marked steps cannot be compared; empty if they can."""
        if count := len(self.tree.marked):
            return "" if count <= 2 and self._to_join else f"{count} steps are chosen: choose two"
        return "this is the live step" if is_live else ""

    def _on_compare(self) -> None:
        if 1 <= len(self._to_join) <= 2:
            one, *other = reversed(self._to_join)
            self._models.selection.update(step=other[0] if other else None)  # side A's, not one that it does not have
            self.compared.emit(OtherStep(one, *other))

    def _on_delete(self) -> None:
        step = self.tree.step
        if self._to_delete is not None:
            doomed, self._to_delete = self._to_delete, None
            self.wants.emit(DeleteBranch(doomed))
        elif step is not None:
            self._to_delete = first_of_segment(self._models.history, step)
        self._show_line()

    def _on_dismissed(self) -> None:
        self._to_delete = None
        self.tree.drop_picked()
        self._show_line()


def _kept_words(status: EngineStatus) -> str:
    """The memory for the kept state of steps, and its limit; empty if none is kept."""
    if not status.kept:
        return ""
    return f" · kept {byte_size(status.kept_bytes)} of {byte_size(status.kept_limit)}"
