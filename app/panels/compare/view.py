"""Two runs side by side: the same tokens in A, B and their difference, where the rows begin to differ, and all of it as
an HTML page."""

from __future__ import annotations

import base64
import html
import platform
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from importlib import metadata
from pathlib import Path
from typing import Any, Literal, cast, get_args

from msgspec import Struct
from msgspec.structs import replace
from PySide6.QtCore import QPoint, QPointF, QSize, Qt, QTimer
from PySide6.QtGui import QFont, QHideEvent, QImage, QShowEvent
from PySide6.QtWidgets import QMenu, QWidget

from app.draw.colormap import Floats
from app.draw.format import brief, exact, short_dtype, thousands, token_label
from app.draw.grid import TokenRange
from app.draw.matrix import LayerName, Matrix, layer_limits, matrix_of, on_same_positions, overlaid, range_words
from app.kit.asking import mode_named
from app.kit.dialog import ask_path
from app.kit.fields import Option, SmallBox
from app.kit.files import png_bytes
from app.kit.heatmap import Marks
from app.kit.map_view import LensMenu, MatrixMaps
from app.kit.plot import Plot
from app.kit.provenance import Provenance, lateness, num_pictured, source_words, step_of, tensor_name, token_name
from app.kit.reader import SELECTION, STATUS, STEPS, VIEWPORT, SignalSource
from app.kit.theme import TextRole, Theme, Themed, current_theme, font_fixed, font_text
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
    prose,
    push_button,
    row,
    set_text_role,
    stack,
)
from app.kit.words import branch_name, place_words
from app.models import Models
from app.models.comparison import ComparedPictures, Comparison
from app.models.places import head_of, heads_shared, layer_label, layer_words
from app.models.selection import Selected, WantedPair
from app.panels.compare.steps import (
    NOT_COMPARED,
    QUANTITIES,
    compare_chart,
    costs,
    largest_of_layers,
)
from engine.client import is_elsewhere
from engine.counted import counted
from engine.spec.cache import PRESETS, preset_of
from engine.spec.lenses import LENSES
from engine.spec.model import Dtype, ModelSpec
from engine.wire.commands import Cancel, EndComparison, StartComparison
from engine.wire.comparison import (
    ComparedSide,
    ComparedStep,
    ComparisonStarted,
    FirstDifference,
    Opponent,
    OtherFile,
    OtherRun,
    OtherStep,
    TokenDivergence,
)
from engine.wire.pictures import AttentionPicture, HeadPicture, Picture, Side, WallPicture
from engine.wire.records import Candidate
from engine.wire.status import ModelInfo

INVITATION = (
    "Two runs side by side: choose above what this one is compared with. The other run is given the same tokens, step "
    "by step."
)


def now_compared(models: Models) -> ComparisonStarted | None:
    """The present comparison; if it is of two branches, and not of an earlier step of one, its sides have the names of
    these."""
    compared, history = models.comparison.now, models.history
    if compared is None or not isinstance(against := compared.against, OtherStep):
        return compared
    mine, other = history.live if against.of is None else against.of, against.step
    if mine is None or mine not in history or other not in history:
        return compared
    branches = [history.branch_of(step).first for step in (mine, other)]
    if branches[0] == branches[1] or history.is_on_path(other, mine):
        return compared
    a, b = (branch_name(models, first) for first in branches)
    when = "now" if against.of is None else f"step {thousands(mine)}"
    return replace(
        compared,
        a=replace(compared.a, name=f"{a} · {when}"),
        b=replace(compared.b, name=f"{b} · step {thousands(other)}"),
    )


def sides_words(compared: ComparisonStarted) -> str:
    """`A: sequence 0 · Growing · float32   B: …`, with the models if they differ."""
    has_models = compared.a.model != compared.b.model
    a, b = (side_words(side, has_model=has_models) for side in (compared.a, compared.b))
    return f"A: {a}     B: {b}"


