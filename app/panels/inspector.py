"""The Inspector panel: everything known of the selected token."""

from __future__ import annotations

import math

import numpy as np
from msgspec import Struct
from PySide6.QtGui import QFont

from app.draw.colormap import Floats, packed, signed_index
from app.draw.format import brief, decimal, milliseconds, percent, thousands, token_label
from app.draw.grid import row_means
from app.draw.matrix import is_map, matrix_of
from app.kit.facts import Fact, Facts, WholeLines
from app.kit.heatmap import words_at
from app.kit.painting import signed_colors
from app.kit.provenance import (
    DEQUANTISED,
    EXACT,
    STORED_NOW,
    Provenance,
    eviction_of,
    holders_of,
    score_words,
    shown_record,
    source_of,
)
from app.kit.reader import EDITS, SELECTION, STEPS, pictures
from app.kit.theme import current_theme, font_fixed
from app.kit.view import View
from app.kit.widgets import column, plain_label
from app.models import Models, Token
from app.models.pictures import ATTENTION, ROW, TABLE, WALL
from app.models.places import geometry_of, layer_label, num_source, page_of
from engine.counted import counted
from engine.spec.lenses import LENSES
from engine.wire.pictures import AttentionPicture, RowPicture
from engine.wire.records import RowStats, SequenceStep, StepRecord

_SURPRISAL_TIP = "Minus the logarithm of the probability that the model gave this token before it came."
_ATTENTION_TIP = (
    "The share of its attention in this layer that the newest token gives this one: a bar for each head, from left to "
    "right, and their mean."
)
NEWEST_QUERY = ("attention", "attention-map")  # lenses through which the newest query's weights are seen
_EVICTED_TIP = "The selected layer and kv head hold its row no more."
_SAME = 1e-4  # relative; two ways to sum the same squares differ by less


def token_facts(models: Models, record: StepRecord, token: Token) -> tuple[Fact, ...]:
    """List what the history and the newest pictures say of a token at the step of a record."""
    row, attention = _row_of(models, token), _attention_at(models, record)
    return (
        *_about(models, token),
        *_norms(models, token, row),
        *_viewed(models, token, attention),
        *_values(models, row),
        *_edited(models, token),
        *_warnings(models, record, token),
    )


def _row_of(models: Models, token: Token) -> RowPicture | None:
    """The newest picture of rows, if it is for this token."""
    picture, now = models.pictures.row, models.selection.now
    is_mine = picture is not None and (picture.request.seq_id, picture.request.position) == (now.seq_id, token.position)
    return picture if is_mine else None


def _attention_at(models: Models, record: StepRecord) -> AttentionPicture | None:
    """The newest picture of attention, if it is for the selected sequence at this step."""
    picture, seq_id = models.pictures.attention, models.selection.now.seq_id
    if picture is None or not picture.weights.size:
        return None
    return picture if (picture.request.seq_id, picture.request.step) == (seq_id, record.step) else None


def _about(models: Models, token: Token) -> list[Fact]:
    written = models.timeline.record(token.step)
    origin = _origin(token)
    step = f"step {thousands(token.step)}"
    took = f" · {milliseconds(written.timings.total_ms)}" if written is not None and written.timings.total_ms else ""
    facts = [
        Fact(
            "position · id",
            f"{thousands(token.position)} · {token.id_text}",
            tip="Its place in the sequence, from 0, and its number in the vocabulary.",
        ),
        Fact(
            "written at",
            f"{step} · {origin}{took}",
            short=f"{step} · {origin}",
            tip="The step whose forward wrote its rows, where the token came from, and how long the step took.",
        ),
    ]
    facts += _page(models, token)
    source = num_source(models)
    if token.position < source:
        facts.append(
            Fact(
                "read by",
                "the encoder: its rows are in the cross layers",
                role="muted",
                short="the encoder",
                tip="Which part of the model computed this token.",
            )
        )
    elif token.position == source > 0:
        facts.append(Fact("surprisal", "the decoder starts from it", role="muted", tip=_SURPRISAL_TIP))
    elif token.surprisal is None:
        short = token.no_surprisal.split(":")[0]
        facts.append(Fact("surprisal", token.no_surprisal, role="muted", short=short, tip=_SURPRISAL_TIP))
    else:
        bits = f"{decimal(token.surprisal)} nats  (p {percent(math.exp(-token.surprisal))})"
        facts.append(Fact("surprisal", bits, short=f"{decimal(token.surprisal)} nats", tip=_SURPRISAL_TIP))
    return facts


def _edited(models: Models, token: Token) -> list[Fact]:
    """The edits of this token's row."""
    words = words_at(models, token.position).removeprefix("edited: ")
    tip = "What you changed in this token's rows."
    return [Fact("edited by hand", words, short=words.split(", ")[-1], tip=tip)] if words else []


