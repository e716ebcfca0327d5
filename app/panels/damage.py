"""The Codec damage panel: what a low-bit codec does to K and V, to attention and to the next token, by layer; and the
mixed-precision plan for a budget in bytes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct
from PySide6.QtCore import QPointF, QSignalBlocker, QTimer, Signal
from PySide6.QtGui import QGuiApplication
from PySide6.QtWidgets import QSpinBox, QWidget

from app.draw.colormap import Floats, robust_limit
from app.draw.format import (
    brief,
    byte_share,
    byte_size,
    bytes_words,
    divergence_words,
    exact,
    milliseconds,
    percent,
    thousands,
)
from app.draw.ghost import Ghosts
from app.draw.matrix import Matrix, MatrixRow
from app.kit.asking import AskingView, why_nothing
from app.kit.bars import Bar, BarRow, BarRows, BarTable
from app.kit.cells import CellTable, ColumnHead, TableCell
from app.kit.facts import FactBar, Reading
from app.kit.fields import CodecChoice, DecimalNumber, Knob, SmallBox, WholeNumber, small_number
from app.kit.heatmap import Marks
from app.kit.map_view import MatrixMaps
from app.kit.provenance import Provenance, token_name
from app.kit.theme import font_fixed, font_text
from app.kit.widgets import (
    ElidedLabel,
    column,
    connect_all,
    holder,
    on_change,
    plain_label,
    push_button,
    row,
    set_text_role,
    stack,
)
from app.models import Models
from app.models.measurement import MeasurementState
from app.models.places import geometry_of
from engine.counted import counted
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.spec.cache import CacheSpec, cache_name
from engine.spec.codec import BITS, CODEC_PARAMETERS, DEFAULT_GROUP, GROUP, RESIDUAL, CodecSpec, Coding, fitting_group
from engine.spec.parameter import Parameter
from engine.wire.commands import SetCache
from engine.wire.measurements import DamageMap, MapDamage

KIB = 1024


class PlanSheet(QWidget):
    """Signals: `wanted()`, make a plan for the budget; `applied()`, use the plan as the live cache; `picked(layer)`, a
    row was clicked."""

    wanted = Signal()
    applied = Signal()
    picked = Signal(object)

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
        self.table.chosen.connect(self.picked)

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
        self.table.show_cells(heads, rows, [step.coding.layer for step in found.plan] if found is not None else ())
        self._sum.setText(*self._sum_words(found))
        self._copy.setEnabled(bool(self.name))
        self._copy.setToolTip(f"{self.name}\nThe cache by this name, for --cache and --caches" if self.name else "")

    def _sum_words(self, found: DamageMap | None) -> tuple[str, str]:
        """What the plan as a whole does, or how to get one, and the same for little room."""
        if found is None or not found.plan or found.plan_kl is None or found.plan_bytes is None:
            return "Which layers should take fewer bits? Set a budget and press Suggest.", "Set a budget, then Suggest."
        kl, share = f"KL {divergence_words(found.plan_kl)}", byte_share(found.exact_bytes, found.plan_bytes)
        size = f"{byte_size(found.plan_bytes)} of {byte_size(found.exact_bytes)}, {share}"
        return f"whole plan, measured: {kl} · {size}", f"measured: {kl} · {share}"

    def _on_share(self) -> None:
        with QSignalBlocker(self.kib):
            self.kib.setValue(self._exact * self.share.value / 100 / KIB)

    def _on_kib(self) -> None:
        if self._exact:
            self.share.set_value(min(100.0, max(0.1, 100 * self.kib.value() * KIB / self._exact)))


# ---- the panel -------------------------------------------------------------------------------------------------------


_FIRST = "int8"  # loses something from the first token on, where KIVI leaves a short prompt exact


class CodecControls(QWidget):
    """Signal: `changed()` on every choice. `chosen` is the codec, or why the choice is impossible."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._geometry: CacheGeometry | None = None
        self._codec = CodecChoice()
        bits = ((words, number, "") for number, words in BITS.choices)
        self._bits = SmallBox(BITS.label, BITS.tip, bits)
        self._group, self._residual = _spin(GROUP), _spin(RESIDUAL)
        self._bits.choose(BITS.default)
        self._codec.choose(_FIRST)
        self._fields = (self._bits, self._group, self._residual)
        for field in self._fields:
            policy = field.sizePolicy()
            policy.setRetainSizeWhenHidden(True)  # so that a codec with more fields pushes no other panel aside
            field.setSizePolicy(policy)
        row(self._codec, *self._fields, None, spacing=4, on=self)
        on_change(self._on_changed, self._codec, *self._fields)
        self._show_fields()

    @property
    def chosen(self) -> CodecSpec | str:
        """The codec, or why the choice is impossible."""
        try:
            return self.codec()
        except InputError as error:
            return str(error)

    @property
    def words(self) -> str:
        """The formula and the paper of each chosen codec."""
        return self._codec.words

    def codec(self) -> CodecSpec:
        """The codec. Raises `InputError` if the choice is impossible."""
        bits = int(self._bits.currentData())
        codec = self._codec.spec(bits, self._group.value(), self._residual.value())
        if codec.is_exact:
            raise InputError("Exact numbers lose nothing: choose a codec for K or for V.")
        return codec

    def choose(self, codec: str, bits: int = 4, values: str = "") -> None:
        """Choose another codec."""
        self._codec.choose(codec, values)
        self._bits.choose(bits)

    def set_geometry(self, geometry: CacheGeometry) -> None:
        """Set group and residual to a size that divides the head dimension of another model."""
        if geometry != self._geometry:
            self._geometry = geometry
            for field in (self._group, self._residual):
                with QSignalBlocker(field):
                    field.setValue(fitting_group(geometry))

    def _on_changed(self) -> None:
        self._show_fields()
        self.changed.emit()

    def _show_fields(self) -> None:
        for parameter, field in zip(CODEC_PARAMETERS, self._fields, strict=True):
            field.setVisible(parameter.name in self._codec.parameters)


