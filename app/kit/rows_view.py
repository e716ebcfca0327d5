"""The base of measurements answered row by row: a sortable table beside a plot, which can be copied or saved as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from msgspec import Struct
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QHBoxLayout, QMenu, QSpinBox

from app.kit.asking import AskingView
from app.kit.cells import CellTable, ColumnHead, TableCell, with_arrow
from app.kit.chart import Chart
from app.kit.fields import SmallBox
from app.kit.provenance import Provenance
from app.kit.theme import font_text
from app.kit.widgets import ElidedLabel, column, connect_all, on_change, row
from app.models import Models
from app.models.measurement import MeasurementState
from engine.counted import counted
from engine.spec.cache import CacheSpec, cache_name


def is_refused(row: Any) -> bool:
    """Whether the row gives a reason instead of a measurement."""
    return hasattr(row, "unavailable")


def sorted_by(rows: Sequence[Any], columns: Sequence[str], column: int, is_descending: bool) -> list[Any]:
    """Sort by a column (-1: keep the order); rows without a value in it, then refused ones, come last in either
    order."""
    there = [row for row in rows if not is_refused(row)]
    missing = [row for row in rows if is_refused(row)]
    if column >= 0:
        values = {id(row): getattr(row, columns[column]) for row in there}
        without = [row for row in there if values[id(row)] is None]
        there = [row for row in there if values[id(row)] is not None]
        there.sort(key=lambda row: values[id(row)], reverse=is_descending)
        there += without
    return [*there, *missing]


def csv_of(rows: Sequence[Any], columns: Sequence[str]) -> str:
    """The table as CSV, with numbers in full precision; the last column says why a row was refused."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*columns, "unavailable"])
    for each in rows:
        writer.writerow([getattr(each, name, "") for name in (*columns, "unavailable")])
    return out.getvalue()


TABLE, PLOT = "table", "plot"
_WIDE = 760


class Column(Struct, frozen=True):
    """A column: the field of a row that it shows and sorts by, its heading, and the cell of a row, which is given all
    rows as well. `downwards`: a first click sorts so; `of_all`: rows that were refused have it too."""

    field: str
    head: ColumnHead
    cell: Callable[[Any, Sequence[Any]], TableCell]
    downwards: bool = False
    of_all: bool = False


class ModeName(Struct, frozen=True):
    """The name of a cache mode in the table and the plot, and what describes it in a tool tip."""

    label: str
    tip: str


