"""Every cache mode on the same tokens: what each holds, how fast it is, and what it changes."""

from __future__ import annotations

from pathlib import Path

from PySide6.QtCore import QModelIndex
from PySide6.QtGui import QGuiApplication, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QFileDialog, QHBoxLayout, QMenu, QSpinBox, QVBoxLayout, QWidget

from app.draw.format import brief, byte_size, decimal, percent, thousands
from app.kit.cells import Cell, CellTable, Head
from app.kit.chart.plot import Plot
from app.kit.files import save_text
from app.kit.labels import ElidedLabel, tint
from app.kit.measurement import AskButton, MeasuringPanel
from app.kit.theme import Theme, font_text
from app.kit.units import inset
from app.models import Models
from app.panels.sweep import draw
from app.panels.sweep.chart import sweep_chart
from app.panels.sweep.draw import Row
from engine.predict.capacity import context_length
from engine.spec.cache import CacheSpec
from engine.spec.presets import PRESETS, cache_label, cache_name, cache_summary, size_words
from engine.spec.sampling import Prompt
from engine.spec.tuning import fitted
from engine.wire.commands import Sweep
from engine.wire.records import SweepRow, Swept

TABLE, PLOT = "table", "plot"
LIVE, PROMPT = "live", "prompt"
MAX_STEPS = 512
_WIDE = 760
_SHARES: tuple[float | None, ...] = (None, 0.5, 0.25, 0.125)


