"""The base of measurements answered row by row: a sortable table beside a plot, which can be copied or saved as CSV."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from msgspec import Struct
from PySide6.QtCore import QModelIndex
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QFileDialog, QHBoxLayout, QMenu

from app.draw import measured_rows
from app.kit.boxes import column, row
from app.kit.cells import CellTable
from app.kit.changes import connect_all
from app.kit.chart.plot import Plot
from app.kit.files import save_text
from app.kit.labels import ElidedLabel
from app.kit.measurement import AskingView
from app.kit.theme import font_text
from app.models import Models
from app.models.measurement import MeasurementState
from engine.counted import counted

TABLE, PLOT = "table", "plot"
_WIDE = 760


class ShownRows(Struct, frozen=True):
    """The answers so far and the measurement's state; how rows are sorted; the keys of the marked row and of the one
    pointed at; whether table and plot have room; the subclass's choices; and the line below."""

    answers: tuple[Any, ...]
    state: MeasurementState
    sort: tuple[int, bool]
    marked: str
    pointed: str
    has_table: bool
    has_plot: bool
    chosen: tuple[object, ...]
    note: str

    @property
    def is_waiting(self) -> bool:
        return self.state is MeasurementState.WAITING

    @property
    def rows(self) -> tuple[Any, ...]:
        return tuple(answer.row for answer in self.answers)

    @property
    def mark(self) -> str:
        """The key of the row that is highlighted in the plot."""
        return self.pointed or self.marked


class RowsView(AskingView[ShownRows]):
    """A click on a heading sorts; a click on a row marks its point. Narrow panels show the table or the plot, wide ones
    both.

    A subclass sets `columns`, the fields of a row, those of the table's headings first, and `descending`, the columns
    that a first click sorts downwards; it returns the `key_of` a row, sets the keys of the plot's points in
    `point_keys`, and fills table and plot in `show_rows`.
    """

    abilities = frozenset(("view.reset",))
    choices_when_empty = False
    reads_size = True
    columns: ClassVar[Sequence[str]]
    descending: ClassVar[tuple[int, ...]] = ()
    file_name: ClassVar[str]
    table_name: ClassVar[str]
    plot_name: ClassVar[str]

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._sort: tuple[int, bool] = (-1, False)
        self._marked = self._pointed = ""
        self.point_keys: tuple[str, ...] = ()
        self.table = CellTable(self.table_name)
        self.plot = Plot(self.plot_name)
        self.note = ElidedLabel(font_text(11), "muted")

    def build(self, top: QHBoxLayout, meaning: str) -> None:
        """Lay out the panel below a row of controls; `meaning` is the note's tool tip, which explains the numbers."""
        self.note.setToolTip(meaning)
        both = row((self.table, 6), (self.plot, 5), spacing=12)
        self.set_body(column(top, (both, 1), self.note, spacing=5))
        self.add_to_strip(self.button)
        self.table.horizontalHeader().setSectionsClickable(True)
        connect_all(
            (self.table.horizontalHeader().sectionClicked, self._on_sorted),
            (self.table.clicked, self._on_row),
            (self.table.activated, self._on_row),
        )
        self.plot.connect_to(self._on_pointed, self._on_point, self.told)

    # ---- implemented by subclasses -----------------------------------------------------------------------------------

    def key_of(self, row: Any) -> str:
        """What identifies a row."""
        raise NotImplementedError

    def chosen(self) -> tuple[object, ...]:
        """The settings beside the table that change what is shown."""
        return ()

    def words_below(self, answers: tuple[Any, ...], has_plot: bool) -> str:
        """The line below; a refusal is shown in its place."""
        raise NotImplementedError

    def show_rows(self, state: ShownRows) -> None:
        """Fill the table, and the plot if it has room."""
        raise NotImplementedError

    # ---- intents -------------------------------------------------------------------------------------------------

    def add_to_menu(self, menu: QMenu) -> None:
        if self.measurement.answers:
            menu.addAction("Copy table as CSV", self.copy_table)
            menu.addAction("Save table…", self.save_table)
            menu.addSeparator()

    def csv_text(self) -> str:
        return measured_rows.csv_text(self.rows(), self.columns)

    def copy_table(self) -> None:
        """Copy the rows to the clipboard, with numbers in full precision."""
        QGuiApplication.clipboard().setText(self.csv_text())
        self.told.emit(f"{counted(len(self.rows()), 'row')} copied as CSV")

    def save_table(self) -> None:
        """Ask for a file and write the rows as CSV."""
        path, _ = QFileDialog.getSaveFileName(self, "Save table", self.file_name, "CSV table (*.csv)")
        if not path:
            return
        problem = save_text(self.csv_text(), Path(path))
        self.told.emit(problem or f"Table saved to {path}")

    def _on_sorted(self, column: int) -> None:
        old, was_descending = self._sort
        self._sort = (column, not was_descending) if column == old else (column, column in self.descending)
        self.refresh()

    def _on_row(self, index: QModelIndex) -> None:
        rows = self.sorted_rows()
        if index.row() < len(rows):
            self._mark(self.key_of(rows[index.row()]))

    def _mark(self, key: str) -> None:
        self._marked = "" if key == self._marked else key
        self.refresh()

    def _on_point(self, index: int) -> None:
        self._mark(self.point_keys[index])

    def _on_pointed(self, index: int | None) -> None:
        self._pointed = self.point_keys[index] if index is not None else ""
        self.refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def rows(self) -> tuple[Any, ...]:
        return tuple(answer.row for answer in self.measurement.answers)

    def sorted_rows(self) -> list[Any]:
        return measured_rows.sorted_rows(self.rows(), self.columns, *self._sort)

    def read(self) -> ShownRows | str:
        answers, problem = self.measurement.answers, self.problem()
        if not answers and problem:
            return problem
        is_wide = self.width() >= _WIDE
        has_plot = bool(answers) and (is_wide or self.choice == PLOT)
        has_table = is_wide or self.choice == TABLE
        note = self.measurement.refusal or self.words_below(answers, has_plot)
        state = self.measurement.state
        return ShownRows(
            answers, state, self._sort, self._marked, self._pointed, has_table, has_plot, self.chosen(), note
        )

    def show_state(self, state: ShownRows) -> None:
        self.show_choices(not (state.has_table and state.has_plot))
        self.table.setVisible(state.has_table)
        self.plot.setVisible(state.has_plot)
        self.note.setText(state.note)
        self.show_rows(state)