class ShownRows(Struct, frozen=True):
    """The answers so far and the measurement's state; how rows are sorted; the keys of the marked row and of the one
    pointed at; whether table and plot have room; the settings beside the table; and the line below."""

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

    A subclass sets the `columns` behind that of the modes' names, the fields of `others` that only CSV has, and the
    controls `boxes` and `steps`; it says what the modes are called, what the numbers rest on, and draws the chart.
    """

    choices_when_empty = False
    reads_size = True
    columns: ClassVar[tuple[Column, ...]]
    others: ClassVar[tuple[str, ...]]
    name_width: ClassVar[float] = 150.0  # greatest width in pixels of the modes' names
    file_name: ClassVar[str]
    table_name: ClassVar[str]
    plot_name: ClassVar[str]
    boxes: tuple[SmallBox, ...]
    steps: QSpinBox

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._sort: tuple[int, bool] = (-1, False)
        self._marked = ""
        self.table = CellTable(self.table_name)
        self.plot = self.new_plot(self.plot_name, self._mark)
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
            (self.table.chosen, self._mark),
            (self.steps.lineEdit().returnPressed, self.measure),
        )
        on_change(self.refresh, *self.boxes, self.steps)

    # ---- implemented by subclasses -----------------------------------------------------------------------------------

    @staticmethod
    def key_of(row: Any) -> str:
        """What identifies a row."""
        raise NotImplementedError

    def words_below(self, answers: tuple[Any, ...], has_plot: bool) -> str:
        """The line below; a refusal is shown in its place."""
        raise NotImplementedError

    def rests_on(self, answers: Sequence[Any]) -> str:
        """How much was measured, and where; empty if no row was."""
        raise NotImplementedError

    def num_wanted(self, request: Any) -> int:
        """How many rows a question asks for."""
        raise NotImplementedError

    def names(self) -> Mapping[str, ModeName]:
        """The names of the modes that rows are of, or are to be of."""
        raise NotImplementedError

    def shown_columns(self) -> tuple[Column, ...]:
        """The columns that the table has now."""
        return self.columns

    def waiting(self, state: ShownRows) -> list[list[TableCell]]:
        """The rows below those that were measured."""
        return []

    def chart(self, state: ShownRows, marked: Any, labels: Mapping[str, str]) -> Chart:
        """The plot, with the row `marked` (or None); `labels` are the names of modes."""
        raise NotImplementedError

    def point_words(self, row: Any, label: str) -> str:
        """A row that was measured in one line."""
        raise NotImplementedError

    # ---- intents -------------------------------------------------------------------------------------------------

    def add_to_menu(self, menu: QMenu) -> None:
        if self.measurement.answers:
            menu.addAction("Copy table as CSV", self.copy_table)
            menu.addAction("Save table…", self.save_table)
            menu.addSeparator()

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of a row, those of the table's columns first."""
        return "cache", *(each.field for each in self.columns), *self.others

    def csv_text(self) -> str:
        return csv_of(self.rows(), self.fields)

    def copy_table(self) -> None:
        """Copy the rows to the clipboard, with numbers in full precision."""
        QGuiApplication.clipboard().setText(self.csv_text())
        self.message.emit(f"{counted(len(self.rows()), 'row')} copied as CSV")

    def save_table(self) -> None:
        """Ask for a file and write the rows as CSV."""
        self.save_text_as("Save table", self.file_name, "CSV table (*.csv)", self.csv_text, "Table saved to")

    def _on_sorted(self, column: int) -> None:
        old, was_descending = self._sort
        downwards = column > 0 and self.columns[column - 1].downwards
        self._sort = (column, not was_descending) if column == old else (column, downwards)
        self.refresh()

    def _mark(self, key: str) -> None:
        self._marked = "" if key == self._marked else key
        self.refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def with_mode_in_use(self, modes: dict[str, CacheSpec]) -> dict[str, CacheSpec]:
        """These modes, and the one in use under its own name if it is none of them."""
        cache = self._models.status.now.cache
        modes.setdefault(cache_name(cache), cache)
        return modes

    def rows(self) -> tuple[Any, ...]:
        return tuple(answer.row for answer in self.measurement.answers)

    def sorted_rows(self) -> list[Any]:
        return sorted_by(self.rows(), self.fields, *self._sort)

    def read(self) -> ShownRows | str:
        answers, problem = self.measurement.answers, self.problem()
        if not answers and problem:
            return problem
        is_wide = self.width() >= _WIDE
        has_plot = bool(answers) and (is_wide or self.choice == PLOT)
        has_table = is_wide or self.choice == TABLE
        note = self.measurement.refusal or self.words_below(answers, has_plot)
        rests_on = self.rests_on(answers) if answers else ""
        chosen = (*(box.currentData() for box in self.boxes), self.steps.value(), rests_on)
        state, pointed = self.measurement.state, self.plot.pointed_key or ""
        return ShownRows(answers, state, self._sort, self._marked, pointed, has_table, has_plot, chosen, note)

    def provenance(self, state: ShownRows) -> Provenance | None:
        if not (answers := state.answers):
            return None
        sentence = f"measured · {self.rests_on(answers)}"
        if not answers[-1].is_last and not state.is_waiting:
            sentence += f" · stopped after {len(answers)} of {self.num_wanted(answers[0].request)}"
        return Provenance("measured", "recomputed", sentence)

    def show_state(self, state: ShownRows) -> None:
        self.show_choices(not (state.has_table and state.has_plot))
        self.table.setVisible(state.has_table)
        self.plot.setVisible(state.has_plot)
        self.note.setText(state.note)
        names = self.names()
        heads = [
            ColumnHead("cache", "Cache mode", is_words=True, most=self.name_width),
            *(each.head for each in self.shown_columns()),
        ]
        rows = self.sorted_rows()
        cells = [self._cells(each, names[each.cache], state) for each in rows] + self.waiting(state)
        self.table.show_cells(with_arrow(heads, *state.sort), cells, [self.key_of(each) for each in rows])
        if not state.has_plot:
            return
        found = next((each for each in state.rows if self.key_of(each) == state.mark), None)
        labels = {name: each.label for name, each in names.items()}
        self.plot.show_chart(self.chart(state, found, labels))
        has_words = found is not None and not is_refused(found)
        self.plot.show_words(self.point_words(found, labels[found.cache]) if found is not None and has_words else "")

    def _cells(self, row: Any, name: ModeName, state: ShownRows) -> list[TableCell]:
        """The cells of a row, or why it was refused; the marked one is highlighted."""
        if is_refused(row):
            known = [each.cell(row, state.rows) for each in self.columns if each.of_all]
            return self.row_of_words(TableCell(name.label, "muted", name.tip), row.unavailable, row.unavailable, known)
        is_marked = self.key_of(row) == state.marked
        first = TableCell(name.label, "selected" if is_marked else "text", name.tip, is_marked)
        return [first, *(each.cell(row, state.rows) for each in self.shown_columns())]

    def row_of_words(self, first: TableCell, words: str, tip: str, known: Sequence[TableCell] = ()) -> list[TableCell]:
        """The cells of a row without numbers: `words` behind the columns that are `known`."""
        rest = len(self.shown_columns()) - len(known) - 1
        return [first, *known, TableCell(words, "muted", tip, is_wide=True), *[TableCell("")] * rest]