class SweepView(MeasuringPanel):
    """A click on a heading sorts, on a row marks its point. The table can be copied or saved as CSV."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Sweep", parent)
        self._models = models
        self._view = TABLE
        self._sort: tuple[int, bool] = (-1, False)
        self._marked = self._pointed = ""
        self._cloud = draw.cloud(())
        self._drawn: tuple[object, ...] = ()
        self._measurement = models.measurements.sweep
        self._button = AskButton(self._measurement, theme, "Measure all")
        self._button.setAccessibleName("Measure every cache mode")
        self._source, self._steps, self._budgets = QComboBox(), QSpinBox(), QComboBox()
        self._table = CellTable("Cache modes side by side")
        self.plot = Plot(theme, "Bytes against KL of every cache mode")
        self._note = ElidedLabel()
        self._build()
        self._measurement.changed.connect(self._refresh)
        models.status.changed.connect(self._refresh)
        models.selection.changed.connect(self._refresh)
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        self.set_theme(theme)

    def _build(self) -> None:
        self._source.addItem("all tokens", LIVE)
        self._source.addItem("prompt", PROMPT)
        self._source.setAccessibleName("Tokens to start from")
        self._source.setToolTip("Which tokens of the selected sequence every mode is given first")
        self._steps.setRange(2, MAX_STEPS)
        self._steps.setValue(24)
        self._steps.setAccessibleName("Steps")
        self._steps.setToolTip("How many tokens follow: those that the exact model chooses")
        names = ("preset budgets", "budget ½", "budget ¼", "budget ⅛")
        self._budgets.addItems(names)
        self._budgets.setCurrentIndex(2)
        self._budgets.setAccessibleName("Budgets")
        self._budgets.setToolTip(
            "Rows kept by the modes that drop rows: as their presets say (256), or a share of all tokens; "
            "with a share, KIVI's exact residual is one group"
        )
        row = QHBoxLayout()
        row.setContentsMargins(0, 0, 0, 0)
        row.setSpacing(6)
        for widget in (self._source, self._steps, self._budgets):
            widget.setObjectName("small")
            widget.setFont(font_text(11.5))
            widget.setFixedHeight(20)
            row.addWidget(widget)
        inset(self._steps, "steps")
        self._source.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        row.addStretch(1)
        self._note.setFont(font_text(11))
        both = QHBoxLayout()
        both.setContentsMargins(0, 0, 0, 0)
        both.setSpacing(12)
        both.addWidget(self._table, 6)
        both.addWidget(self.plot, 5)
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(5)
        column.addLayout(row)
        column.addLayout(both, 1)
        column.addWidget(self._note)
        self.set_body(body)
        self.add_to_strip(self._button)
        self._table.horizontalHeader().setSectionsClickable(True)
        self._table.horizontalHeader().sectionClicked.connect(self._on_sorted)
        self._table.clicked.connect(self._on_row)
        self._table.activated.connect(self._on_row)
        self._button.asked.connect(self.ask)
        self._steps.lineEdit().returnPressed.connect(self.ask)
        self._button.stopped.connect(self.cancelled)
        self._source.currentIndexChanged.connect(self._refresh)
        self.plot.pointed.connect(self._on_pointed)
        self.plot.picked.connect(self._on_point)
        self.plot.told.connect(self.told)
        self.chosen.connect(self.choose)

    # ---- intents -------------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Measure every mode on the chosen tokens; a sweep that is going on goes on."""
        if self._measurement.is_waiting or self._problem():
            return
        ids = self._token_ids()
        share = _SHARES[self._budgets.currentIndex()]
        steps = self._steps.value()
        caches = tuple((name, fitted(spec, len(ids) + steps, share)) for name, spec in self._modes().items())
        self.asked.emit(Sweep(Prompt(token_ids=ids), steps, caches))

    def measure(self) -> None:
        self.ask()

    def choose(self, view: str) -> None:
        """Show the table, or the plot; a wide panel shows both."""
        self._view = view
        self.set_choice(view)
        self._refresh()

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
        self._drawn = ()
        self._refresh()

    def _on_row(self, index: QModelIndex) -> None:
        rows = self._sorted()
        if index.row() < len(rows):
            self._on_picked(rows[index.row()].cache)

    def _on_picked(self, name: str) -> None:
        self._marked = "" if name == self._marked else name
        self._refresh()

    def _on_point(self, index: int) -> None:
        self._on_picked(self._cloud.names[index])

    def _on_pointed(self, index: int | None) -> None:
        self._pointed = self._cloud.names[index] if index is not None else ""
        self._refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._button.set_theme(theme)
        self._drawn = ()
        self._refresh()

    def _rows(self) -> tuple[Row, ...]:
        return tuple(swept.row for swept in self._measurement.answers)

    def _sorted(self) -> list[Row]:
        return draw.sorted_rows(self._rows(), *self._sort)

    def _token_ids(self) -> tuple[int, ...]:
        """The tokens to start from: all that are in the cache of the selected sequence, or its prompt; as many of them
        as leave the steps room in the model's context."""
        tokens = self._models.timeline.tokens(self._models.selection.now.seq_id)
        if self._source.currentData() == PROMPT:
            tokens = tuple(token for token in tokens if token.is_prompt)
        return tuple(token.token_id for token in tokens[: max(1, self._most_tokens())])

    def _most_tokens(self) -> int:
        status = self._models.status.now
        model = status.model if status is not None else None
        return context_length(model.geometry) - self._steps.value() if model is not None else MAX_STEPS

    def _problem(self) -> str:
        status = self._models.status.now
        if status is None or status.model is None:
            return "A model is needed first."
        if not self._models.timeline.num_tokens(self._models.selection.now.seq_id):
            return "Send a prompt first: every cache mode is measured on its tokens."
        return ""

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        problem, swept = self._problem(), self._measurement.answers
        self._button.set_reason(problem)
        is_wide = self.width() >= _WIDE
        marked = self._pointed or self._marked
        key = (
            swept, self._sort, marked, self._view, is_wide, problem, self._measurement.state,
            self._measurement.done, self.theme, self._source.currentIndex(),
            0 if swept else self._models.timeline.num_tokens(self._models.selection.now.seq_id),
        )  # fmt: skip
        if key == self._drawn:
            return
        self._drawn = key
        if not swept and problem:
            self.set_empty(problem)
            self.set_choices(())
            self.set_provenance("")
            return
        self.set_empty(None)
        self.set_provenance("measured" if swept else "", "recomputed", self._source_words(swept))
        self._show_choices(is_wide and bool(swept))
        self._table.setVisible(is_wide or self._view == TABLE)
        self.plot.setVisible(bool(swept) and (is_wide or self._view == PLOT))
        self._note.setText(self._measurement.refusal or self._note_words())
        self._note.setToolTip(self._meaning())
        tint(self._note, self.theme, "muted")
        cells = [self._cells(row, swept) for row in self._sorted()]
        self._table.show_cells(self._heads(), cells + self._still_to_come(swept))
        names = {name: cache_label(spec) for name, spec in self._swept_modes().items()}
        if self.plot.isVisibleTo(self):
            self._cloud = draw.cloud(self._rows())
            self.plot.show_chart(self.theme, sweep_chart(self._cloud, names, marked, self._rests_on(swept)))
            self.plot.show_words(self._point_words(marked))

    def _show_choices(self, has_both: bool) -> None:
        if has_both:
            self.set_choices(())
            return
        self.set_choices(
            (
                (TABLE, "table", "Every mode in numbers; a heading sorts"),
                (PLOT, "plot", "Bytes against KL, both logarithmic"),
            )
        )
        self.set_choice(self._view)

    def _source_words(self, swept: tuple[Swept, ...]) -> str:
        if not swept:
            return ""
        request = swept[0].request
        num_prompt = len(request.prompt.token_ids or ())
        words = f"measured · {thousands(num_prompt)} + {thousands(request.num_steps)} tokens"
        is_partial = not swept[-1].is_last and not self._measurement.is_waiting
        total = len(request.caches)
        return words + (f" · stopped after {len(swept)} of {total}" if is_partial else "")

    def _rests_on(self, swept: tuple[Swept, ...]) -> str:
        """How much was measured: what is best after a few tokens may not be so after many."""
        if not swept:
            return ""
        request = swept[0].request
        num_prompt = len(request.prompt.token_ids or ())
        return f"{thousands(request.num_steps)} steps after {thousands(num_prompt)} tokens"

    def _note_words(self) -> str:
        swept, count = self._measurement.answers, len(self._token_ids())
        if not swept and not self._measurement.is_waiting:
            held = self._models.timeline.num_tokens(self._models.selection.now.seq_id)
            first = "the first " if count == self._most_tokens() < held else ""
            words = "from {0}{1} tokens, {2} modes: measure them all"
            return words.format(first, thousands(count), len(self._modes()))
        words = "ppl is of the tokens that the exact model chose, not of a text that people wrote"
        if not swept or self.plot.isVisible():  # the plot says it itself
            return words
        return f"over {self._rests_on(swept)}; {words}"

    def _meaning(self) -> str:
        return (
            "Every mode is fed the same tokens: those the exact model chooses greedily after the prompt. KL and top-1 "
            "compare each step with the model without a cache. Perplexity is of those very tokens: how sure a mode is "
            "of what the exact model says, not of a text that people wrote."
        )

    def _heads(self) -> list[Head]:
        heads = [
            Head("cache", is_words=True, most=124),
            Head("KV", "Bytes of K and V stored at the end"),
            Head("tok/s", "Decode steps a second, nothing observed"),
            Head("mean KL", "Nats, against the model without a cache, mean of all steps"),
            Head("top-1", "Steps whose most probable token is the same"),
            Head("ppl", self._meaning()),
            Head("exact", "Whether it hands attention exactly what was computed"),
        ]
        column, is_descending = self._sort
        if column >= 0:
            head = heads[column]
            heads[column] = Head(head.text + (" ↓" if is_descending else " ↑"), head.tip, head.is_words, head.most)
        return heads

    def _cells(self, row: Row, swept: tuple[Swept, ...]) -> list[Cell]:
        spec = self._swept_modes()[row.cache]
        label = cache_label(spec)
        tip = "\n".join(part for part in (cache_summary(spec), ", ".join(size_words(spec))) if part)
        if not isinstance(row, SweepRow):
            reason = Cell(row.unavailable, "muted", row.unavailable, is_wide=True)
            return [Cell(label, "muted", tip), reason, *[Cell("")] * 5]
        is_marked = row.cache == self._marked
        return [
            Cell(label, "selected" if is_marked else "text", tip, is_marked),
            Cell(byte_size(row.kv_bytes) if row.kv_bytes else "–", tip=self._bytes_tip(row)),
            Cell(decimal(row.tok_per_s, 0)),
            Cell("0" if row.mean_kl < draw.LEAST_KL else brief(row.mean_kl, 2), tip=brief(row.mean_kl)),
            Cell(percent(row.top1_agreement).replace(".0 %", " %")),
            Cell(decimal(row.perplexity) if row.perplexity < 1e5 else brief(row.perplexity, 2)),
            Cell("✓", "good", "lossless") if row.lossless else self._loss(row),
        ]

    def _modes(self) -> dict[str, CacheSpec]:
        """What a sweep tries: every preset, and the cache in use under its own name where no preset has it."""
        modes = {name: preset.spec for name, preset in PRESETS.items()}
        status = self._models.status.now
        if status is not None:
            modes.setdefault(cache_name(status.cache), status.cache)
        return modes

    def _swept_modes(self) -> dict[str, CacheSpec]:
        """The modes of the sweep that is shown, as they were sized; before one, those that it will try."""
        swept = self._measurement.answers
        return dict(swept[0].request.caches) if swept else self._modes()

    def _still_to_come(self, swept: tuple[Swept, ...]) -> list[list[Cell]]:
        """Before a sweep every mode with what it is; while one runs, those that wait."""
        if swept and not self._measurement.is_waiting:
            return []
        done = {row.cache for row in self._rows()}
        rest = [spec for name, spec in self._swept_modes().items() if name not in done]
        return [
            [Cell(cache_label(s), "muted"), Cell(cache_summary(s), "muted", cache_summary(s), is_wide=True)]
            + [Cell("")] * 5
            for s in rest
        ]

    def _bytes_tip(self, row: SweepRow) -> str:
        return f"{thousands(row.kv_bytes)} bytes" if row.kv_bytes else "It keeps nothing."

    def _loss(self, row: SweepRow) -> Cell:
        """A lossy mode that had nothing to lose yet says so: its budget or its residual holds every token."""
        exact = next((r for r in self._rows() if r.cache == "growing" and isinstance(r, SweepRow)), None)
        is_idle = isinstance(exact, SweepRow) and row.kv_bytes == exact.kv_bytes and row.mean_kl < draw.LEAST_KL
        if is_idle:
            return Cell("(✓)", "muted", "lossy, but nothing is lost yet: it holds every token exactly")
        return Cell("–", "muted", "lossy")

    def _point_words(self, name: str) -> str:
        row = next((row for row in self._rows() if row.cache == name), None)
        if not isinstance(row, SweepRow):
            return ""
        kl = "0" if row.mean_kl < draw.LEAST_KL else brief(row.mean_kl, 2)
        label = cache_label(self._swept_modes()[name])
        return f"{label} · {byte_size(row.kv_bytes)} · KL {kl} · top-1 {percent(row.top1_agreement)}"

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._refresh()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._refresh()
