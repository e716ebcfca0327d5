"""Everything that is known of the selected token."""

from __future__ import annotations

import math

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QFont, QHideEvent, QShowEvent
from PySide6.QtWidgets import QLabel, QVBoxLayout, QWidget

from app.draw import attention as attention_draw
from app.draw import spark as spark_draw
from app.draw.colormap import Floats, packed, signed_index
from app.draw.format import brief, decimal, milliseconds, percent, thousands, token_label
from app.kit.facts import Fact, Facts, WholeLines
from app.kit.panel import Panel
from app.kit.pictures import signed_colors
from app.kit.provenance import STORED_NOW, drop_of, holders_of, score_words, shown_record, tell_source
from app.kit.theme import Theme, font_fixed
from app.models import Models, Token
from app.models.page_places import page_of
from app.models.slices import ATTENTION, ROW, TABLE, WALL
from engine.wire.records import AttentionSlice, RowSlice, StepRecord

_SAME = 1e-4  # two ways of summing the same squares differ by less


class InspectorView(Panel):
    """Follows the selection; without one it shows the newest token."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Inspector", parent)
        self._models = models
        self._drawn: tuple[object, ...] = ()
        self._under_cursor = ""
        self._text = QLabel()
        self._text.setTextFormat(Qt.TextFormat.PlainText)
        self._text.setFont(font_fixed(18, QFont.Weight.Medium))
        self._text.setMinimumWidth(1)
        self._text.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        self._facts = Facts()
        self._facts.setAccessibleName("Facts about the token")
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(0)
        column.addWidget(self._text)
        column.addSpacing(6)
        column.addWidget(WholeLines(self._facts), 1)
        self.set_body(body)
        models.selection.changed.connect(self._refresh)
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        models.slices.changed.connect(self._on_slice)
        self._refresh()

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._drawn = ()
        self._refresh()

    def show_value(self, text: str) -> None:
        """The exact value under the cursor of another picture, the empty text for none."""
        if text != self._under_cursor:
            self._under_cursor = text
            self._refresh()

    def _on_slice(self, kind: str) -> None:
        wall = self._models.slices.wall
        is_holding = kind == WALL and wall is not None and wall.holders is not None
        if (kind in (ROW, ATTENTION, TABLE) or is_holding) and not self._models.status.is_running:
            self._refresh()  # while the engine runs they come with the words of a step

    # ---- showing -------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        record = shown_record(self._models)
        token = self._token()
        if record is None or token is None:
            self.set_empty("Click a token, a column or a page to see everything about it.")
            self.set_provenance("")
            self.set_detail("")
            self._drawn = ()
            return
        self.set_empty(None)
        row, attention = self._row(token), self._attention(record)
        table = self._models.slices.table
        wall = self._models.slices.wall
        holding = wall if wall is not None and wall.holders is not None else None
        now = self._models.selection.now
        key = (record, token, row, attention, table, holding, now, self._under_cursor, self.theme)
        tell_source(self, self._models, "recorded", "", record.step)
        if key == self._drawn:
            return
        self._drawn = key
        is_newest = self._models.selection.now.position is None
        self.set_detail("newest token" if is_newest else f"token {token.position}")
        label = token_label(token.text, 40)
        if label != self._text.text():
            self._text.setText(label)
        facts = [*self._about(token), *self._norms(token, row), *self._looked_at(token, attention), *self._values(row)]
        self._facts.show_facts((*facts, *self._warnings(record, token)))

    def _token(self) -> Token | None:
        now = self._models.selection.now
        count = self._models.timeline.num_tokens(now.seq_id, now.step)
        position = now.position if now.position is not None else count - 1
        tokens = self._models.timeline.tokens(now.seq_id)
        # a position that this step has not reached is no token of it
        return tokens[position] if 0 <= position < min(count, len(tokens)) else None

    def _row(self, token: Token) -> RowSlice | None:
        piece, now = self._models.slices.row, self._models.selection.now
        is_mine = piece is not None and (piece.request.seq_id, piece.request.position) == (now.seq_id, token.position)
        return piece if is_mine else None

    def _attention(self, record: StepRecord) -> AttentionSlice | None:
        piece = self._models.slices.attention
        return piece if piece is not None and piece.request.step == record.step and piece.weights.size else None

    def _about(self, token: Token) -> list[Fact]:
        written = self._models.timeline.record(token.step)
        origin = self._origin(token)
        step = f"step {thousands(token.step)}"
        took = f" · {milliseconds(written.timings.total_ms)}" if written is not None else ""
        facts = [
            Fact("position · id", f"{thousands(token.position)} · {thousands(token.token_id)}"),
            Fact("written at", f"{step} · {origin}{took}", short=f"{step} · {origin}"),
        ]
        facts += self._page(token)
        if token.is_served:
            facts.append(Fact("surprisal", "not computed: its page was found", role="muted"))
        elif token.surprisal is None:
            facts.append(Fact("surprisal", "nothing predicted it", role="muted"))
        else:
            bits = f"{decimal(token.surprisal)} nats  (p {percent(math.exp(-token.surprisal))})"
            facts.append(Fact("surprisal", bits, short=f"{decimal(token.surprisal)} nats"))
        if self._under_cursor:
            place, _, value = self._under_cursor.split("   ")[0].rpartition(" = ")
            facts.append(Fact("under cursor", f"{place} = {value}" if place else value, short=value))
        return facts

    def _origin(self, token: Token) -> str:
        if token.is_served:
            return "prefix hit"
        return "prompt" if token.is_prompt else "forced" if token.forced else "sampled"

    def _page(self, token: Token) -> list[Fact]:
        """Where a paged cache keeps it."""
        record = shown_record(self._models)
        if record is None or not record.page_maps:
            return []
        page_id = page_of(self._models, record, 0, token.position)
        if page_id is None:
            return []
        size = record.page_maps[0].page_size
        slot = page_id * size + token.position % size
        return [Fact("page · slot", f"{thousands(page_id)} · {thousands(slot)}")]

    def _norms(self, token: Token, row: RowSlice | None) -> list[Fact]:
        """Norms as the forward wrote the rows, and as the cache holds them where a codec or a rule has changed them."""
        part = self._models.timeline.part(self._models.selection.now.seq_id, token.step)
        norms = spark_draw.token_norms(part, token.position) if part is not None else None
        if norms is None:
            return [Fact("‖k‖, ‖v‖ by layer", "not recorded", role="muted")]
        layer = self._models.selection.now.layer
        marked = norms.layers.index(layer) if layer in norms.layers else None
        facts: list[Fact] = []
        for name, written, rows, color in (
            ("‖k‖", norms.mean_keys(), row.keys if row is not None else (), "page_used"),
            ("‖v‖", norms.mean_values(), row.values if row is not None else (), "page_shared"),
        ):
            facts.append(self._norm_fact(f"{name} as written", written, marked, color))
            stored = spark_draw.row_norms(row.layers, rows, norms.layers) if row is not None else written
            if not np.allclose(stored, written, rtol=_SAME, atol=0):
                facts.append(self._norm_fact(f"{name} as stored", stored, marked, color))
        return facts

    def _norm_fact(self, label: str, values: list[float], marked: int | None, color: str) -> Fact:
        text = ""
        if marked is not None:
            is_held = not math.isnan(values[marked])
            text = f"L{self._models.selection.now.layer} {brief(values[marked]) if is_held else 'gone'}"
        bars = tuple(0.0 if math.isnan(value) else value for value in values)  # no row is no bar, and no alarm
        return Fact(label, text, bars=bars, marked=marked, color=color)

    def _looked_at(self, token: Token, attention: AttentionSlice | None) -> list[Fact]:
        """What the newest token gave this one, head by head of the layer that is shown."""
        weights = attention_draw.received(attention, token.position) if attention is not None else None
        if attention is None or weights is None:
            return []
        label = f"attention from newest, L{attention.request.layer}"
        column = token.position - int(attention.positions[0])
        held = weights[~attention_draw.gone(attention)[:, column]]
        if not held.size:
            return [Fact(label, "its row was gone", role="muted")]
        bars = tuple(float(weight) for weight in np.nan_to_num(weights))
        share = f"mean {percent(float(held.mean()))}"
        return [Fact(label, share, bars=bars, color="good", short=percent(float(held.mean())))]

    def _values(self, row: RowSlice | None) -> list[Fact]:
        """The token's own row of K and V in the selected layer and head, as strips of colour with their extremes."""
        now = self._models.selection.now
        if row is None:
            return []
        index = row.layers.index(now.layer) if now.layer in row.layers else None
        facts = self._held(row)
        if index is None or (row.dropped and now.kv_head in row.dropped[index]):
            return facts + self._gone(row)
        for name, rows in (("K", row.keys[index]), ("V", row.values[index])):
            if now.kv_head < len(rows):
                facts.append(
                    self._row_fact(f"{name}[{now.layer}, {now.kv_head}, {row.request.position}]", rows[now.kv_head])
                )
        return facts

    def _held(self, row: RowSlice) -> list[Fact]:
        """Who still holds the token, where some do not."""
        holders = holders_of(self._models)
        if holders is None or row.request.position >= len(holders.heads):
            return []
        heads, layers = holders.heads[row.request.position], holders.layers[row.request.position]
        words = "{0} of {1} heads · {2} of {3} layers"
        text = words.format(heads, holders.all_heads, layers, holders.all_layers)
        label = "now held by" if holders.is_now else "held by"
        return [Fact(label, text, role="muted" if heads < holders.all_heads else "text")]

    def _gone(self, row: RowSlice) -> list[Fact]:
        """What became of the row in the selected layer and head, where a rule dropped it."""
        status, now = self._models.status.now, self._models.selection.now
        if status is None or status.cache.retention.keeps_all:
            return []
        is_now = row.provenance == STORED_NOW
        step = None if is_now else now.step
        label = f"K, V[{now.layer}, {now.kv_head}, {row.request.position}]"
        drop = drop_of(self._models, now.layer, now.kv_head, row.request.position, step)
        if drop is None:
            return [Fact(label, "gone by now" if is_now else "dropped", role="muted")]
        scores = score_words(self._models, drop)
        facts = [
            Fact(label, f"dropped at step {thousands(drop.step)}", role="muted"),
            Fact(drop.rule),
        ]
        return [*facts, Fact("score < kept", scores, role="muted")] if scores else facts

    def _row_fact(self, label: str, values: Floats) -> Fact:
        finite = values[np.isfinite(values)]
        most = float(np.abs(finite).max()) if finite.size else 1.0
        words = packed(signed_colors(self.theme))[signed_index(values, most)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
        return Fact(label, f"{brief(low)} … {brief(high)}", strip=tuple(int(word) for word in words))

    def _warnings(self, record: StepRecord, token: Token) -> list[Fact]:
        """Values of this token that are not numbers, found when it was written, and those of the step shown."""
        written = self._models.timeline.record(token.step)
        found = {*record.non_finite, *(written.non_finite if written is not None else ())}
        facts = []
        for bad in sorted(found, key=lambda b: (b.tensor, b.layer or 0, b.kv_head or 0, b.position)):
            if bad.tensor != "logits" and bad.position != token.position:
                continue
            place = "logits" if bad.layer is None else f"{bad.tensor} L{bad.layer} h{bad.kv_head}"
            facts.append(Fact("⚠ not a number", f"{place} · {thousands(bad.count)}", role="bad"))
        return facts

    # ---- what the engine should send -----------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._models.viewport.update(wants_row=True)
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._models.viewport.update(wants_row=False)