def _origin(token: Token) -> str:
    if token.is_served:
        return "prefix hit"
    return "prompt" if token.is_prompt else "forced" if token.forced else "chosen"


def _page(models: Models, token: Token) -> list[Fact]:
    """The page and slot of the token, in a paged cache."""
    record = shown_record(models)
    if record is None or not record.page_maps:
        return []
    page_id = page_of(models, record, 0, token.position)
    if page_id is None:
        return []
    size = record.page_maps[0].page_size
    slot = page_id * size + (token.position - num_source(models)) % size
    tip = "The page of the pool that holds its rows, and its row in the whole pool."
    return [Fact("page · slot", f"{thousands(page_id)} · {thousands(slot)}", tip=tip)]


def _norms(models: Models, token: Token, row: RowPicture | None) -> list[Fact]:
    """The norms of the rows as the forward wrote them and, where they differ, as the cache stores them."""
    part = models.timeline.part(models.selection.now.seq_id, token.step)
    norms = token_norms(part, token.position) if part is not None else None
    if norms is None and row is not None and row.written is not None:  # of a prompt: a record has the last row alone
        norms = norms_of(row.written)
    if norms is None:
        geometry = geometry_of(models)
        has_rows = geometry is None or geometry.attention_layers
        why = "not recorded" if has_rows else "none: layers keep a state"
        return [Fact("‖k‖, ‖v‖ by layer", why, role="muted", tip=_norm_tip("its key and value", "written"))]
    layer = models.selection.now.layer
    marked = norms.layers.index(layer) if layer in norms.layers else None
    facts, label = list[Fact](), layer_label(models, layer)
    ends = [layer_label(models, each) for each in (norms.layers[0], norms.layers[-1])]
    extent = "–".join(dict.fromkeys(ends))  # of the bars
    for name, written, rows, color in (
        ("‖k‖", norms.keys, row.keys if row is not None else (), "page_used"),
        ("‖v‖", norms.values, row.values if row is not None else (), "page_shared"),
    ):
        tip = _norm_tip(name, "the forward wrote it")
        facts.append(_norm_fact(label, f"{name} {extent}", written, marked, color, tip, absent="none"))
        stored = row_norms(row.layers, rows, norms.layers) if row is not None else written
        if not np.allclose(stored, written, rtol=_SAME, atol=0, equal_nan=True):
            tip = _norm_tip(name, "the cache holds it")
            facts.append(_norm_fact(label, f"{name} stored", stored, marked, color, tip))
    return facts


class TokenNorms(Struct, frozen=True):
    """L2 norms of one token's K and V rows, the mean over heads of each of `layers`."""

    layers: tuple[int, ...]
    keys: list[float]
    values: list[float]


def token_norms(part: SequenceStep, position: int) -> TokenNorms | None:
    """The norms recorded by the step that wrote a position; None if it recorded none."""
    behind = part.num_tokens - position
    return None if part.rows is None or not 0 < behind <= part.rows.num_rows else norms_of(part.rows.of(-behind))


def norms_of(row: RowStats) -> TokenNorms:
    """The norms of a single row."""
    keys, values = (row_means(norm[:, :, 0]) for norm in (row.key_norm, row.value_norm))
    return TokenNorms(row.layers, keys, values)


def row_norms(layers: tuple[int, ...], rows: tuple[Floats, ...], shown: tuple[int, ...]) -> list[float]:
    """The mean over heads of the L2 norms of one position's rows, `[H_kv, D]` for each of `layers`, in the order of
    `shown`; NaN for a layer without the row."""
    norms = np.full((len(rows), max((len(row) for row in rows), default=0)), np.nan)
    for at, row in enumerate(rows):  # the squares of what an edit has scaled may be too large for 32 bits
        norms[at, : len(row)] = np.linalg.norm(row.astype(np.float64), axis=1)
    found = dict(zip(layers, row_means(norms), strict=True))
    return [found.get(layer, float("nan")) for layer in shown]


def _norm_tip(name: str, how: str) -> str:
    return (
        f"The length of {name} as {how}: a bar for each layer from left to right, and the number of the selected one."
    )


def _norm_fact(
    layer: str, label: str, values: list[float], marked: int | None, color: str, tip: str, absent: str = "evicted"
) -> Fact:
    """A bar per layer, and the number of the selected layer; `absent` is the text for a layer without a row."""
    text = ""
    if marked is not None:
        is_held = not math.isnan(values[marked])
        text = f"{layer} {brief(values[marked]) if is_held else absent}"
    bars = tuple(0.0 if math.isnan(value) else value for value in values)  # a missing row has no bar, and is no warning
    return Fact(label, text, bars=bars, marked=marked, color=color, tip=tip)


