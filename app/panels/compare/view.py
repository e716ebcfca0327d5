"""Two runs side by side: the same tokens in A, B and their difference, and where the rows begin to differ."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import cast, get_args

from msgspec import Struct
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QFont
from PySide6.QtWidgets import QMenu

from app.draw.format import brief, short_dtype
from app.draw.grid import TokenRange
from app.draw.matrix import Matrix, matrix_of
from app.kit.asking import mode_named
from app.kit.dialog import ask_path
from app.kit.fields import Option, SmallBox
from app.kit.map_view import LensMenu
from app.kit.provenance import Provenance, lateness, source_words, step_of, tensor_name, token_name
from app.kit.reader import SELECTION, STATUS, STEPS, VIEWPORT, SignalSource
from app.kit.theme import font_fixed, font_text
from app.kit.view import COMPARE, View
from app.kit.widgets import (
    ElidedLabel,
    LinkButton,
    ProgressButton,
    column,
    connect_all,
    on_change,
    plain_label,
    plain_tip,
    push_button,
    row,
    set_text_role,
    stack,
)
from app.models import Models
from app.models.comparison import ComparedPictures
from app.models.places import head_of, heads_shared, layer_label, layer_words
from app.models.selection import Selected, WantedPair
from app.panels.compare import words
from app.panels.compare.maps import CompareMaps, CompareMapsState
from engine.spec.cache import PRESETS
from engine.spec.model import Dtype, ModelSpec
from engine.wire.commands import Cancel, EndComparison, StartComparison
from engine.wire.comparison import ComparisonStarted, FirstDifference, Opponent, OtherFile, OtherRun, OtherStep
from engine.wire.pictures import AttentionPicture, Picture
from engine.wire.status import ModelInfo

STEP, MODEL, FILE = "the step", "another model", "a snapshot"
_CACHE, _DTYPE = "cache ", "dtype "
_MODEL_LABEL = "another model…"
ASKED = {  # what has to be asked for: the title of the dialog, and endings of files
    MODEL: ("Compare with a model of the same vocabulary", ()),
    FILE: ("Compare with a snapshot", (".safetensors", ".npz", ".bin")),
}


def cache_choice(name: str) -> str:
    """The value of a cache preset in the list."""
    return _CACHE + name


def _options() -> list[Option]:
    dtypes = [dtype for dtype in get_args(Dtype) if dtype != "auto"]
    return [
        *(
            (preset.label, cache_choice(preset.name), preset.summary)
            for preset in PRESETS.values()
            if preset.name != "none"
        ),
        ("no cache", cache_choice("none"), PRESETS["none"].summary),
        ("the step in view", STEP, "The same sequence as it stood after an earlier step"),
        *(
            (f"dtype {dtype}", _DTYPE + dtype, "The same model in this dtype, in the same cache mode")
            for dtype in dtypes
        ),
        (_MODEL_LABEL, MODEL, "A folder with a model of the same vocabulary, in the same cache mode and dtype"),
        ("a snapshot…", FILE, "A file that was exported here, as it was written"),
    ]


class OpponentBox(SmallBox):
    """The list of these; `opponent` is the chosen one."""

    def __init__(self, models: Models) -> None:
        super().__init__("Compare with", "What is given the same tokens for comparison", _options(), characters=13)
        self._models = models
        self.was_opened = False  # since something was chosen: arrow keys choose without opening it

    def showPopup(self) -> None:
        self.was_opened = True
        super().showPopup()

    @property
    def choice(self) -> str:
        return str(self.currentData())

    def problem(self) -> str:
        """Why nothing can be compared now; empty if it can."""
        status, step = self._models.status.now, self._models.selection.now.step
        if status.model is None:
            return "A model is needed first."
        if not len(self._models.timeline):
            return "Send a prompt first: a comparison needs its tokens."
        if status.opened is not None:
            return self._problem_of_file()
        if self.choice == STEP and step is None:
            return "View an earlier step first: drag the timeline, or press Shift+F10."
        if self.choice == _DTYPE + status.model.dtype:
            return f"The model is in {status.model.dtype} already: choose another dtype."
        return ""

    def _problem_of_file(self) -> str:
        """Why an opened file cannot be compared with the choice: running its tokens needs its model."""
        if self.choice == STEP:
            return "A snapshot has the rows of one step: choose another snapshot, a cache mode or a dtype."
        if self.choice in (MODEL, FILE) or self._models.status.source_of_file:
            return ""
        return f"The model of this file is not known here: choose '{_MODEL_LABEL}' and its folder, or another snapshot."

    def opponent(self, path: str = "") -> Opponent | None:
        """The chosen opponent, at `path` where it is a file or a folder; None if nothing is possible."""
        status, step = self._models.status.now, self._models.selection.now.step
        if self.problem() or status.model is None:
            return None
        if self.choice == STEP:
            return None if step is None else OtherStep(step)
        if self.choice == MODEL:
            return OtherRun(status.cache, ModelSpec(path, _dtype_of(status.model)))
        if self.choice == FILE:
            return OtherFile(Path(path))
        if self.choice.startswith(_DTYPE):
            dtype = next(name for name in get_args(Dtype) if self.choice == _DTYPE + name)
            source = self._models.status.source_of_file or status.model.source
            return OtherRun(status.cache, ModelSpec(source, dtype))
        cache = mode_named(self._models, self.choice.removeprefix(_CACHE))
        if status.opened is None:
            return OtherRun(cache)
        return OtherRun(cache, ModelSpec(self._models.status.source_of_file, _dtype_of(status.model)))


def _dtype_of(model: ModelInfo) -> Dtype:
    """The dtype for another run that is compared with this model's."""
    return cast(Dtype, model.dtype if model.dtype in get_args(Dtype) else "auto")


