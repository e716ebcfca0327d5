"""The Codec damage panel: what a low-bit codec does to K and V, to attention and to the next token, by layer."""

from __future__ import annotations

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QSignalBlocker, QTimer, Signal
from PySide6.QtWidgets import QSpinBox, QWidget

from app.draw import grid
from app.draw.format import brief, byte_share, bytes_words, divergence_words, exact, milliseconds, percent
from app.draw.grid import GridCell, ValueGrid
from app.kit.boxes import column, holder, row, stack
from app.kit.changes import connect_all, on_change
from app.kit.chart.bars import Bar, BarRow, BarRows, BarTable
from app.kit.chart.grid import ChosenHead, FoundCell, GridMaps
from app.kit.facts import FactBar, Reading
from app.kit.fields import INSET, Room, SmallBox, WholeNumber
from app.kit.knobs import CodecChoice
from app.kit.labels import ElidedLabel, plain_label, plain_tip, set_text_role
from app.kit.measurement import AskingView, why_nothing
from app.kit.provenance import Provenance, token_name
from app.kit.theme import font_fixed, font_text
from app.models import Models
from app.models.loaded import geometry_of
from app.models.measurement import MeasurementState
from app.panels.damage.plan import PlanSheet
from engine.counted import counted
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, Coding, fitting_group
from engine.spec.codecs import BITS, DEFAULT_GROUP, GROUP, RESIDUAL
from engine.spec.parameter import Parameter
from engine.wire.commands import SetCache
from engine.wire.measurements import DamageMap, MapDamage, TensorDamage

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
        for field in (self._bits, self._group, self._residual):
            policy = field.sizePolicy()
            policy.setRetainSizeWhenHidden(True)  # so that a codec with more fields pushes no other panel aside
            field.setSizePolicy(policy)
        row(self._codec, self._bits, self._group, self._residual, None, spacing=4, on=self)
        on_change(self._on_changed, self._codec, self._bits, self._group, self._residual)
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
        for parameter, field in ((BITS, self._bits), (GROUP, self._group), (RESIDUAL, self._residual)):
            field.setVisible(parameter.name in self._codec.parameters)


def _spin(parameter: Parameter) -> QSpinBox:
    field = WholeNumber()
    field.setObjectName("small")
    field.setRange(1, parameter.most)
    field.setValue(DEFAULT_GROUP)  # a residual of one group, so that even a short text has coded rows
    field.setPrefix(f"{parameter.name} ")
    field.setFont(font_fixed(11))
    field.lineEdit().setTextMargins(INSET, 0, 0, 0)
    Room(field, 0)
    field.setFixedHeight(20)
    field.setMaximumWidth(112)
    field.setKeyboardTracking(False)
    field.setToolTip(parameter.tip)
    field.setAccessibleName(parameter.name)
    return field


TOKENS, CHANNELS, EFFECT, PLAN = "tokens", "channels", "effect", "plan"
# Where it is cheap, it is measured without being asked, after nothing has changed for this many ms.
REST_MS = 700
CHEAP_MS = 1500.0
SMALL_MODEL = 50_000_000
LOW = 225


class Shown(Struct, frozen=True):
    """The answer for the chosen codec, its formula, or why there is none; the picture of it, and the selection.
    `is_low`: the panel is too low for the numbers, so that one line must contain them."""

    found: DamageMap | None
    formula: str
    refusal: str
    state: MeasurementState
    picture: str
    chosen: ChosenHead
    hint: str
    is_low: bool