def side_words(side: ComparedSide, *, has_model: bool) -> str:
    """A side's name, its cache mode if the name does not contain it, its dtype, and if `has_model` its model."""
    words = [side.name, side.cache if side.cache not in side.name else "", side.dtype, side.model if has_model else ""]
    return " · ".join(word for word in words if word)


def captions(compared: ComparisonStarted) -> tuple[str, str]:
    """The captions of the pictures of A and B: their names, with their dtypes if the sides differ in these."""
    is_alike = compared.a.dtype == compared.b.dtype
    a, b = (side.name if is_alike else f"{side.name} · {side.dtype}" for side in (compared.a, compared.b))
    return f"A · {a}", f"B · {b}"


def subject_of(picture: Picture) -> str:
    """What a picture shows, and when: `K of layer 1, kv head 0, at 70 tokens`."""
    match picture:
        case WallPicture():
            name = tensor_name(picture.request.lens)
            return f"{name} of every layer and head, at {counted(picture.num_tokens, 'token')}"
        case HeadPicture(request=request):
            name = tensor_name(request.lens)
            head = "head" if LENSES[request.lens].heads == "query" else "kv head"
            where = f"layer {request.layer}, {head} {request.kv_head}"
            return f"{name} of {where}, at {counted(request.num_tokens, 'token')}"
        case AttentionPicture():
            count = counted(picture.query_position + 1, "token")
            lens = LENSES[picture.request.lens]
            where = f"{lens.label} of layer {picture.request.layer}"
            where += f", head {picture.request.head}" if not lens.is_of_every_head else ""
            return f"{where}, newest query at {count}"
    return ""


def why_no_pictures(compared: ComparisonStarted, pictures: ComparedPictures | None, otherwise: str) -> str:
    """The text shown instead of pictures, if there are none."""
    if compared.no_rows:
        return compared.no_rows
    notes = [picture.note for picture in (pictures.a, pictures.b, pictures.difference)] if pictures else []
    return next((note for note in (*notes, otherwise) if note), "The pictures of both sides are on their way.")


def tolerance_words(compared: ComparisonStarted) -> str:
    return f"rounding may change a logit by {brief(compared.tolerance)}"


def parts_at(models: Models, compared: ComparisonStarted) -> ComparedStep | None:
    """The last step that two branches have in common, if both continue after it with different tokens; None
    otherwise."""
    steps, against = models.comparison.steps, compared.against
    if not steps or not isinstance(against, OtherStep) or models.timeline.live_path.record(against.step) is not None:
        return None
    record = models.history.record(against.step)
    other = record.of(compared.seq_id) if record is not None else None
    mine, shared = models.timeline.live_path.num_tokens(compared.seq_id), steps[-1].num_tokens
    return steps[-1] if other is not None and shared < min(mine, other.num_tokens) else None


def _until(models: Models, divergence: TokenDivergence) -> str:
    """`until step 3`: the step of side A that computed the last common token."""
    found = (step.step for step in models.comparison.steps if step.num_tokens == divergence.num_tokens)
    step = next(found, None)
    return f"until step {thousands(step)}" if step is not None else f"for {counted(divergence.num_tokens, 'token')}"


def verdict(models: Models, compared: ComparisonStarted) -> tuple[str, TextRole]:
    """(the verdict in words, its colour role)."""
    comparison = models.comparison
    judged = [step for step in comparison.steps if step.is_beyond_rounding is not None]
    departing = [step.num_tokens for step in judged if step.is_beyond_rounding]
    first, beyond, many = comparison.first, len(departing), len(judged)
    divergence = comparison.divergence
    if divergence is not None and not beyond and first is None:
        return f"The same {_until(models, divergence)}; behind it other tokens came", "text"
    if not judged and comparison.num_scanned is None:
        return "Nothing is compared yet: the sides have no step in common whose numbers are kept", "muted"
    if not beyond and first is None:
        rows = f"the rows of {counted(comparison.num_scanned or 0, 'token')}"
        if (last := parts_at(models, compared)) is not None:
            where = f"step {thousands(last.step)}, {counted(last.num_tokens, 'token')}"
            return f"The same up to where they part ({where}): other tokens follow, which are not compared", "text"
        so_far = " so far" if compared.a.moves else ""
        return f"Within rounding{so_far}: {counted(many, 'step') if judged else rows}", "good"
    found = f"{thousands(beyond)} of {counted(many, 'step')}" if beyond else "rows"
    cause = _allowed_cause(compared, [*departing, *([first.position + 1] if first is not None else ())])
    return (f"{cause}: {found} beyond rounding", "warning") if cause else (f"Departs: {found} beyond rounding", "bad")