def _spin(parameter: Parameter) -> QSpinBox:
    # a residual of one group, so that even a short text has coded rows
    name, most, tip = parameter.name, parameter.most, parameter.tip
    field = small_number(WholeNumber(), name, DEFAULT_GROUP, 1, most, prefix=f"{name} ", tip=tip)
    field.setMaximumWidth(112)
    return field


ATTENTION = "attention row, total variation by query head"
TOKENS, CHANNELS, EFFECT, PLAN = "tokens", "channels", "effect", "plan"
# Where it is cheap, it is measured without being asked, after nothing has changed for this many ms.
REST_MS = 700
CHEAP_MS = 1500.0
SMALL_MODEL = 50_000_000
LOW = 225
MOST_COLUMNS = 512  # of an answer


class DamageState(Struct, frozen=True):
    """The answer for the chosen codec, its formula, or why there is none; the picture of it, and the selected
    layer, head and position.
    `hint`: the errors under the mouse, exactly and for little room. `is_low`: the panel is too low for the numbers, so
    that one line must contain them; `num_columns`: how many have a pixel."""

    found: DamageMap | None
    formula: str
    refusal: str
    state: MeasurementState
    picture: str
    chosen: tuple[int, int, int | None]
    hint: tuple[str, str] | None
    is_low: bool
    num_columns: int