class DamageView(AskingView[Shown]):
    """Clicking a cell selects its layer, head and token."""

    name, measures = "damage", "damage"
    reads_size = True
    choices = (
        (TOKENS, "tokens", "Error of K and V by layer, head and token"),
        (CHANNELS, "channels", "Error of K and V by layer, head and channel"),
        (EFFECT, "effect", "On the newest attention row, and on the next token by layer"),
        (PLAN, "plan", "Which layers should take fewer bits for a budget"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._hint = ""
        self.controls = CodecControls()
        self.maps = GridMaps("Errors of K and V by layer and head")
        self.shift = GridMaps("Change of the newest attention row by layer and head")
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
            connect_all((maps.pointed, self._on_pointed), (maps.picked, self._on_picked))
        connect_all(
            (self.bars.picked, self._on_layer),
            (self.plan.picked, self._on_layer),
            (self.plan.wanted, self.ask_plan),
            (self.plan.applied, self._on_apply),
            (self.rest.timeout, self._on_rest),
        )

    # ---- intents -------------------------------------------------------------------------------------------------

    def choose(self, choice: str) -> None:
        self._hint = ""
        super().choose(choice)

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

    def _on_layer(self, layer: int) -> None:
        self._models.selection.update(layer=layer)

    def _on_picked(self, item: FoundCell) -> None:
        shown, cell = item
        place: dict[str, int | str] = {"layer": cell.line.layer}
        if self.choice == EFFECT:
            layer = layer_of(self._geometry, cell.line.layer)
            group = max(1, cell.line.columns // max(1, layer.num_kv_heads)) if layer is not None else 1
            place["kv_head"] = cell.column // group
        else:
            place |= {"kv_head": cell.line.head, "lens": "keys" if shown.title.startswith("K") else "values"}
        if self.choice == TOKENS:
            place["position"] = cell.first
        self._models.selection.update(**place)

    def _on_pointed(self, item: FoundCell | None) -> None:
        self._hint = self._words(*item) if item is not None else ""
        self.refresh()

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
            self.ask()

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

    def read(self) -> Shown | str:
        if problem := self.problem():
            return problem
        now = self._models.selection.now
        found = self.answer
        found = found if found is not None and found.request.codec == self.controls.chosen else None
        place = now.position if self.choice == TOKENS else None
        chosen = ChosenHead(now.layer, 0 if self.choice == EFFECT else now.kv_head, place)
        is_low = self.height() < LOW
        return Shown(
            found, self.controls.words, self._refusal(), self.measurement.state, self.choice, chosen, self._hint, is_low
        )

    def provenance(self, state: Shown) -> Provenance | None:
        found, latest = state.found, self._models.timeline.live_path.latest
        if found is None:
            return None
        is_old = latest is not None and found.step not in (latest.step, self._models.timeline.live)
        rebuilt = self.rebuilt_words(found)
        place = "on rebuilt rows" if rebuilt else "on a copy"
        words = f"{place} · step {found.step}" if is_old else place
        sentence = f"recomputed on a copy · step {found.step}  {rebuilt}".strip()
        return Provenance(words, "past" if is_old else "recomputed", sentence)

    def show_state(self, state: Shown) -> None:
        found, is_plan = state.found, state.picture == PLAN
        self._sheets.setCurrentIndex({EFFECT: 1, PLAN: 2}.get(state.picture, 0))
        self._sheets.currentWidget().setVisible(found is not None or is_plan)  # type: ignore[union-attr]
        self.plan.show_plan(found, found.exact_bytes if found is not None else 0)
        self.plan.set_ready(state.state is not MeasurementState.WAITING and not state.refusal)
        if found is not None:
            self._show_picture(state, found)
        self.formula.setVisible(not state.is_low)
        self.formula.setText(state.formula)
        self.formula.setToolTip(plain_tip(state.formula))
        self.facts.setVisible(found is not None and not is_plan and not state.is_low)
        self.facts.show_facts(numbers(found) if found is not None else ())
        self.why.setText(state.refusal)
        self.why.setVisible(bool(state.refusal))
        self.readout.setVisible(not (is_plan and state.is_low) and not state.refusal)
        self.readout.setText(self.line(state))
        set_text_role(self.readout, "text" if state.hint else "muted")

    def _show_picture(self, state: Shown, found: DamageMap) -> None:
        if state.picture == EFFECT:
            self.shift.show_grids((attention_grid(found),), "query head", state.chosen)
            self.bars.show_table(kl_table(found, state.chosen.layer))
        elif state.picture != PLAN:
            by_token = state.picture == TOKENS
            grids = error_grids(found, self._geometry, by_token=by_token)
            self.maps.show_grids(grids, "token" if by_token else "channel", state.chosen)

    def line(self, state: Shown) -> str:
        """The last line: the cell under the mouse, else what to do or to know."""
        found = state.found
        if found is None:
            what = "Each layer is coded alone, then all of them together, on a copy."
            return "Measuring …" if state.state is MeasurementState.WAITING else self.invited(what)
        if state.hint:
            return state.hint
        if found.kv_bytes == found.exact_bytes:
            return "Every row is within the exact residual: nothing is coded."
        if not state.is_low or state.picture == PLAN:
            return f"Point at a cell for its exact error. Measured on a copy in {milliseconds(found.took_ms)}."
        size = bytes_words(found.exact_bytes, found.kv_bytes)
        return f"KL {divergence_words(found.kl)} · {size} ({byte_share(found.exact_bytes, found.kv_bytes)})"

    def _words(self, shown: ValueGrid, cell: GridCell) -> str:
        """Describe a cell, with its exact error."""
        error, name = error_words(cell.value), shown.title[:1]
        if self.choice == EFFECT:
            return f"layer {cell.line.layer}, head {cell.column}: {error} of the weight moved"
        where = str(cell.first) if cell.first == cell.last else f"{cell.first}…{cell.last}"
        if self.choice == TOKENS:
            token = token_name(self._models, self._models.selection.now.seq_id, cell.first, 10)
            return f"{name}[{cell.line.layer}, {cell.line.head}, {where}] {token}   {error}"
        return f"{name}[{cell.line.layer}, {cell.line.head}, :, {where}]   {error}"


def error_grids(found: DamageMap, geometry: CacheGeometry | None, *, by_token: bool) -> tuple[ValueGrid, ValueGrid]:
    """The relative errors of K and of V by layer and head, across tokens or channels."""
    return (
        _error_grid(found, "K", found.keys, geometry, by_token=by_token),
        _error_grid(found, "V", found.values, geometry, by_token=by_token),
    )


def _error_grid(
    found: DamageMap, name: str, part: TensorDamage, geometry: CacheGeometry | None, *, by_token: bool
) -> ValueGrid:
    values = part.by_token if by_token else part.by_channel
    sizes = []
    for index in found.layers:
        layer = layer_of(geometry, index)
        heads, width = values.shape[1], values.shape[2]
        if layer is not None:
            heads = layer.num_kv_heads
            width = width if by_token else layer.key_dim if name == "K" else layer.value_dim
        sizes.append((heads, width))
    per_column, stop = (found.tokens_per_column, found.num_rows) if by_token else (1, values.shape[2])
    coding = found.request.codec.keys if name == "K" else found.request.codec.values
    title = f"{name} {coding.label} · relative RMS error"
    return replace(
        grid.grid(title, values, found.layers, tuple(sizes), per_column, stop), blank_words=blank_words(coding)
    )


def blank_words(coding: Coding) -> tuple[str, ...]:
    """Why rows of that codec have no error: only KIVI keeps a residual exactly."""
    if coding.is_kivi:
        return "kept exact: residual", "kept exact", "exact"
    return ("not coded: exact", "exact") if coding.is_exact else ("no error",)


def attention_grid(found: DamageMap) -> ValueGrid:
    """Total variation of the newest attention row, by layer and query head."""
    shown = found.attention[:, None, :] if found.attention.size else found.attention.reshape(0, 1, 0)
    layers = found.layers[: shown.shape[0]]
    sizes = tuple((1, shown.shape[2]) for _ in layers)
    return grid.grid("attention row, total variation", shown, layers, sizes, 1, shown.shape[2])


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
    tip = f"{whose}: KL {brief(kl, 9)} nats"
    return BarRow(name, (Bar(share, number, role),), tip, key=layer, is_marked=layer == chosen)


def numbers(found: DamageMap) -> tuple[Reading, ...]:
    """The divergence, the largest error and the bytes."""
    worst = max(float(found.keys.max_abs.max(initial=0)), float(found.values.max_abs.max(initial=0)))
    share, size = byte_share(found.exact_bytes, found.kv_bytes), bytes_words(found.exact_bytes, found.kv_bytes)
    kl_tip = f"KL of the next token with every layer coded: {brief(found.kl, 9)} nats"
    sizes = counted(found.exact_bytes, "byte"), counted(found.kv_bytes, "byte")
    size_tip = "{} → {} with scales and exact residual".format(*sizes)
    worst_tip = f"The largest absolute error of any number of K or V: {brief(worst, 9)}"
    return (
        Reading("KL, all layers coded", "KL, all", divergence_words(found.kl), kl_tip),
        Reading("largest error", "max |Δ|", brief(worst), worst_tip),
        Reading(f"exact → coded, {share}", share, size, size_tip),
    )


def error_words(value: float) -> str:
    """An error as a percentage and exactly: `3.21 % (0.032148)`."""
    return f"{percent(value)} ({exact(value)})"