def _allowed_cause(compared: ComparisonStarted, counts: Sequence[int]) -> str:
    """Why the sides may differ at these numbers of tokens, in the words of Parity; empty if no cause covers all of
    them."""
    is_edited = [compared.is_edited(count) for count in counts]
    if compared.is_lossy:
        return "Edited by hand, and lossy" if any(is_edited) else "Lossy, so it differs"
    return "Edited by hand" if all(is_edited) else ""


def departure_words(
    models: Models, compared: ComparisonStarted, first: FirstDifference | None, num_scanned: int | None
) -> str:
    """The first row that differs by more than rounding, or that there is none."""
    if compared.no_rows:
        return compared.no_rows
    if num_scanned is None:
        return "All rows are compared when the run rests"
    if first is None and (divergence := models.comparison.divergence) is not None:
        a, b = (token_label(text) for text in divergence.texts)
        rows = f"Rows of the {counted(num_scanned, 'token')} that both share are the same within rounding"
        return f"{rows}; then A was given “{a}”, B “{b}”: rows behind that are compared by position alone"
    if first is None:
        return f"All rows of K and V that both hold are the same within rounding: {counted(num_scanned, 'token')}"
    token = models.timeline.live_path.token(compared.seq_id, first.position)
    text = f" “{token_label(token.text)}”" if token is not None else ""
    name = "K" if first.tensor == "keys" else "V"
    return (
        f"First row beyond rounding: layer {first.layer}, {name}, kv head {first.kv_head}, "
        f"token {first.position}{text}, channel {first.channel}: "
        f"{exact(first.number)} against {exact(first.other_number)}  →"
    )


def departure_tip(first: FirstDifference) -> str:
    return (
        f"The row differs by {brief(first.error)} of its own size; rounding may do {brief(first.tolerance)}. "
        "Select this layer, tensor, head, token and channel"
    )


# ---- heat maps: A, B and their difference side by side, or one in the place of all -----------------------------------


Display = Literal["beside", "swap", "blink", "overlay"]
BLINK_MS = 600
MEAN = "Mean of A and B, where both hold a row"
MEANS = "Means of the extremes of A and B, where both hold a row"
_LEFT = 40