WALL, HEAD, ATTENTION = "wall", "head", "attention"
BUTTON = "Compare with"
BESIDE, SWAP, BLINK, OVERLAY = "beside", "swap", "blink", "overlay"
DISPLAYS = (
    ("A | B | A − B", BESIDE, "Three pictures with one cursor"),
    ("swap", SWAP, "One picture: X shows the other side"),
    ("blink", BLINK, "One picture: both sides take turns"),
    ("overlay", OVERLAY, "The mean of both sides, beside their difference"),
)
COMPARISON = SignalSource("comparison", ("changed", "pictured"))
_POINT = "point at a cell for its exact values"


class CompareShown(Struct, frozen=True):
    """What is compared and what is known of it; the pictures with selection, visible range and display. `num_steps`
    were compared."""

    compared: ComparisonStarted
    num_steps: int
    first: FirstDifference | None
    num_scanned: int | None
    pictures: ComparedPictures | None
    no_pictures: str
    selected: Selected
    visible: TokenRange | None
    display: str
    refusal: str


class CompareView(View[CompareShown]):
    name = "compare"
    follows = (SELECTION, STATUS, STEPS, VIEWPORT, COMPARISON)
    abilities = frozenset(("view.reset", "view.zoom"))
    choices_when_empty = False
    choices = (
        (WALL, "Wall", "Every layer, kv head and channel"),
        (HEAD, "Head", "The selected head, channel by channel"),
        (ATTENTION, "Attention", "Where the newest token looked, in the selected layer"),
    )

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.opponents = OpponentBox(models)
        self.displays = SmallBox("How both sides are shown", options=DISPLAYS)
        self.button = ProgressButton(BUTTON)
        self.end_button = push_button("End", self._on_end, "Let the other run go")
        self.verdict = ElidedLabel(font_text(12.5, QFont.Weight.DemiBold))
        self.sides, self.place = ElidedLabel(font_text(12), "muted"), LinkButton()
        self.maps = CompareMaps(self._token_name)
        self.why = plain_label(role="muted", wraps=True)
        self.lenses, self.query_lenses = LensMenu(models), LensMenu(models, of_queries=True)
        self._stack = stack(self.maps, self.why)
        self.readout = plain_label(_POINT, font_fixed(), can_select=True)
        self.shown: CompareMapsState | None = None
        self._build()
        self.follow(models)

    def _build(self) -> None:
        self.sides.setAlignment(Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        self.readout.setMinimumWidth(1)
        self.why.setAlignment(Qt.AlignmentFlag.AlignCenter)
        head = row((self.verdict, 5), (self.sides, 6), spacing=12)
        self.set_body(column(head, self.place, 2, (self._stack, 1), self.readout))
        self.displays.setMinimumContentsLength(11)
        for widget in (self.lenses, self.query_lenses, self.displays, self.button, self.opponents, self.end_button):
            self.add_to_strip(widget)
        on_change(self.refresh, self.displays, self.opponents)
        connect_all(
            (self.button.clicked, self._on_button),
            (self.opponents.activated, self._on_chosen),
            (self.place.clicked, self._on_place),
            (self.maps.pointed, self._tell),
            (self.maps.picked, self._on_picked),
            (self.maps.zoomed, self._on_zoomed),
            (self.maps.resized, self.refresh),
        )

    # ---- intents -------------------------------------------------------------------------------------------------

    def choose_opponent(self) -> None:
        """Open the list of what can be compared with."""
        self.opponents.setFocus()
        self.opponents.showPopup()

    def _on_chosen(self) -> None:
        """Compare at once with what is chosen in the list that was opened."""
        if self.opponents.was_opened:
            self.compare()

    def compare(self, path: str = "") -> None:
        """Start a comparison with the chosen opponent, if possible; asks for its file or folder where that is one."""
        self.opponents.was_opened = False
        asked = ASKED.get(self.opponents.choice)
        if asked is not None and not path and not self.opponents.problem():
            ask_path(self, self._models.status.engine, self.wants.emit, *asked, self.compare)
        elif (against := self.opponents.opponent(path)) is not None:
            self.compare_with(against)

    def compare_with(self, against: Opponent) -> None:
        self.wants.emit(StartComparison(self._models.selection.now.seq_id, against))

    def flip(self) -> None:
        """Show the other side in the same place; any display other than `swap` or `blink` changes to `swap` first."""
        if self.displays.currentData() not in (SWAP, BLINK):
            self.displays.choose(SWAP)
        self.maps.flip()

    def _on_end(self) -> None:
        self.wants.emit(EndComparison())

    def _on_button(self) -> None:
        if self._models.comparison.asked is not None:
            self.wants.emit(Cancel())
        else:
            self.compare()

    def _on_place(self) -> None:
        first, compared = self._models.comparison.first, self._models.comparison.now
        if first is None or compared is None:
            return
        self._models.selection.update(
            seq_id=compared.seq_id, layer=first.layer, kv_head=first.kv_head, position=first.position,
            lens=first.tensor, channel=first.channel, change=False,
        )  # fmt: skip

    def _on_picked(self, _side: str, point: QPointF) -> None:
        shown, state = self.shown, self.state
        cell = shown.a.at(point.x(), point.y()) if shown is not None else None
        if cell is None or state is None or state.pictures is None:
            return
        place, lens = cell.place, self._lens_of(state.pictures.a)
        self._models.selection.update(
            seq_id=state.compared.seq_id,
            layer=place.layer,
            kv_head=place.head // heads_shared(self._models, lens, place.layer),
            position=cell.first,
            channel=None if place.first_channel != place.last_channel else place.first_channel,
        )

    def _on_zoomed(self, wanted: TokenRange | None) -> None:
        self._models.viewport.update(**{"attention_range" if self.choice == ATTENTION else "head_range": wanted})

    def reset_view(self) -> None:
        self.maps.first.reset_view()

    def zoom_to_selection(self) -> None:
        self.maps.zoom_to(self._models.selection.now.position)

    # ---- showing -------------------------------------------------------------------------------------------------

    def want(self, *, is_visible: bool) -> None:
        compared = self._models.comparison.now
        pair = None
        if is_visible and compared is not None and not compared.no_rows and self.maps.first.num_columns:
            rows = self._rows_of_a_head() if self.choice == WALL else 1
            pair = WantedPair(self.choice, self.maps.first.num_columns, rows)  # type: ignore[arg-type]
        self._models.viewport.update(compared=pair)

    def _rows_of_a_head(self) -> int:
        """How many pixel rows each kv head gets in the wall's picture."""
        model = self._models.status.model
        heads = sum(layer.num_kv_heads for layer in model.geometry.attention_layers) if model is not None else 1
        return max(1, self.maps.num_pixel_rows // max(1, heads))

    def refresh(self) -> None:
        self._show_buttons()
        super().refresh()

    def _show_buttons(self) -> None:
        comparison, status = self._models.comparison, self._models.status.now
        problem = self.opponents.problem()
        is_asked = comparison.asked is not None
        work = status.work if is_asked else None
        share = work.done / work.total if work is not None and work.total else None
        progress = f"Stop  {work.done}/{work.total}" if work is not None and work.total else "Stop"
        self.button.show_progress(progress if is_asked else BUTTON, share)
        self.button.setEnabled(is_asked or not problem)
        self.button.setToolTip(plain_tip(work.label if work is not None else problem))
        self.end_button.setVisible(comparison.now is not None and not is_asked)
        has_rows = comparison.now is not None and not comparison.now.no_rows
        self.displays.setVisible(has_rows)
        self.lenses.setVisible(has_rows and self.choice != ATTENTION)
        self.query_lenses.setVisible(has_rows and self.choice == ATTENTION)
        self.lenses.show_lens(self._models.selection.now.lens)
        wanted = self._models.viewport.now
        self.query_lenses.show_lens(wanted.attention_lens, wanted.attention_latest)

    def read(self) -> CompareShown | str:
        comparison, viewport = self._models.comparison, self._models.viewport.now
        if comparison.now is None:
            if comparison.asked is not None:
                return "The other run is being started: it reads the same tokens."
            return comparison.refusal or self.opponents.problem() or words.INVITATION
        visible = viewport.attention_range if self.choice == ATTENTION else viewport.head_range
        no_pictures = comparison.no_pictures or self._why_not_compared()
        return CompareShown(
            comparison.now, comparison.num_steps, comparison.first, comparison.num_scanned, comparison.pictures,
            no_pictures, self._models.selection.now, visible, str(self.displays.currentData()), comparison.refusal,
        )  # fmt: skip

    def _why_not_compared(self) -> str:
        """Why no pictures are asked for at the step that is shown; empty if they are."""
        comparison, step = self._models.comparison, self._models.selection.now.step
        return words.NOT_COMPARED if comparison.num_steps and comparison.at(step) is None else ""

    def _remedy(self) -> str:
        is_idle = self._models.comparison.now is None and self._models.comparison.asked is None
        return super()._remedy() or (COMPARE if is_idle else "")

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.shown = None

    def show_state(self, state: CompareShown) -> None:
        self.show_choices(not state.compared.no_rows)
        text, role = words.verdict(self._models, state.compared)
        self.verdict.setText(text)
        self.verdict.setToolTip(words.tolerance_words(state.compared))
        set_text_role(self.verdict, role)
        self.sides.setText(words.sides_words(state.compared))
        self.sides.setToolTip(plain_tip(f"{self.sides.text()}\n{words.tolerance_words(state.compared)}"))
        self._show_place(state)
        self._show_pictures(state)
        self._tell(self.maps.first.hover)

    def _show_place(self, state: CompareShown) -> None:
        text = state.refusal or words.departure_words(self._models, state.compared, state.first, state.num_scanned)
        leads = state.first is not None and not state.refusal
        self.place.show_link(text, words.departure_tip(state.first) if state.first is not None else "", leads=leads)

    def _show_pictures(self, state: CompareShown) -> None:
        pictures = state.pictures
        every = (pictures.a, pictures.b, pictures.difference) if pictures else ()
        sides = [matrix_of(picture, partial(layer_label, self._models)) for picture in every]
        has_pictures = bool(sides) and any(side.low.size for side in sides[:2])
        self._stack.setCurrentWidget(self.maps if has_pictures else self.why)
        self.shown = None
        self.maps.set_display(state.display)  # type: ignore[arg-type]
        self.maps.show_range(state.visible)
        if pictures is None or not has_pictures:
            self.why.setText(words.why_no_pictures(state.compared, state.pictures, state.no_pictures))
            return
        is_here = state.selected.seq_id == state.compared.seq_id
        position = state.selected.position if is_here else None
        is_signed = not isinstance(pictures.a, AttentionPicture)
        subject = words.subject(pictures.a)
        row, divergence = self._row(state, sides[0]), self._models.comparison.divergence_in(pictures)
        named = partial(layer_words, self._models)
        shown = CompareMapsState(sides[0], sides[1], sides[2], is_signed, position, row, subject, divergence, named)
        self.shown = shown.on_same_positions()
        a, b = (words.caption(state.compared, side) for side in (state.compared.a, state.compared.b))
        self.maps.show_pictures(self.shown, a, b)

    def _row(self, state: CompareShown, matrix: Matrix) -> int | None:
        """The row of the selected channel, or the first row of the selected head if there are several heads; None
        otherwise."""
        now, picture = state.selected, state.pictures.a if state.pictures is not None else None
        if now.channel is None and len({(place.layer, place.head) for place in matrix.places}) == 1:
            return None
        head = head_of(self._models, self._lens_of(picture), now.layer, now.kv_head) if picture is not None else 0
        return matrix.row_of(now.layer, head, None if isinstance(picture, AttentionPicture) else now.channel)

    @staticmethod
    def _lens_of(picture: Picture) -> str:
        return str(getattr(picture.request, "lens", "keys"))

    def provenance(self, state: CompareShown) -> Provenance | None:
        pictures = state.pictures
        if pictures is None:
            return None
        seq_id, request = state.compared.seq_id, pictures.a.request
        count = getattr(request, "num_tokens", None)
        if isinstance(pictures.a, AttentionPicture):
            count = pictures.a.query_position + 1
        shown = tensor_name(request.lens) if hasattr(request, "lens") else ""
        is_of_queries = isinstance(pictures.a, AttentionPicture)
        lens = self._models.viewport.now.attention_lens if is_of_queries else state.selected.lens
        wanted = tensor_name(lens) if shown else ""
        newest = self._models.comparison.at(self._models.selection.now.step)
        is_last = newest is None or newest.num_tokens == count  # no other pictures are asked for at this step
        late = lateness(self._models, seq_id, count or 0, shown, wanted, is_last=is_last)
        step = step_of(self._models, seq_id, count or 0)
        sources = " · ".join(
            f"{name}: {source_words(self._models, picture)}, {short_dtype(side.dtype)}"
            for name, picture, side in (("A", pictures.a, state.compared.a), ("B", pictures.b, state.compared.b))
        )
        where = late or ("an undone step" if step is None else f"step {step}")
        sentence = f"{sources} · A − B: cell by cell, before anything is pooled · {where}"
        return Provenance(late or "difference", "past" if late else "difference", sentence)

    # ---- under the cursor ----------------------------------------------------------------------------------------

    def _tell(self, point: QPointF | None) -> None:
        """Show the exact numbers under the cursor, or else those of the selected cell. If they do not fit, show fewer
        digits, and the exact numbers in the tool tip."""
        shown = self.shown
        if point is None and shown is not None and shown.position is not None and shown.row is not None:
            point = QPointF(shown.position + 0.5, shown.row + 0.5)
        text = shown.reading(point, self._token_name) if shown is not None and point is not None else ""
        is_long = self.readout.fontMetrics().horizontalAdvance(text) > self.readout.width()
        brief_text = shown.reading(point, self._token_name, brief) if is_long and shown and point is not None else ""
        self.readout.setText(brief_text or text or _POINT)
        self.readout.setToolTip(plain_tip(text))
        self.readout.setEnabled(bool(text))

    def _token_name(self, position: int) -> str:
        compared = self._models.comparison.now
        return token_name(self._models, compared.seq_id if compared is not None else 0, position)

    def add_to_menu(self, menu: QMenu) -> None:
        if self._models.comparison.now is not None:
            menu.addAction("Save report…", self.save_report)
            menu.addSeparator()

    def save_report(self) -> None:
        """Ask for a file and write the comparison as an HTML page."""
        from app.panels.compare.report import ask_and_save

        if told_words := ask_and_save(self._models, self.shown, self):
            self.message.emit(told_words)
