"""The sheet for a mixed-precision plan: a budget in bytes, and the bits that each layer gets for it."""

from __future__ import annotations

from PySide6.QtCore import QSignalBlocker, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QWidget

from app.draw.format import byte_share, byte_size, divergence_words, thousands
from app.kit.cells import CellTable, ColumnHead, TableCell
from app.kit.fields import DecimalNumber, Knob, small_number
from app.kit.theme import font_text
from app.kit.widgets import ElidedLabel, column, on_change, push_button, row
from engine.spec.cache import CacheSpec, cache_name
from engine.wire.measurements import DamageMap

KIB = 1024


class PlanSheet(QWidget):
    """Signals: `wanted()`, make a plan for the budget; `applied()`, use the plan as the live cache; `picked(layer)`, a
    row was clicked."""

    wanted = Signal()
    applied = Signal()
    picked = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self._exact = 0
        self._found: DamageMap | None = None
        self.share = Knob("budget %", "Bytes of K and V allowed, as a part of the exact ones", 1)
        self.share.set_stops(range(5, 101), 0.1, 100)
        self.share.set_value(35)
        self.kib = small_number(DecimalNumber(), "Budget in KiB", 0.1, 0.1, 1e9, unit="KiB")
        self.kib.setDecimals(1)
        self.kib.setFixedWidth(104)
        self._suggest = push_button("Suggest", self.wanted)
        self.use = push_button("Use this plan", self.applied)
        self._copy = push_button("Copy name", self.copy_name)
        self._copy.setEnabled(False)
        self.table = CellTable("Plan by layer")
        self._sum = ElidedLabel(font_text(11.5))
        top = row((self.share, 1), self.kib, self._suggest)
        bottom = row((self._sum, 1), self._copy, self.use, spacing=8)
        column(top, (self.table, 1), bottom, on=self)
        self.share.moved.connect(self._on_share)
        on_change(self._on_kib, self.kib)
        self.table.chosen.connect(self._on_row)

    @property
    def budget_bytes(self) -> int:
        return round(self.kib.value() * KIB)

    def set_ready(self, is_ready: bool) -> None:
        self._suggest.setEnabled(is_ready)
        self.use.setEnabled(is_ready and self._found is not None and bool(self._found.plan))

    @property
    def name(self) -> str:
        """The plan as a cache name for the command line; empty before there is a plan."""
        codec = self._found.plan_codec if self._found is not None else None
        return cache_name(CacheSpec(codec=codec)) if codec is not None else ""

    def copy_name(self) -> None:
        QGuiApplication.clipboard().setText(self.name)

    def show_plan(self, found: DamageMap | None, exact_bytes: int) -> None:
        if exact_bytes != self._exact:
            self._exact = exact_bytes
            self._on_share()
        if found is self._found and self.table.cells.heads:
            return
        self._found = found
        heads = (
            ColumnHead("layer", "Layer of the model", is_words=True),
            ColumnHead("keys and values", "How the layer's K and V would be written", True),
            ColumnHead("bits", "Bits of a code; 32 or 16 is the number itself"),
            ColumnHead("KL alone", "Of the next token with this layer alone coded, in nats"),
            ColumnHead("bytes", "K and V of the layer, written so"),
        )
        rows = []
        for step in found.plan if found is not None else ():
            keys = step.coding.keys
            rows.append(
                (
                    TableCell(f"L{step.coding.layer}"),
                    TableCell(keys.words, "muted" if keys.is_exact else "text"),
                    TableCell(str(keys.bits or "–")),
                    TableCell(divergence_words(step.kl).removesuffix(" nats")),
                    TableCell(thousands(step.num_bytes)),
                )
            )
        self.table.show_cells(heads, rows)
        self._sum.setText(self._sum_words(found))
        self._copy.setEnabled(bool(self.name))
        self._copy.setToolTip(f"{self.name}\nThe cache by this name, for --cache and --caches" if self.name else "")

    def _sum_words(self, found: DamageMap | None) -> str:
        if found is None or not found.plan or found.plan_kl is None or found.plan_bytes is None:
            return "Which layers should take fewer bits? Set a budget and press Suggest."
        share = byte_share(found.exact_bytes, found.plan_bytes)
        size = f"{byte_size(found.plan_bytes)} of {byte_size(found.exact_bytes)}, {share}"
        return f"whole plan, measured: KL {divergence_words(found.plan_kl)} · {size}"

    def _on_share(self) -> None:
        with QSignalBlocker(self.kib):
            self.kib.setValue(self._exact * self.share.value / 100 / KIB)

    def _on_kib(self) -> None:
        if self._exact:
            self.share.set_value(min(100.0, max(0.1, 100 * self.kib.value() * KIB / self._exact)))

    def _on_row(self, line: int) -> None:
        if self._found is not None:
            self.picked.emit(self._found.plan[line].coding.layer)