class CompareMapsState(Struct, frozen=True, eq=False, dict=True):
    """Three pictures of one step over the same positions, and the selected position and row. `is_signed`: whether A and
    B have signs (attention weights have none, their difference has). `subject` says what they show, `captions` which
    sides. From the position `divergence` on, the sides hold rows of different tokens. `layer_words` names a layer by
    its index."""

    a: Matrix
    b: Matrix
    difference: Matrix
    is_signed: bool
    position: int | None
    row: int | None
    subject: str = ""
    divergence: int | None = None
    layer_words: LayerName = "layer {}".format
    captions: tuple[str, str] = ("A", "B")

    @property
    def limits(self) -> Floats:
        """The colour range of each row, the same for A and B, so that they can be compared."""
        return layer_limits(self.a, self.b)

    @cached_property
    def mean(self) -> Matrix:
        """The mean of both sides."""
        return overlaid(self.a, self.b)

    def reading(self, point: QPointF, name: Callable[[int], str], write: Callable[[float], str] = exact) -> str:
        """Return the numbers of both runs and their difference at a point in positions and rows, formatted by `write`,
        and the place; empty outside the picture."""
        cells = [matrix.at(point.x(), point.y()) for matrix in (self.a, self.b, self.difference)]
        if (cell := cells[0]) is None:
            return ""
        numbers = ["–" if one is None else one.text(write) for one in cells]
        if all(one is None or one.span == cell.span for one in cells):
            is_pooled = cell.last > cell.first
            tokens = f"tokens {cell.span}, extremes" if is_pooled else f"token {cell.span} {name(cell.first)}"
        else:
            numbers = [f"{number} ({one.span})" if one else number for number, one in zip(numbers, cells, strict=True)]
            tokens = "(tokens)"
        where = f"{cell.place.words(self.layer_words)} · {tokens}"
        return f"A {numbers[0]}   B {numbers[1]}   A − B {numbers[2]}   {where}"

    def on_same_positions(self) -> CompareMapsState:
        a, b, difference = on_same_positions(self.a, self.b, self.difference)
        return replace(self, a=a, b=b, difference=difference)


class CompareMaps(Themed, MatrixMaps):
    """`beside` shows A, B and A − B side by side; `swap` one side, which `flip` changes; `blink` both in turn;
    `overlay` the mean of both beside the difference."""

    def __init__(self, name_position: Callable[[int], str]) -> None:
        super().__init__(name_position, {"a": "Side A", "b": "Side B", "difference": "A less B"})
        self._display: Display = "beside"
        self.is_b = False
        self.shown: CompareMapsState | None = None
        self.blink = QTimer(self, interval=BLINK_MS)
        self.blink.timeout.connect(self.flip)

    # ---- how it is shown -----------------------------------------------------------------------------------------

    def set_display(self, display: Display) -> None:
        """Set how the sides are shown."""
        if display == self._display:
            return
        self._display, self.is_b = display, False
        if display == "blink":
            self.blink.start()
        else:
            self.blink.stop()
        self._cells["b"].setVisible(display == "beside")
        self._cells["difference"].setVisible(display in ("beside", "overlay"))
        self._draw()

    def flip(self) -> None:
        """Show the other side, in `swap` and `blink`."""
        if self._display in ("swap", "blink"):
            self.is_b = not self.is_b
            self._draw()

    def take_theme(self) -> None:
        self._draw()

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        if self._display == "blink":
            self.blink.start()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self.blink.stop()

    # ---- what is shown -------------------------------------------------------------------------------------------

    def show_pictures(self, shown: CompareMapsState | None) -> None:
        """Show pictures of one step; None: there are none now."""
        self.shown = shown and shown.on_same_positions()
        self._draw()

    def _draw(self) -> None:
        if (shown := self.shown) is None:
            return
        matrix, words = (shown.b, shown.captions[1]) if self.is_b else (shown.a, shown.captions[0])
        if self._display == "overlay":
            matrix, words = shown.mean, MEANS if shown.mean.has_extremes else MEAN
        self._show("a", shown, matrix, shown.limits, words)
        if self._display == "beside":
            self._show("b", shown, shown.b, shown.limits, shown.captions[1])
        if self._display in ("beside", "overlay"):
            self._show("difference", shown, shown.difference, layer_limits(shown.difference), "A − B")

    def _show(self, side: Side, shown: CompareMapsState, matrix: Matrix, limits: Floats, words: str) -> None:
        is_difference = side == "difference"
        is_signed = shown.is_signed or is_difference
        marks = Marks(
            left=_LEFT,
            selected=None if shown.position is None else matrix.span_of(shown.position),
            selected_row=shown.row,
            x_lines=() if shown.divergence is None else (shown.divergence,),
        )
        is_zero = is_difference and matrix.shown.size and not matrix.shown.any()
        colors = "zero everywhere" if is_zero else range_words(limits, "±" if is_signed else "0 … ")
        by_position = "other tokens behind the line · " if is_difference and shown.divergence is not None else ""
        self.show_matrix(side, matrix, limits, marks, f"{words} · {by_position}{colors}", is_signed=is_signed)


