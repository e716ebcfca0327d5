"""Every cache mode on the same tokens: what each holds, how fast it is, and what it changes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from PySide6.QtCore import QModelIndex
from PySide6.QtGui import QGuiApplication, QResizeEvent
from PySide6.QtWidgets import QComboBox, QFileDialog, QMenu, QSpinBox, QWidget

from app.draw.format import thousands
from app.kit.boxes import column, row
from app.kit.cells import CellTable
from app.kit.changes import on_change
from app.kit.chart.plot import Plot
from app.kit.files import save_text
from app.kit.labels import ElidedLabel, set_text_role
from app.kit.measurement import AskingView
from app.kit.provenance import Provenance
from app.kit.small_box import SmallBox
from app.kit.theme import font_text
from app.kit.units import inset
from app.models import Models
from app.models.measurement import State
from app.panels.sweep import draw, words
from app.panels.sweep.chart import sweep_chart
from app.panels.sweep.draw import Row
from engine.predict.capacity import context_length
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS, cache_name
from engine.spec.sampling import Prompt
from engine.spec.tuning import fitted
from engine.wire.commands import Sweep
from engine.wire.measurements import Swept

TABLE, PLOT = "table", "plot"
LIVE, PROMPT = "live", "prompt"
MAX_STEPS = 512
_WIDE = 760
BUDGETS = (("preset budgets", None, ""), ("budget ½", 0.5, ""), ("budget ¼", 0.25, ""), ("budget ⅛", 0.125, ""))
BUDGETS_TIP = (
    "Rows kept by the modes that drop rows: as their presets say (256), or a share of all tokens; "
    "with a share, KIVI's exact residual is one group"
)


@dataclass(frozen=True)
class Shown:
    """The rows so far and where the measurement stands; how they are sorted and which is marked; what has room; and
    before a sweep how many tokens it would start from."""

    swept: tuple[Swept, ...]
    state: State
    sort: tuple[int, bool]
    marked: str
    pointed: str
    has_table: bool
    has_plot: bool
    note: str


class SweepView(AskingView[Shown]):
    """A click on a heading sorts, on a row marks its point. The table can be copied or saved as CSV."""

    title, measures = "Sweep", "sweep"
    button_words, button_name = "Measure all", "Measure every cache mode"
    choices = (
        (TABLE, "table", "Every mode in numbers; a heading sorts"),
        (PLOT, "plot", "Bytes against KL, both logarithmic"),
    )

    def __init__(self, models: Models, parent: QWidget | None = None) -> None:
        super().__init__(models, parent)
        self._sort: tuple[int, bool] = (-1, False)
        self._marked = self._pointed = ""
        self._cloud_of: tuple[Swept, ...] = ()
        self._cloud = draw.cloud(())
        self._source = SmallBox(
            "Tokens to start from",
            "Which tokens of the selected sequence every mode is given first",
            (("all tokens", LIVE, ""), ("prompt", PROMPT, "")),
        )
        self._budgets = SmallBox("Budgets", BUDGETS_TIP, BUDGETS)
        self.steps = QSpinBox()
        self.table = CellTable("Cache modes side by side")
        self.plot = Plot("Bytes against KL of every cache mode")
        self.note = ElidedLabel()
        self._build()
        self.follow(models)

    def _build(self) -> None:
        self.steps.setRange(2, MAX_STEPS)
        self.steps.setValue(24)
        self.steps.setAccessibleName("Steps")
        self.steps.setToolTip("How many tokens follow: those that the exact model chooses")
        self.steps.setObjectName("small")
        self.steps.setFont(font_text(11.5))
        self.steps.setFixedHeight(20)
        self._budgets.setCurrentIndex(2)
        inset(self.steps, "steps")
        self._source.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.note.setFont(font_text(11))
        top = row(self._source, self.steps, self._budgets, None)
        both = row((self.table, 6), (self.plot, 5), spacing=12)
        self.set_body(column(top, (both, 1), self.note, spacing=5))
        self.add_to_strip(self.button)
        self.table.horizontalHeader().setSectionsClickable(True)
        self.table.horizontalHeader().sectionClicked.connect(self._on_sorted)
        self.table.clicked.connect(self._on_row)
        self.table.activated.connect(self._on_row)
        self.steps.lineEdit().returnPressed.connect(self.ask)
        on_change(self.refresh, self._source, self.steps)
        self.plot.connect_to(self._on_pointed, self._on_point, self.told)

    # ---- intents -------------------------------------------------------------------------------------------------

    def request(self) -> Sweep:
        """Every mode on the chosen tokens."""
        ids, steps, share = self.token_ids(), self.steps.value(), self._budgets.currentData()
        caches = tuple((name, fitted(spec, len(ids) + steps, share)) for name, spec in self._modes().items())
        return Sweep(Prompt(token_ids=ids), steps, caches)

    def add_to_menu(self, menu: QMenu) -> None:
        if self._rows():
            menu.addAction("Copy table as CSV", self.copy_table)
            menu.addAction("Save table…", self.save_table)
            menu.addSeparator()

    def copy_table(self) -> None:
        """Put the rows on the clipboard, numbers in full."""
        QGuiApplication.clipboard().setText(draw.csv_text(self._rows()))
        self.told.emit(f"{len(self._rows())} rows copied as CSV")

    def save_table(self) -> None:
        """Ask for a file and write the rows as CSV."""
        path, _ = QFileDialog.getSaveFileName(self, "Save table", "sweep.csv", "CSV table (*.csv)")
        if not path:
            return
        problem = save_text(draw.csv_text(self._rows()), Path(path))
        self.told.emit(problem or f"Table saved to {path}")

    def _on_sorted(self, column: int) -> None:
        old, was_descending = self._sort
        self._sort = (column, not was_descending) if column == old else (column, column in (2, 4))
        self.refresh()

    def _on_row(self, index: QModelIndex) -> None:
        rows = self.sorted_rows()
        if index.row() < len(rows):
            self._on_picked(rows[index.row()].cache)

    def _on_picked(self, name: str) -> None:
        self._marked = "" if name == self._marked else name
        self.refresh()

    def _on_point(self, index: int) -> None:
        self._on_picked(self._cloud.names[index])

    def _on_pointed(self, index: int | None) -> None:
        self._pointed = self._cloud.names[index] if index is not None else ""
        self.refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def _rows(self) -> tuple[Row, ...]:
        return tuple(swept.row for swept in self.measurement.answers)

    def sorted_rows(self) -> list[Row]:
        return draw.sorted_rows(self._rows(), *self._sort)

    def token_ids(self) -> tuple[int, ...]:
        """The tokens to start from: all that are in the cache of the selected sequence, or its prompt; as many of them
        as leave the steps room in the model's context."""
        tokens = self._models.timeline.tokens(self._models.selection.now.seq_id)
        if self._source.currentData() == PROMPT:
            tokens = tuple(token for token in tokens if token.is_prompt)
        return tuple(token.token_id for token in tokens[: max(1, self._most_tokens())])

    def _most_tokens(self) -> int:
        status = self._models.status.now
        model = status.model if status is not None else None
        return context_length(model.geometry) - self.steps.value() if model is not None else MAX_STEPS

    def problem(self) -> str:
        status = self._models.status.now
        if status is None or status.model is None:
            return "A model is needed first."
        if not self._models.timeline.num_tokens(self._models.selection.now.seq_id):
            return "Send a prompt first: every cache mode is measured on its tokens."
        return ""

    def read(self) -> Shown | str:
        swept, problem = self.measurement.answers, self.problem()
        if not swept and problem:
            return problem
        is_wide = self.width() >= _WIDE
        has_plot = bool(swept) and (is_wide or self.choice == PLOT)
        has_table = is_wide or self.choice == TABLE
        note = self.measurement.refusal or self._note_words(swept, has_plot)
        state = self.measurement.state
        return Shown(swept, state, self._sort, self._marked, self._pointed, has_table, has_plot, note)

    def provenance(self, state: Shown) -> Provenance | None:
        sentence = words.source_words(state.swept, state.state is State.WAITING)
        return Provenance("measured", "recomputed", sentence) if state.swept else None

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.set_choices(())

    def show_state(self, state: Shown) -> None:
        self.set_choices(() if state.has_table and state.has_plot else self.choices)
        self.set_choice(self.choice)
        self.table.setVisible(state.has_table)
        self.plot.setVisible(state.has_plot)
        self.note.setText(state.note)
        self.note.setToolTip(words.MEANING)
        set_text_role(self.note, "muted")
        rows, modes = self._rows(), self._swept_modes()
        cells = [words.cells(each, modes[each.cache], state.swept, state.marked) for each in self.sorted_rows()]
        waiting = words.waiting_cells(modes, rows) if not state.swept or state.state is State.WAITING else []
        self.table.show_cells(words.heads(state.sort), cells + waiting)
        if state.has_plot:
            name = state.pointed or state.marked
            if state.swept is not self._cloud_of:
                self._cloud_of, self._cloud = state.swept, draw.cloud(rows)
            chart = sweep_chart(self._cloud, words.labels(self._swept_modes()), name, words.rests_on(state.swept))
            self.plot.show_chart(chart)
            found = next((each for each in rows if each.cache == name), None)
            self.plot.show_words(words.point_words(found, modes[name]) if found is not None else "")

    def _modes(self) -> dict[str, CacheSpec]:
        """What a sweep tries: every preset, and the cache in use under its own name where no preset has it."""
        modes = {name: preset.spec for name, preset in PRESETS.items()}
        status = self._models.status.now
        if status is not None:
            modes.setdefault(cache_name(status.cache), status.cache)
        return modes

    def _swept_modes(self) -> dict[str, CacheSpec]:
        """The modes of the sweep that is shown, as they were sized; before one, those that it will try."""
        swept = self.measurement.answers
        return dict(swept[0].request.caches) if swept else self._modes()

    def _note_words(self, swept: tuple[Swept, ...], has_plot: bool) -> str:
        count = len(self.token_ids())
        if not swept and not self.measurement.is_waiting:
            held = self._models.timeline.num_tokens(self._models.selection.now.seq_id)
            first = "the first " if count == self._most_tokens() < held else ""
            return f"from {first}{thousands(count)} tokens, {len(self._modes())} modes: measure them all"
        if not swept or has_plot:  # the plot says itself how much it rests on
            return words.PPL
        return f"over {words.rests_on(swept)}; {words.PPL}"

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self.refresh()