def _viewed(models: Models, token: Token, attention: AttentionPicture | None) -> list[Fact]:
    """The attention of the newest token to this one, in every head of the layer that is shown, or in the one head whose
    map is."""
    if attention is None or (matrix := matrix_of(attention)).span_of(token.position) is None:
        return []
    label = f"attention {layer_label(models, attention.request.layer)}"
    if is_map(attention):
        label += f" head {attention.request.head}"
    if (weights := received(attention, token.position)) is None:
        how, short = _why_not_told(attention)
        return [Fact(label, how, role="muted", short=short, tip=_ATTENTION_TIP)]
    held = weights[~matrix.is_gone[-len(weights) :, token.position - matrix.start]]
    if not held.size:
        return [Fact(label, "its row was evicted", role="muted", tip=_ATTENTION_TIP)]
    share = percent(float(held.mean()))
    if is_map(attention):  # the bar of one head alone would be full, whatever its weight
        return [Fact(label, share, tip="The share of this head's attention that the newest token gives this one.")]
    bars = tuple(float(weight) for weight in np.nan_to_num(weights))
    return [Fact(label, f"mean {share}", bars=bars, color="good", short=share, tip=_ATTENTION_TIP)]


def _why_not_told(picture: AttentionPicture) -> tuple[str, str]:
    """Why a picture does not have the newest query's weight of a position that it shows, in full and in short."""
    matrix, lens = matrix_of(picture), LENSES[picture.request.lens]
    if lens.name not in NEWEST_QUERY:
        return f"not in the picture of {lens.label}", "not in the picture"
    if matrix.per_column > 1:
        return f"one of {matrix.per_column} in a column: zoom in", "zoom in"
    return f"one of {picture.queries_per_row} queries in a row: choose fewer", "several queries"


def received(picture: AttentionPicture, position: int) -> Floats | None:
    """The weights `[H]` that the newest query gave one position, NaN in heads that had evicted it; of the attention map
    that of its one head. None if the position is pooled with others or outside the picture, the query is pooled with
    others, or the picture is of other numbers."""
    matrix = matrix_of(picture)
    if picture.request.lens not in NEWEST_QUERY or matrix.span_of(position) is None or matrix.per_column > 1:
        return None
    first, last = matrix.places[-1].queries or (0, 0)
    return None if last > first else matrix.low[-1 if is_map(picture) else 0 :, position - matrix.start]


def _values(models: Models, row: RowPicture | None) -> list[Fact]:
    """The token's rows of K and V in the selected layer and head, as strips of colour with their lowest and highest
    value.
    """
    now = models.selection.now
    if row is None:
        return []
    index = row.layers.index(now.layer) if now.layer in row.layers else None
    facts = _held(models, row)
    if index is None or (row.evicted and now.kv_head in row.evicted[index]):
        return facts + _gone(models, row)
    for name, rows in (("K", row.keys[index]), ("V", row.values[index])):
        if now.kv_head < len(rows):
            facts.append(_row_fact(f"{name}[{now.layer}, {now.kv_head}, {row.request.position}]", rows[now.kv_head]))
    return [*facts, *_read_as(row, index), *_changed(row, index, now.kv_head)]


def _read_as(row: RowPicture, index: int) -> list[Fact]:
    """Whether attention reads the row from quantised codes, in a cache that has some."""
    if not (row.coded_keys or row.coded_values):
        return []
    keys, values = (DEQUANTISED if coded and coded[index] else EXACT for coded in (row.coded_keys, row.coded_values))
    tip = "Whether attention reads this row exactly or back from the codes of a codec."
    return [Fact("read as", keys if keys == values else f"K {keys} · V {values}", tip=tip)]


def _changed(row: RowPicture, index: int, kv_head: int) -> list[Fact]:
    """How far the stored row differs from the written one, if that was captured."""
    facts = []
    for name, held, written in (("K", row.keys, row.written_keys), ("V", row.values, row.written_values)):
        if written and kv_head < len(held[index]):
            most = float(np.abs(held[index][kv_head] - written[index][kv_head]).max())
            text = f"by up to {brief(most)}" if most else "as it was written, to the bit"
            tip = (
                f"The largest difference between any number of {name} as the forward wrote it and as it is stored now."
            )
            facts.append(Fact(f"{name} changed since", text, role="text" if most else "muted", tip=tip))
    return facts


def _held(models: Models, row: RowPicture) -> list[Fact]:
    """How many heads and layers still hold the token's row, if some evicted it."""
    holders = holders_of(models)
    if holders is None or row.request.position >= len(holders.heads):
        return []
    heads, layers = holders.heads[row.request.position], holders.layers[row.request.position]
    text = f"{heads} of {counted(holders.all_heads, 'head')} · {layers} of {counted(holders.all_layers, 'layer')}"
    label = "now held by" if holders.is_now else "held by"
    tip = "How many heads still hold its row, and in how many layers; a rule evicted the others."
    return [Fact(label, text, role="muted" if heads < holders.all_heads else "text", tip=tip)]


