"""What a low-bit codec does to K and V, to attention and to the next token, and which layers could take fewer bits."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import QTimer
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QComboBox, QHBoxLayout, QSpinBox, QStackedLayout, QVBoxLayout, QWidget

from app.draw.format import brief, byte_share, bytes_words, divergence_words, milliseconds
from app.kit.codec_choice import CodecChoice
from app.kit.fact_strip import FactStrip, Reading
from app.kit.labels import ElidedLabel, plain_label, tint
from app.kit.measurement import (
    AskButton,
    MeasuringPanel,
    RebuildOffer,
    out_of_date_words,
    rebuilt_words,
    why_nothing,
)
from app.kit.provenance import token_name
from app.kit.theme import TextRole, Theme, font_fixed
from app.kit.units import inset
from app.models import Models
from app.panels.damage import draw
from app.panels.damage.canvas import Chosen, KlBars, MapCanvas
from app.panels.damage.draw import Cell, Grid
from app.panels.damage.plan import PlanSheet
from engine.errors import InputError
from engine.geometry.dimensions import LayerGeometry
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, fitting_group
from engine.spec.codecs import BITS, DEFAULT_GROUP, GROUP, RESIDUAL
from engine.spec.parameters import Parameter
from engine.wire.commands import MapDamage
from engine.wire.records import DamageMap, TensorDamage

TOKENS, CHANNELS, EFFECT, PLAN = "tokens", "channels", "effect", "plan"
# It is measured without being asked where that is cheap, once nothing has moved for a while.
REST_MS = 700
CHEAP_MS = 1500.0
SMALL_MODEL = 50_000_000
LOW = 225
KIVI = "kivi"


class DamageView(MeasuringPanel):
    """Clicking a cell selects its layer, head and token."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Codec damage", parent)
        self._models = models
        self._view = TOKENS
        self._geometry: object = None
        self._drawn: tuple[object, ...] = ()
        self._hint = ""
        self._measurement = models.measurements.damage
        self._button = AskButton(self._measurement, theme, "Measure")
        self._codec = CodecChoice()
        self._bits = QComboBox()
        self._group = self._spin(GROUP)
        self._residual = self._spin(RESIDUAL)
        self._maps = MapCanvas(theme)
        self._shift = MapCanvas(theme)
        self._bars = KlBars(theme)
        self._plan = PlanSheet(theme)
        self._facts = FactStrip(theme)
        self._readout = ElidedLabel()
        self._why = plain_label()
        self._offer = RebuildOffer(self._measurement)
        self._rest = QTimer(self)
        self._rest.setSingleShot(True)
        self._rest.setInterval(REST_MS)
        self._rest.timeout.connect(self._on_rest)
        self._build()
        self._connect()
        self.set_theme(theme)

    # ---- construction --------------------------------------------------------------------------------------------

    def _spin(self, parameter: Parameter) -> QSpinBox:
        field = QSpinBox()
        field.setObjectName("small")
        field.setRange(1, parameter.most)
        field.setValue(DEFAULT_GROUP)  # a residual of one group: a short text has something to lose
        field.setPrefix(f"{parameter.name} ")
        field.setFont(font_fixed(11))
        inset(field)
        field.setFixedHeight(20)
        field.setMaximumWidth(118)
        field.setKeyboardTracking(False)
        field.setToolTip(parameter.tip)
        field.setAccessibleName(parameter.name)
        return field

    def _build(self) -> None:
        self._bits.setObjectName("small")
        self._bits.setAccessibleName(BITS.label)
        self._bits.setToolTip(BITS.tip)
        self._bits.setFixedHeight(20)
        for bits, words in BITS.choices:
            self._bits.addItem(words, bits)
        self._bits.setCurrentIndex(self._bits.findData(BITS.default))
        self._codec.choose(KIVI)
        self._readout.setFont(font_fixed(11))
        self._readout.setMinimumHeight(15)
        self._why.setWordWrap(True)
        self._why.setMinimumSize(1, 1)
        controls = QHBoxLayout()
        controls.setContentsMargins(0, 0, 0, 0)
        controls.setSpacing(6)
        for part in (self._codec, self._bits, self._group, self._residual):
            controls.addWidget(part)
        controls.addStretch(1)
        controls.addWidget(self._button)
        effect = QWidget()
        sides = QHBoxLayout(effect)
        sides.setContentsMargins(0, 0, 0, 0)
        sides.setSpacing(14)
        sides.addWidget(self._shift, 1)
        sides.addWidget(self._bars, 1)
        sheets = QWidget()
        self._sheets = QStackedLayout(sheets)
        for sheet in (self._maps, effect, self._plan):
            self._sheets.addWidget(sheet)
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(5)
        column.addLayout(controls)
        column.addWidget(self._why)
        column.addWidget(self._offer)
        column.addWidget(sheets, 1)
        column.addWidget(self._facts)
        column.addWidget(self._readout)
        self.set_body(body)
        self._maps.setAccessibleName("Errors of K and V by layer and head")
        self._shift.setAccessibleName("Change of the newest attention row by layer and head")
        self.set_choices(
            (
                (TOKENS, "tokens", "Error of K and V by layer, head and token"),
                (CHANNELS, "channels", "Error of K and V by layer, head and channel"),
                (EFFECT, "effect", "On the newest attention row, and on the next token by layer"),
                (PLAN, "plan", "Which layers should take fewer bits for a budget"),
            )
        )
        self.set_choice(self._view)

    def _connect(self) -> None:
        models = self._models
        self.chosen.connect(self.choose_view)
        self._button.asked.connect(self.ask)
        self._button.stopped.connect(self.cancelled)
        self._offer.clicked.connect(self._on_offer)
        self._codec.changed.connect(self._on_codec)
        self._bits.currentIndexChanged.connect(self._on_codec)
        for field in (self._group, self._residual):
            field.valueChanged.connect(self._on_codec)
        for canvas in (self._maps, self._shift):
            canvas.pointed.connect(self._on_pointed)
            canvas.picked.connect(self._on_picked)
        for source in (self._bars, self._plan):
            source.picked.connect(self._on_layer)
        self._plan.wanted.connect(self.ask_plan)
        self._plan.applied.connect(self._on_apply)
        self._measurement.changed.connect(self._on_measurement)
        models.selection.changed.connect(self._on_selection)
        models.status.changed.connect(self._on_status)
        models.timeline.legible.connect(self._on_step)
        models.timeline.reset.connect(self._on_step)

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        for part in (self._maps, self._shift, self._bars, self._plan, self._facts, self._button):
            part.set_theme(theme)
        tint(self._readout, theme, "muted")
        tint(self._why, theme, "warning")
        self._drawn = ()
        self._refresh()

    # ---- intents -------------------------------------------------------------------------------------------------

    def choose_view(self, view: str) -> None:
        """Show one of the four pictures."""
        self._view = view
        self.set_choice(view)
        self._hint = ""
        self._drawn = ()
        self._refresh()

    def choose(self, codec: str, bits: int = 4, values: str = "") -> None:
        """Look at another codec, as a person would."""
        self._codec.choose(codec, values)
        self._bits.setCurrentIndex(self._bits.findData(bits))

    @property
    def plan(self) -> PlanSheet:
        return self._plan

    def codec(self) -> CodecSpec:
        """What is chosen; raises `InputError` with the reason where the numbers cannot be."""
        bits = int(self._bits.currentData())
        codec = self._codec.spec(bits, self._group.value(), self._residual.value())
        if codec.is_exact:
            raise InputError("Exact numbers lose nothing: choose a codec for K or for V.")
        return codec

    def ask(self) -> None:
        """Measure the codec on the rows held now."""
        self._ask(None)

    def ask_plan(self) -> None:
        """Measure again, with a plan for the budget."""
        self._ask(self._plan.budget_bytes)

    def _ask(self, budget_bytes: int | None) -> None:
        codec = self._chosen_codec()
        if self._measurement.is_waiting or self._problem() or isinstance(codec, str):
            return
        self.asked.emit(MapDamage(self._models.selection.now.seq_id, codec, budget_bytes=budget_bytes))

    def _on_apply(self) -> None:
        found = self._measurement.answer
        if found is not None and found.plan_codec is not None:
            self.applied.emit(CacheSpec(codec=found.plan_codec))

    def _on_codec(self) -> None:
        self._rest.start()
        self._refresh()

    def _on_layer(self, layer: int) -> None:
        self._models.selection.update(layer=layer)

    def _on_picked(self, shown: Grid, cell: Cell) -> None:
        place: dict[str, int | str] = {"layer": cell.row.layer}
        if self._view == EFFECT:
            geometry = self._layer(cell.row.layer)
            group = max(1, self._num_heads(cell.row.layer) // max(1, geometry.num_kv_heads)) if geometry else 1
            place["kv_head"] = cell.column // group
        else:
            place |= {"kv_head": cell.row.head, "tensor": "keys" if shown.title.startswith("K") else "values"}
        if self._view == TOKENS:
            place["position"] = cell.first
        self._models.selection.update(**place)

    # ---- what changes --------------------------------------------------------------------------------------------

    def _chosen_codec(self) -> CodecSpec | str:
        """What is chosen, or why it cannot be."""
        try:
            return self.codec()
        except InputError as error:
            return str(error)

    def _asked(self) -> MapDamage | None:
        """The newest question, if it is about what is chosen now."""
        question = self._measurement.question
        is_mine = isinstance(question, MapDamage) and question.seq_id == self._models.selection.now.seq_id
        return (
            question if isinstance(question, MapDamage) and is_mine and question.codec == self._chosen_codec() else None
        )

    def _refusal(self) -> str:
        """Why what is chosen has no answer; empty where it has one or waits for it."""
        codec = self._chosen_codec()
        return codec if isinstance(codec, str) else self._measurement.refusal if self._asked() is not None else ""

    def _on_measurement(self) -> None:
        if self._measurement.is_out_of_date:
            self._rest.start()
        self._refresh()

    def _on_offer(self) -> None:
        self.rebuild_wanted.emit()
        self.ask()

    def _on_step(self) -> None:
        self._rest.start()
        self._refresh()

    def _on_selection(self) -> None:
        if self._asked() is None:
            self._rest.start()
        self._refresh()

    def _on_status(self) -> None:
        status = self._models.status.now
        geometry = status.model.geometry if status is not None and status.model is not None else None
        if geometry is not None and geometry != self._geometry:
            self._geometry = geometry
            for field in (self._group, self._residual):
                field.blockSignals(True)
                field.setValue(fitting_group(geometry))
                field.blockSignals(False)
        self._refresh()

    def _on_rest(self) -> None:
        """Measure by itself where that is cheap and nobody waits for the engine."""
        status, found = self._models.status.now, self._measurement.answer
        if not self.isVisible() or status is None or status.model is None or self._refusal():
            return
        if status.running or status.work is not None or self._measurement.is_waiting:
            self._rest.start()
            return
        is_cheap = (
            found.took_ms < CHEAP_MS
            if found is not None and not found.plan
            else (status.model.num_parameters < SMALL_MODEL)
        )
        latest = self._models.timeline.latest
        is_asked = self._asked() is not None and latest is not None and self._measurement.step == latest.step
        if is_cheap and not is_asked:
            self.ask()

    # ---- showing -------------------------------------------------------------------------------------------------

    def _problem(self) -> str | None:
        return why_nothing(
            self._models,
            "Send a prompt first: then a codec can be measured on the rows that it left.",
            "You are looking back at step {0}. Codecs are measured on the live rows: Ctrl+L goes there.",
            "There is nothing to measure yet: a sequence needs two tokens in its cache.",
        )

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        problem = self._problem()
        self.set_empty(problem)
        self._button.set_reason(problem or "")
        for name, part in (("bits", self._bits), ("group", self._group), ("residual", self._residual)):
            part.setVisible(name in self._codec.parameters)
        if problem:
            self.set_provenance("")
            return
        found, refusal = self._shown(), self._refusal()
        self._plan.set_ready(not self._measurement.is_waiting and not refusal)
        now = self._models.selection.now
        key = (
            found,
            self._view,
            now.layer,
            now.kv_head,
            now.position,
            self._is_low,
            refusal,
            self._measurement.state,
            self._hint,
        )
        if key == self._drawn:
            self._tell_source(found)
            return
        self._drawn = key
        self._sheets.setCurrentIndex({EFFECT: 1, PLAN: 2}.get(self._view, 0))
        self._sheets.currentWidget().setVisible(found is not None or self._view == PLAN)  # type: ignore[union-attr]
        self._plan.show_plan(found, found.exact_bytes if found is not None else 0)
        self._draw(found)
        self._facts.setVisible(found is not None and self._view != PLAN and not self._is_low)
        self._facts.show_facts(self._numbers(found) if found is not None else ())
        self._why.setText(refusal)
        tint(self._why, self.theme, "warning")
        self._why.setVisible(bool(refusal))
        self._readout.setVisible((self._view != PLAN or not self._is_low) and not refusal)
        self._say(found)
        self._tell_source(found)

    def _shown(self) -> DamageMap | None:
        """The answer, if it is one to what is chosen now."""
        found = self._measurement.answer_of(self._models.selection.now.seq_id)
        return found if found is not None and found.request.codec == self._chosen_codec() else None

    def _say(self, found: DamageMap | None) -> None:
        role: TextRole = "muted"
        if self._measurement.is_waiting and found is None:
            text = "Measuring …"
        elif found is None:
            text = (
                out_of_date_words(self._measurement)
                + "Press Measure: each layer is coded alone, then all of them, on a copy."
            )
        elif self._hint:
            text, role = self._hint, "text"
        elif found.kv_bytes == found.exact_bytes:
            text = f"All {found.num_rows} rows are within the exact residual: nothing is coded."
        else:
            text = self._idle_words(found)
        self._readout.setText(text)
        tint(self._readout, self.theme, role)

    @property
    def _is_low(self) -> bool:
        """Whether the pictures need the room that the numbers would take: one line must say them then."""
        return self.height() < LOW

    def _idle_words(self, found: DamageMap) -> str:
        """What the last line says while nothing is pointed at."""
        if not self._is_low or self._view == PLAN:
            return f"Point at a cell for its exact error. Measured on a copy in {milliseconds(found.took_ms)}."
        size = bytes_words(found.exact_bytes, found.kv_bytes)
        return f"KL {divergence_words(found.kl)} · {size} ({byte_share(found.exact_bytes, found.kv_bytes)})"

    def _tell_source(self, found: DamageMap | None) -> None:
        if found is None:
            self.set_provenance("")
            return
        latest = self._models.timeline.latest
        is_old = latest is not None and latest.step != found.step
        rebuilt = rebuilt_words(self._models, found.request.rebuild)
        place = "on rebuilt rows" if rebuilt else "on a copy"
        words = f"{place} · step {found.step}" if is_old else place
        whole = f"{f'recomputed on a copy · step {found.step}'}  {rebuilt}".strip()
        self.set_provenance(words, "past" if is_old else "recomputed", whole)

    def _draw(self, found: DamageMap | None) -> None:
        if found is None:
            return
        now = self._models.selection.now
        if self._view == EFFECT:
            self._shift.show_grids((self._attention_grid(found),), "query head")
            self._shift.set_chosen(Chosen(now.layer, 0))
            self._bars.show_bars(draw.kl_bars(found), now.layer)
            return
        if self._view == PLAN:
            return
        by_token = self._view == TOKENS
        grids = tuple(self._error_grid(found, name, part) for name, part in (("K", found.keys), ("V", found.values)))
        self._maps.show_grids(grids, "token" if by_token else "channel")
        self._maps.set_chosen(Chosen(now.layer, now.kv_head, now.position if by_token else None))

    def _error_grid(self, found: DamageMap, name: str, part: TensorDamage) -> Grid:
        by_token = self._view == TOKENS
        values = part.by_token if by_token else part.by_channel
        sizes = []
        for layer in found.layers:
            geometry = self._layer(layer)
            heads = geometry.num_kv_heads if geometry is not None else values.shape[1]
            width = (
                (geometry.key_dim if name == "K" else geometry.value_dim) if geometry is not None else values.shape[2]
            )
            sizes.append((heads, values.shape[2] if by_token else width))
        coding = found.request.codec.keys if name == "K" else found.request.codec.values
        title = f"{name} {coding.label} · relative RMS error"
        per_column, stop = (found.tokens_per_column, found.num_rows) if by_token else (1, values.shape[2])
        shown = draw.grid(title, values, found.layers, tuple(sizes), per_column, stop)
        return replace(shown, blank_words=draw.blank_words(coding))

    def _attention_grid(self, found: DamageMap) -> Grid:
        shown = found.attention[:, None, :] if found.attention.size else found.attention.reshape(0, 1, 0)
        layers = found.layers[: shown.shape[0]]
        sizes = tuple((1, shown.shape[2]) for _ in layers)
        return draw.grid("attention row, total variation", shown, layers, sizes, 1, shown.shape[2])

    def _layer(self, index: int) -> LayerGeometry | None:
        status = self._models.status.now
        layers = status.model.geometry.layers if status is not None and status.model is not None else ()
        return next((layer for layer in layers if layer.index == index), None)

    def _num_heads(self, layer: int) -> int:
        found = self._measurement.answer
        return found.attention.shape[1] if found is not None and found.attention.size else 1

    def _numbers(self, found: DamageMap) -> tuple[Reading, ...]:
        worst = max(float(found.keys.max_abs.max(initial=0)), float(found.values.max_abs.max(initial=0)))
        return (
            Reading(
                "KL, all layers coded",
                "KL, all",
                divergence_words(found.kl),
                f"KL of the next token with every layer coded: {brief(found.kl, 9)} nats",
            ),
            Reading(
                "largest error",
                "max |Δ|",
                brief(worst),
                f"The largest absolute error of any number of K or V: {brief(worst, 9)}",
            ),
            Reading(
                f"exact → coded, {byte_share(found.exact_bytes, found.kv_bytes)}",
                byte_share(found.exact_bytes, found.kv_bytes),
                bytes_words(found.exact_bytes, found.kv_bytes),
                f"{found.exact_bytes:,} bytes → {found.kv_bytes:,} bytes with scales and exact residual",
            ),
        )

    # ---- reading -------------------------------------------------------------------------------------------------

    def _on_pointed(self, shown: Grid | None, cell: Cell | None) -> None:
        self._hint = self._read(shown, cell) if shown is not None and cell is not None else ""
        self._say(self._shown())

    def _read(self, shown: Grid, cell: Cell) -> str:
        error = draw.error_words(cell.value)
        if self._view == EFFECT:
            return f"layer {cell.row.layer}, head {cell.column}: {error} of the weight moved"
        name = shown.title[:1]
        where = str(cell.first) if cell.first == cell.last else f"{cell.first}…{cell.last}"
        if self._view == TOKENS:
            token = token_name(self._models, self._models.selection.now.seq_id, cell.first, 10)
            return f"{name}[{cell.row.layer}, {cell.row.head}, {where}] {token}   {error}"
        return f"{name}[{cell.row.layer}, {cell.row.head}, :, {where}]   {error}"

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._drawn = ()
        self._on_status()
        self._rest.start()

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._rest.stop()