class DamageView(AskingView[DamageState]):
    """Clicking a cell selects its layer, head and token."""

    name, measures = "damage", "damage"
    reads_size = True
    abilities = frozenset(("view.reset",))
    choices = (
        (TOKENS, "tokens", "Error of K and V by layer, head and token"),
        (CHANNELS, "channels", "Error of K and V by layer, head and channel"),
        (EFFECT, "effect", "On the newest attention row, and on the next token by layer"),
        (PLAN, "plan", "Which layers should take fewer bits for a budget"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._hint: tuple[str, str] | None = None
        self.controls = CodecControls()
        named = {"K": "Errors of K by layer and head", "V": "Errors of V by layer and head"}
        self.maps = MatrixMaps(self._column_name, named)
        self.shift = MatrixMaps(self._column_name, {"": "Change of the newest attention row by layer and head"})
        self._matrices: dict[str, Matrix] = {}
        self.bars = BarRows("KL of every layer coded alone", size=10.0)
        self.plan = PlanSheet()
        self.facts = FactBar()
        self.formula, self.readout = ElidedLabel(font_text(11), "muted"), ElidedLabel(font_fixed(11))
        self.why = plain_label(role="warning", wraps=True)
        self.rest = QTimer(self, singleShot=True, interval=REST_MS)
        self._build()
        self._connect()
        self.follow(models)

    def _build(self) -> None:
        self.readout.setMinimumHeight(15)
        self.why.setMinimumSize(1, 1)
        effect = holder(row((self.shift, 1), (self.bars, 1), spacing=14))
        self._sheets = stack(self.maps, effect, self.plan)
        last = row((self.readout, 100), None, self.button)
        parts = (self.controls, self.formula, self.why, (self._sheets, 1), self.facts, last)
        self.set_body(column(*parts, spacing=5))

    def _connect(self) -> None:
        on_change(self.refresh, self.controls)
        for maps in (self.maps, self.shift):
            connect_all((maps.pointed, self._on_pointed), (maps.picked, self._on_picked), (maps.resized, self.refresh))
            connect_all((maps.zoomed, maps.show_range), (maps.zoomed, self.refresh))
        connect_all(
            (self.bars.picked, self.select_layer),
            (self.plan.picked, self.select_layer),
            (self.plan.wanted, self.ask_plan),
            (self.plan.applied, self._on_apply),
            (self.rest.timeout, self._on_rest),
        )

    # ---- intents -------------------------------------------------------------------------------------------------

    def choose(self, choice: str) -> None:
        self._hint = None
        self.reset_view()
        super().choose(choice)

    def reset_view(self) -> None:
        self.maps.show_range(None)

    def request(self) -> MapDamage | None:
        """The question about the codec, on the live rows."""
        return self._request(None)

    def ask_plan(self) -> None:
        """Measure again, with a plan for the budget."""
        request = self._request(self.plan.budget_bytes)
        if request is not None and not (self.measurement.is_waiting or self.problem()):
            self.wants.emit(request)

    def _request(self, budget_bytes: int | None) -> MapDamage | None:
        codec = self.controls.chosen
        if isinstance(codec, str):
            return None
        return MapDamage(self._models.selection.now.seq_id, codec, budget_bytes=budget_bytes)

    def _on_apply(self) -> None:
        found = self.measurement.answer
        if found is not None and found.plan_codec is not None:
            self.wants.emit(SetCache(CacheSpec(codec=found.plan_codec)))

    def _on_picked(self, side: str, point: QPointF) -> None:
        cell = self._matrices[side].at(point.x(), point.y())
        if cell is None or cell.is_gone:
            return
        place: dict[str, int | str] = {"layer": cell.place.layer}
        if self.choice == EFFECT:
            layer = layer_of(self._geometry, cell.place.layer)
            num_heads = layer.num_kv_heads if layer is not None else 1
            place["kv_head"] = cell.column // max(1, self._matrices[side].stop // max(1, num_heads))
        else:
            place |= {"kv_head": cell.place.head, "lens": "keys" if side == "K" else "values"}
        if self.choice == TOKENS:
            place["position"] = cell.first
        self._models.selection.update(**place)

    def _on_pointed(self, point: QPointF | None) -> None:
        self._hint = self._words(point) if point is not None else None
        self.refresh()

    def _column_name(self, column: int) -> str:
        return token_name(self._models, self._models.selection.now.seq_id, column) if self.choice == TOKENS else ""

    # ---- asking automatically ------------------------------------------------------------------------------------

    def refresh(self) -> None:
        if (geometry := self._geometry) is not None:
            self.controls.set_geometry(geometry)
        super().refresh()
        if self.isVisible() and not self._is_asked():
            self.rest.start()

    def _question(self) -> MapDamage | None:
        """The newest question, if it is about the present choice."""
        question, now = self.measurement.question, (self._models.selection.now.seq_id, self.controls.chosen)
        return question if isinstance(question, MapDamage) and (question.seq_id, question.codec) == now else None

    def _is_asked(self) -> bool:
        """Whether the present choice was asked about at the newest step."""
        latest = self._models.timeline.live_path.latest
        return latest is None or (self._question() is not None and self.measurement.step == latest.step)

    def _on_rest(self) -> None:
        """Measure automatically, if it is cheap and the engine is idle."""
        status, found = self._models.status.now, self.measurement.answer
        if not self.isVisible() or status.model is None or self._refusal() or self._is_asked():
            return
        if status.running or status.work is not None or self.measurement.is_waiting:
            self.rest.start()
            return
        is_small = status.model.num_parameters < SMALL_MODEL
        if is_small if found is None or found.plan else found.took_ms < CHEAP_MS:
            self.measure()

    @property
    def _geometry(self) -> CacheGeometry | None:
        return geometry_of(self._models)

    def _refusal(self) -> str:
        """Why the present choice has no answer; empty if it has one or waits for it."""
        codec = self.controls.chosen
        return codec if isinstance(codec, str) else self.measurement.refusal if self._question() is not None else ""

    # ---- showing -------------------------------------------------------------------------------------------------

    def problem(self) -> str:
        return why_nothing(
            self._models,
            "Send a prompt first: then a codec can be measured on the rows that it left.",
            "You are looking back at step {0}. Codecs are measured on the live rows: Ctrl+L goes there.",
            "There is nothing to measure yet: a sequence needs two tokens in its cache.",
        )

    def read(self) -> DamageState | str:
        if problem := self.problem():
            return problem
        now = self._models.selection.now
        found = self.answer
        found = found if found is not None and found.request.codec == self.controls.chosen else None
        is_low = self.height() < LOW
        chosen = (
            now.layer,
            0 if self.choice == EFFECT else now.kv_head,
            now.position if self.choice == TOKENS else None,
        )
        return DamageState(
            found,
            self.controls.words,
            self._refusal(),
            self.measurement.state,
            self.choice,
            chosen,
            self._hint,
            is_low,
            MOST_COLUMNS if self.maps.first.is_zoomed else self.maps.first.num_columns,
        )

    def provenance(self, state: DamageState) -> Provenance | None:
        if (found := state.found) is None:
            return None
        is_old, rebuilt = self.is_old(found), self.rebuilt_words(found)
        place = "on rebuilt rows" if rebuilt else "on a copy"
        words = f"{place} · step {found.step}" if is_old else place
        sentence = f"recomputed on a copy · step {found.step}  {rebuilt}".strip()
        return Provenance(words, "past" if is_old else "recomputed", sentence)

    def show_state(self, state: DamageState) -> None:
        found, is_plan = state.found, state.picture == PLAN
        self._sheets.setCurrentIndex({EFFECT: 1, PLAN: 2}.get(state.picture, 0))
        self._sheets.currentWidget().setVisible(found is not None or is_plan)  # type: ignore[union-attr]
        self.plan.show_plan(found, found.exact_bytes if found is not None else 0)
        self.plan.set_ready(state.state is not MeasurementState.WAITING and not state.refusal)
        if found is not None:
            self._show_picture(state, found)
        self.formula.setVisible(not state.is_low)
        self.formula.setText(state.formula)
        self.facts.setVisible(found is not None and not is_plan and not state.is_low)
        self.facts.show_facts(numbers(found) if found is not None else ())
        self.why.setText(state.refusal)
        self.why.setVisible(bool(state.refusal))
        self.readout.setVisible(not (is_plan and state.is_low) and not state.refusal)
        self.readout.setText(*self.line(state))
        set_text_role(self.readout, "text" if state.hint else "muted")

    def _show_picture(self, state: DamageState, found: DamageMap) -> None:
        layer, head, position = state.chosen
        if state.picture == PLAN:
            return
        if state.picture == EFFECT:
            self._matrices = {"": attention_matrix(found)}
            self.bars.show_table(kl_table(found, layer))
        else:
            most, by_token = state.num_columns, state.picture == TOKENS
            self._matrices = {
                side: error_matrix(found, side, self._geometry, by_token=by_token, most=most) for side in self.maps.maps
            }
        limits = shared_limits(*self._matrices.values())
        for side, matrix in self._matrices.items():
            begins, what = exact_from(matrix), ATTENTION
            marks = Marks(
                left=40,
                selected_row=matrix.row_of(layer, head, None),
                selected=None if position is None else matrix.span_of(position),
                x_lines=() if begins is None else (begins,),
            )
            if side:
                coding = found.request.codec.keys if side == "K" else found.request.codec.values
                kept = f" · {blank_words(coding)}" if begins is not None else ""
                what = f"{side} {coding.label} · relative RMS error by {state.picture[:-1]}{kept}"
            colors = f"colours 0 … {percent(float(limits.max(initial=0)))}"
            maps = self.maps if side else self.shift
            maps.show_matrix(side, matrix, limits, marks, f"{what} · {colors}", is_signed=False)

    def line(self, state: DamageState) -> tuple[str, str]:
        """The last line, whole and for little room: the cell under the mouse, else what to do or to know."""
        found = state.found
        if found is None:
            what = "Each layer is coded alone, then all of them together, on a copy."
            is_asked = state.state is MeasurementState.WAITING
            return ("Measuring …", "") if is_asked else (self.invited(what), self.invited("Press Measure."))
        if state.hint is not None:
            return state.hint
        if found.kv_bytes == found.exact_bytes:
            return "Every row is within the exact residual: nothing is coded.", ""
        if not state.is_low or state.picture == PLAN:
            took = f"Measured on a copy in {milliseconds(found.took_ms)}."
            return f"Point at a cell for its exact error. {took}", took
        kl, size = f"KL {divergence_words(found.kl)}", bytes_words(found.exact_bytes, found.kv_bytes)
        share = byte_share(found.exact_bytes, found.kv_bytes)
        return f"{kl} · {size} ({share})", f"{kl} · {share}"

    def _words(self, point: QPointF) -> tuple[str, str] | None:
        """The errors of a cell, exactly and for little room."""
        cells = {side: matrix.at(point.x(), point.y()) for side, matrix in self._matrices.items()}
        held = {side: cell for side, cell in cells.items() if cell is not None and not cell.is_gone}
        cell = next(iter(held.values()), None)
        if cell is None:
            return None
        if self.choice == EFFECT:
            where = f"layer {cell.place.layer}, head {cell.column}"
            return f"{where}: {error_words(cell.high)} of the weight moved", f"{where}: {percent(cell.high)} moved"
        token = f"{cell.span}] {self._column_name(cell.first)}" if self.choice == TOKENS else f":, {cell.span}]"
        where = f"[{cell.place.layer}, {cell.place.head}, {token}"
        whole, short = (
            "   ".join([where, *(f"{side} {words(one.high)}" for side, one in held.items())])
            for words in (error_words, percent)
        )
        return whole, short


def error_matrix(found: DamageMap, side: str, geometry: CacheGeometry | None, *, by_token: bool, most: int) -> Matrix:
    """The relative errors of K or of V by layer and head, across tokens or channels: in at most so many columns, each
    with the largest error of several."""
    part = found.keys if side == "K" else found.values
    values, rows, sizes = part.by_token if by_token else part.by_channel, [], []
    for index, number in enumerate(found.layers):
        layer, (heads, width) = layer_of(geometry, number), values.shape[1:]
        if layer is not None:
            heads = min(heads, layer.num_kv_heads)
            width = width if by_token else layer.key_dim if side == "K" else layer.value_dim
        rows += [(MatrixRow(number, head), values[index, head]) for head in range(heads)]
        sizes += [width] * heads
    per_column, stop = (found.tokens_per_column, found.num_rows) if by_token else (1, values.shape[2])
    return _matrix(rows, sizes, per_column, stop, most)


def attention_matrix(found: DamageMap) -> Matrix:
    """Total variation of the newest attention row, by layer and query head."""
    rows = [(MatrixRow(layer, 0), shown) for layer, shown in zip(found.layers, found.attention, strict=False)]
    num_heads = found.attention.shape[-1]
    return _matrix(rows, [num_heads] * len(rows), 1, num_heads, num_heads)


def _matrix(
    rows: Sequence[tuple[MatrixRow, Floats]], sizes: list[int], per_column: int, stop: int, most: int
) -> Matrix:
    """`sizes`: the number of columns of each row, beyond which nothing exists."""
    places, lines = tuple(place for place, _ in rows), [line for _, line in rows]
    values = np.stack(lines).astype(np.float32) if lines else np.empty((0, 0), np.float32)
    values = np.where(np.arange(values.shape[1]) < np.array(sizes)[:, None], values, -np.inf) if sizes else values
    times = max(1, -(-values.shape[1] // max(1, most)))
    if times > 1:
        values = np.maximum.reduceat(values, np.arange(0, values.shape[1], times), axis=1)
    is_gone, per_column = values == -np.inf, per_column * times
    values = np.where(is_gone, 0, values).astype(np.float32)
    borders = tuple(row for row, place in enumerate(places) if row and place.layer != places[row - 1].layer)
    is_by_head = any(place.head for place in places)

    def name(row: int) -> str:
        if not 0 <= row < len(places):
            return ""
        return f"L{places[row].layer}·{places[row].head}" if is_by_head else f"L{places[row].layer}"

    gone = Ghosts(is_gone.astype(np.float32), 0, per_column) if is_gone.any() else None
    ends = borders if is_by_head else ()
    return Matrix(values, values, 0, stop, per_column, places, ends, name, (0, stop), gone)


def shared_limits(*matrices: Matrix) -> Floats:
    """The one colour range of all rows: 99.5 % of the cells other than zero are below it."""
    held = [matrix.values[~matrix.is_gone] for matrix in matrices if matrix.values.size]
    limit = robust_limit(np.concatenate(held), sample=1 << 16) if held else 1.0
    return np.full(max(len(matrix.places) for matrix in matrices), limit, np.float32)


def exact_from(matrix: Matrix) -> int | None:
    """The first position from which on no row has an error; None if the last has one."""
    has_error = np.nan_to_num(matrix.shown, nan=1.0).any(axis=0)
    first = int(np.flatnonzero(has_error).max(initial=-1)) + 1
    return first * matrix.per_column if first < matrix.values.shape[1] else None


def blank_words(coding: Coding) -> str:
    """Why rows of that codec have no error: only KIVI keeps a residual exactly."""
    return "kept exact: residual" if coding.is_kivi else "not coded: exact" if coding.is_exact else "no error"


def layer_of(geometry: CacheGeometry | None, index: int) -> LayerGeometry | None:
    return next((layer for layer in geometry.layers if layer.index == index), None) if geometry is not None else None


def kl_table(found: DamageMap, chosen: int) -> BarTable:
    """The KL with all layers coded, then with each layer alone, on one linear scale; the `chosen` layer is
    highlighted."""
    values = [(None, found.kl), *zip(found.layers, (float(kl) for kl in found.kl_by_layer), strict=True)]
    most = max((kl for _, kl in values if np.isfinite(kl)), default=0.0)
    return BarTable(("KL in nats, one layer coded",), tuple(_kl_row(layer, kl, most, chosen) for layer, kl in values))


def _kl_row(layer: int | None, kl: float, most: float, chosen: int) -> BarRow:
    share = min(kl / most, 1.0) if most > 0 and kl == kl else 0.0
    role = "accent" if layer is None else "selected" if layer == chosen else "page_used"
    number = divergence_words(kl).removesuffix(" nats")
    whose = "every layer coded" if layer is None else f"layer {layer} alone"
    name = "all" if layer is None else f"L{layer}"
    tip = f"{whose}: KL {exact(kl)} nats"
    return BarRow(name, (Bar(share, number, role),), tip, key=layer, is_marked=layer == chosen)


def numbers(found: DamageMap) -> tuple[Reading, ...]:
    """The divergence, the largest error and the bytes."""
    worst = max(float(found.keys.max_abs.max(initial=0)), float(found.values.max_abs.max(initial=0)))
    share, size = byte_share(found.exact_bytes, found.kv_bytes), bytes_words(found.exact_bytes, found.kv_bytes)
    kl_tip = f"KL of the next token with every layer coded: {exact(found.kl)} nats"
    sizes = counted(found.exact_bytes, "byte"), counted(found.kv_bytes, "byte")
    size_tip = "{} → {} with scales and exact residual".format(*sizes)
    worst_tip = f"The largest absolute error of any number of K or V: {exact(worst)}"
    return (
        Reading("KL, all layers coded", "KL, all", divergence_words(found.kl), kl_tip),
        Reading("largest error", "max |Δ|", brief(worst), worst_tip),
        Reading(f"exact → coded, {share}", share, size, size_tip),
    )


def error_words(value: float) -> str:
    """An error as a percentage and exactly: `3.21 % (0.032148)`."""
    return f"{percent(value)} ({exact(value)})"