def _gone(models: Models, row: RowPicture) -> list[Fact]:
    """At which step a rule evicted the row of the selected layer and head, and why."""
    status, now = models.status.now, models.selection.now
    if status.cache.retention.keeps_all:
        return []
    is_now = row.provenance == STORED_NOW
    step = None if is_now else now.step
    label = f"K, V[{now.layer}, {now.kv_head}, {row.request.position}]"
    eviction = eviction_of(models, now.layer, now.kv_head, row.request.position, step)
    if eviction is None:
        return [Fact(label, "evicted by now" if is_now else "evicted", role="muted", tip=_EVICTED_TIP)]
    scores = score_words(models, eviction)
    facts = [
        Fact(label, f"evicted at step {thousands(eviction.step)}", role="muted", tip=_EVICTED_TIP),
        Fact(eviction.rule, tip="The rule that evicted it."),
    ]
    tip = "Its score when it was evicted, and the lowest score of a row that was kept."
    return [*facts, Fact("score < kept", scores, role="muted", tip=tip)] if scores else facts


def _row_fact(label: str, values: Floats) -> Fact:
    finite = values[np.isfinite(values)]
    most = float(np.abs(finite).max()) if finite.size else 1.0
    words = packed(signed_colors(current_theme()))[signed_index(values, most)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (math.nan, math.nan)
    tip = (
        "Its row, by layer, kv head and position: a colour for each channel from left to right, and the lowest and the "
        "highest number."
    )
    return Fact(label, f"{brief(low)} … {brief(high)}", strip=tuple(int(word) for word in words), tip=tip)


def _warnings(models: Models, record: StepRecord, token: Token) -> list[Fact]:
    """NaN and Inf values of this token, found when its row was written, and those found at the step shown."""
    written = models.timeline.record(token.step)
    found = {*record.non_finite, *(written.non_finite if written is not None else ())}
    facts = []
    for bad in sorted(found, key=lambda b: (b.tensor, b.layer or 0, b.kv_head or 0, b.position)):
        if bad.tensor != "logits" and bad.position != token.position:
            continue
        place = "logits" if bad.layer is None else f"{bad.tensor} L{bad.layer} h{bad.kv_head}"
        tip = "Where NaN or Inf was found, and how many numbers."
        facts.append(Fact("⚠ not a number", f"{place} · {thousands(bad.count)}", role="bad", tip=tip))
    return facts


# ---- the panel -------------------------------------------------------------------------------------------------------


class InspectorState(Struct, frozen=True):
    """A token at a step, with its facts. `is_newest`: no token is selected."""

    token: Token
    step: int
    is_newest: bool
    facts: tuple[Fact, ...]


class InspectorView(View[InspectorState]):
    """Follows the selection; without a selected token it shows the newest."""

    name = "inspector"
    follows = (SELECTION, STEPS, EDITS, pictures(ROW, ATTENTION, TABLE, WALL, at_rest=True))

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._text = plain_label(font=font_fixed(18, QFont.Weight.Medium), can_select=True)
        self._text.setMinimumWidth(1)
        self.facts = Facts("Facts about the token")
        self.set_body(column(self._text, 6, (WholeLines(self.facts), 1), spacing=0))
        self.follow(models)

    def want(self, *, is_visible: bool) -> None:
        self._models.viewport.update(wants_row=is_visible)

    def read(self) -> InspectorState | str:
        record, token = shown_record(self._models), self._token()
        if record is None or token is None:
            now = self._models.selection.now
            if record is not None and (now.position or 0) in range(1, self._models.timeline.num_tokens(now.seq_id)):
                return f"Token {thousands(now.position or 0)} was not there yet after step {thousands(record.step)}."
            return "Click a token, a column or a page to see everything about it."
        facts = token_facts(self._models, record, token)
        return InspectorState(token, record.step, self._models.selection.now.position is None, facts)

    def _token(self) -> Token | None:
        now = self._models.selection.now
        count = self._models.timeline.num_tokens(now.seq_id, now.step)
        position = now.position if now.position is not None else count - 1
        tokens = self._models.timeline.tokens(now.seq_id)
        # a position that this step has not reached has no token here
        return tokens[position] if 0 <= position < min(count, len(tokens)) else None

    def provenance(self, state: InspectorState) -> Provenance:
        return source_of(self._models, "recorded", "", state.step)

    def show_state(self, state: InspectorState) -> None:
        self.set_detail("newest token" if state.is_newest else f"token {thousands(state.token.position)}")
        label = token_label(state.token.text, 40)
        if label != self._text.text():
            self._text.setText(label)
        self.facts.show_facts(state.facts)