# ---- the panel -------------------------------------------------------------------------------------------------------


STEP, MODEL, FILE, COMPARED = "the step", "another model", "a snapshot", "what is compared"
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
    """The list of these; `opponent` is the chosen one. While a step or a branch is compared, the first entry names
    it."""

    def __init__(self, models: Models) -> None:
        super().__init__("Compare with", "What is given the same tokens for comparison", _options(), characters=13)
        self._models = models
        self.was_opened = False  # since something was chosen: arrow keys choose without opening it
        self._compared: Opponent | None = None
        self._before = self.choice  # what was chosen before the entry was there

    def showPopup(self) -> None:
        self.was_opened = True
        super().showPopup()

    @property
    def choice(self) -> str:
        return str(self.currentData())

    def show_compared(self, compared: ComparisonStarted | None) -> None:
        """Choose what is compared, which may have been asked for elsewhere; afterwards what was chosen before."""
        against = compared.against if compared is not None else None
        if against != self._compared:
            self._compared = against
            if self.itemData(0) == COMPARED:
                was_chosen = self.choice == COMPARED
                self.removeItem(0)
                if was_chosen:
                    self.choose(self._before)
            if isinstance(against, OtherStep):
                self._before = self.choice
                self.insertItem(0, "", COMPARED)
                self.setCurrentIndex(0)
            elif isinstance(against, OtherRun) and against.model is None:
                self.choose(cache_choice(preset_of(against.cache).name))
        if compared is not None and self.itemData(0) == COMPARED:  # branches are named, begin and go meanwhile
            self.setItemText(0, prose(compared.b.name))
            self.setItemData(0, plain_tip(sides_words(compared)), Qt.ItemDataRole.ToolTipRole)

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
        if self.choice == COMPARED:
            return self._compared
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
    follows = (SELECTION, STATUS, STEPS, VIEWPORT, COMPARISON, SignalSource("history", ("reshaped",)))
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
        status = self._models.status
        is_file_here = self.opponents.choice == FILE and not is_elsewhere(status.engine)
        if asked is not None and not path and not self.opponents.problem():
            start = str(status.folder) if is_file_here else ""
            ask_path(self, status.engine, self.wants.emit, *asked, self.compare, start)
        elif (against := self.opponents.opponent(path)) is not None:
            if path and is_file_here:
                status.folder = Path(path).parent
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
        shown, state = self.maps.shown, self.state
        cell = shown.a.at(point.x(), point.y()) if shown is not None else None
        if cell is None or state is None or state.pictures is None:
            return
        place, picture = cell.place, cast(Any, state.pictures.a)
        self._models.selection.update(
            seq_id=state.compared.seq_id,
            layer=place.layer,
            kv_head=place.head // heads_shared(self._models, picture.request.lens, place.layer),
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
        model = self._models.status.now.model
        heads = sum(layer.num_kv_heads for layer in model.geometry.attention_layers) if model is not None else 1
        return max(1, self.maps.num_pixel_rows // max(1, heads))

    def refresh(self) -> None:
        self._show_buttons()
        super().refresh()

    def _show_buttons(self) -> None:
        comparison, status = self._models.comparison, self._models.status.now
        self.opponents.show_compared(now_compared(self._models))
        problem = self.opponents.problem()
        is_asked = comparison.asked is not None
        work = status.work if is_asked else None
        self.button.show_work(BUTTON, work, is_waiting=is_asked)
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
        if (compared := now_compared(self._models)) is None:
            if comparison.asked is not None:
                return "The other run is being started."
            return comparison.refusal or self.opponents.problem() or INVITATION
        visible = viewport.attention_range if self.choice == ATTENTION else viewport.head_range
        no_pictures = comparison.no_pictures or self._why_not_compared()
        return CompareShown(
            compared, comparison.num_steps, comparison.first, comparison.num_scanned, comparison.pictures,
            no_pictures, self._models.selection.now, visible, str(self.displays.currentData()), comparison.refusal,
        )  # fmt: skip

    def _why_not_compared(self) -> str:
        """Why no pictures are asked for at the step that is shown; empty if they are."""
        comparison, step = self._models.comparison, self._models.selection.now.step
        return NOT_COMPARED if comparison.num_steps and comparison.at(step) is None else ""

    def _remedy(self) -> str:
        is_idle = self._models.comparison.now is None and self._models.comparison.asked is None
        return super()._remedy() or (COMPARE if is_idle else "")

    def show_nothing(self, why: str) -> None:
        super().show_nothing(why)
        self.maps.show_pictures(None)

    def show_state(self, state: CompareShown) -> None:
        self.show_choices(not state.compared.no_rows)
        text, role = verdict(self._models, state.compared)
        self.verdict.setText(text)
        self.verdict.setToolTip(tolerance_words(state.compared))
        set_text_role(self.verdict, role)
        self.sides.setText(sides_words(state.compared))
        self.sides.setToolTip(plain_tip(f"{self.sides.text()}\n{tolerance_words(state.compared)}"))
        self._show_place(state)
        self._show_pictures(state)
        self._tell(self.maps.first.hover)

    def _show_place(self, state: CompareShown) -> None:
        text = state.refusal or departure_words(self._models, state.compared, state.first, state.num_scanned)
        leads = state.first is not None and not state.refusal
        self.place.show_link(text, departure_tip(state.first) if state.first is not None else "", leads=leads)

    def _show_pictures(self, state: CompareShown) -> None:
        pictures = state.pictures
        every = (pictures.a, pictures.b, pictures.difference) if pictures else ()
        sides = [matrix_of(picture, partial(layer_label, self._models)) for picture in every]
        has_pictures = bool(sides) and any(side.low.size for side in sides[:2])
        self._stack.setCurrentWidget(self.maps if has_pictures else self.why)
        self.maps.set_display(state.display)  # type: ignore[arg-type]
        self.maps.show_range(state.visible)
        if pictures is None or not has_pictures:
            self.maps.show_pictures(None)
            self.why.setText(why_no_pictures(state.compared, state.pictures, state.no_pictures))
            return
        is_here = state.selected.seq_id == state.compared.seq_id
        position = state.selected.position if is_here else None
        is_signed = not isinstance(pictures.a, AttentionPicture)
        subject = subject_of(pictures.a)
        row, divergence = self._row(state, sides[0], pictures.a), self._models.comparison.divergence_in(pictures)
        named, names = partial(layer_words, self._models), captions(state.compared)
        a, b, difference = sides
        shown = CompareMapsState(a, b, difference, is_signed, position, row, subject, divergence, named, names)
        self.maps.show_pictures(shown)

    def _row(self, state: CompareShown, matrix: Matrix, picture: Any) -> int | None:
        """The row of the selected channel, or the first row of the selected head if there are several heads; None
        otherwise."""
        now = state.selected
        if now.channel is None and len({(place.layer, place.head) for place in matrix.places}) == 1:
            return None
        head = head_of(self._models, picture.request.lens, now.layer, now.kv_head)
        return matrix.row_of(now.layer, head, None if isinstance(picture, AttentionPicture) else now.channel)

    def provenance(self, state: CompareShown) -> Provenance | None:
        pictures = state.pictures
        if pictures is None:
            return None
        picture: Any = pictures.a
        seq_id, count = state.compared.seq_id, num_pictured(picture)
        is_of_queries = isinstance(picture, AttentionPicture)
        lens = self._models.viewport.now.attention_lens if is_of_queries else state.selected.lens
        shown, wanted = tensor_name(picture.request.lens), tensor_name(lens)
        newest = self._models.comparison.at(self._models.selection.now.step)
        is_last = newest is None or newest.num_tokens == count  # no other pictures are asked for at this step
        late = lateness(self._models, seq_id, count, shown, wanted, is_last=is_last)
        step = step_of(self._models, seq_id, count)
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
        shown = self.maps.shown
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
        if (compared := now_compared(self._models)) is None:
            return

        def text() -> str:
            return page(report_of(self._models, compared, self.maps.shown), current_theme())

        self.save_text_as("Save report", "comparison.html", "HTML page (*.html)", text, "Report saved to")


# ---- the report: an HTML page that loads nothing from elsewhere ------------------------------------------------------


_MAPS, _PLOT = QSize(1500, 460), QSize(740, 220)
_SHARPNESS = 2
HEADS = (
    "step", "tokens", "KL(A ‖ B), nats", "max |Δ logit|", "top-1", "A says", "p", "B says", "p",
    "K error", "V error", "attention", "A ms", "B ms", "A bytes", "B bytes",
)  # fmt: skip


class Report(Struct, frozen=True):
    """The contents in words: `facts`; `pictures` as captions with PNG; `rows` of the table; `notes` as step, place and
    text of each bookmark."""

    facts: tuple[tuple[str, str], ...]
    pictures: tuple[tuple[str, bytes], ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[tuple[str, str, str], ...] = ()


def report_of(models: Models, compared: ComparisonStarted, shown: CompareMapsState | None) -> Report:
    """The report of the present comparison, with the pictures that the panel shows."""
    comparison, model = models.comparison, models.status.now.model
    source = f"{model.source} · {model.fingerprint}" if model is not None else "–"
    place = departure_words(models, compared, comparison.first, comparison.num_scanned)
    facts = (
        ("A", side_words(compared.a, has_model=True)),
        ("B", side_words(compared.b, has_model=True)),
        ("Verdict", verdict(models, compared)[0]),
        ("Tolerance", tolerance_words(compared)),
        ("First departure", place.removesuffix("→").strip()),
        ("Model of A", source),
        ("Versions", versions()),
    )
    pictures = (*_map_pictures(models, compared, shown), *_plot_pictures(comparison, compared))
    rows = tuple(_row(models, compared, step) for step in comparison.steps)
    return Report(facts, pictures, rows, _notes(models))


def _notes(models: Models) -> tuple[tuple[str, str, str], ...]:
    """Every bookmark of the history."""
    return tuple((str(one.target.step), place_words(models, one.target), one.text) for one in models.bookmarks.all)


def versions() -> str:
    """The versions of this program and of the libraries that computed the numbers, as far as they are installed."""
    found = []
    for name in ("kvloupe", "torch", "transformers", "numpy"):
        try:
            found.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            continue
    return " · ".join([*found, f"Python {platform.python_version()}"])


# ---- numbers -----------------------------------------------------------------------------------------------------


def _row(models: Models, compared: ComparisonStarted, step: ComparedStep) -> tuple[str, ...]:
    (a_ms, a_bytes), (b_ms, b_bytes) = costs(models, compared, step)
    agrees = "–" if step.top1_agrees is None else "same" if step.top1_agrees else "another"
    keys, values = (largest_of_layers(array) for array in (step.keys, step.values))
    numbers = (keys, values, largest_of_layers(step.attention), a_ms, b_ms)
    return (
        str(step.step), str(step.num_tokens), _number(step.kl), _number(step.max_abs_logit_diff), agrees,
        *_first(step.top[0]), *_first(step.top[1]), *map(_number, numbers),
        *("–" if count is None else str(count) for count in (a_bytes, b_bytes)),
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "–" if value is None else exact(value)


def _first(top: Sequence[Candidate]) -> tuple[str, str]:
    return (token_label(top[0].text, 24), exact(top[0].prob)) if top else ("–", "–")


# ---- pictures ----------------------------------------------------------------------------------------------------


def _map_pictures(
    models: Models, compared: ComparisonStarted, shown: CompareMapsState | None
) -> list[tuple[str, bytes]]:
    """A, B and their difference side by side, whatever display the panel uses."""
    if shown is None:
        return []

    def name(position: int) -> str:
        return token_name(models, compared.seq_id, position)

    maps = CompareMaps(name)
    maps.resize(_MAPS)
    maps.show_pictures(shown)
    content = _picture(maps)
    maps.deleteLater()
    return [(f"A, B, and A − B: {shown.subject}", content)]


def _plot_pictures(comparison: Comparison, compared: ComparisonStarted) -> list[tuple[str, bytes]]:
    found = []
    for name, quantity in QUANTITIES.items():
        chart = compare_chart(comparison.steps, compared, name, None)
        if not chart.keys:
            continue
        plot = Plot(quantity.title)
        plot.resize(_PLOT)
        plot.show_chart(chart)
        found.append((f"{quantity.title}, by step", _picture(plot)))
        plot.deleteLater()
    return found


def _picture(widget: QWidget) -> bytes:
    """What a widget paints, on the background of a panel, in twice the resolution of a screen."""
    image = QImage(widget.size() * _SHARPNESS, QImage.Format.Format_RGB32)
    image.setDevicePixelRatio(_SHARPNESS)
    image.fill(current_theme().color("panel"))
    widget.render(image, QPoint(), renderFlags=QWidget.RenderFlag.DrawChildren)
    return png_bytes(image)


# ---- the page ----------------------------------------------------------------------------------------------------


def page(report: Report, theme: Theme) -> str:
    """The HTML of the page. All texts are escaped, and the page may neither load nor run anything."""
    facts = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in report.facts)
    pictures = "\n".join(_figure(caption, content) for caption, content in report.pictures if content)
    heads = "".join(f"<th>{_text(head)}</th>" for head in HEADS)
    rows = "\n".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in row)}</tr>" for row in report.rows)
    notes = "\n".join(f"<tr>{''.join(f'<td>{_text(cell)}</td>' for cell in note)}</tr>" for note in report.notes)
    noted = f"<h2>Notes</h2>\n<div><table>\n<tbody>\n{notes}\n</tbody>\n</table></div>\n" if notes else ""
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>Two runs compared</title>
<style>
body {{ background: {theme.panel}; color: {theme.text}; font: 14px/1.5 Inter, system-ui, sans-serif; margin: 32px; }}
h1 {{ font-size: 20px; }} h2 {{ font-size: 15px; margin-top: 28px; }}
dl {{ display: grid; grid-template-columns: max-content 1fr; gap: 2px 18px; }}
dt, figcaption {{ color: {theme.muted}; }} dd {{ margin: 0; overflow-wrap: anywhere; }}
figure {{ display: inline-block; margin: 0 14px 14px 0; }} img {{ max-width: 100%; }}
table {{ border-collapse: collapse; font: 12px "JetBrains Mono", Consolas, monospace; }}
th, td {{ text-align: right; padding: 2px 9px; border-bottom: 1px solid {theme.hairline}; white-space: pre; }}
th {{ color: {theme.muted}; }} div {{ overflow-x: auto; }}
</style>
</head>
<body>
<h1>Two runs compared</h1>
<dl>
{facts}
</dl>
<h2>Pictures</h2>
{pictures}
{noted}<h2>Every step</h2>
<div><table>
<thead><tr>{heads}</tr></thead>
<tbody>
{rows}
</tbody>
</table></div>
</body>
</html>
"""


def _figure(caption: str, content: bytes) -> str:
    data = base64.b64encode(content).decode("ascii")
    alt = html.escape(caption, quote=True)
    image = f'<img alt="{alt}" src="data:image/png;base64,{data}">'
    return f"<figure>{image}<figcaption>{_text(caption)}</figcaption></figure>"


def _text(text: str) -> str:
    return html.escape(prose(text))
