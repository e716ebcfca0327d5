"""The bar that replaces the status line while a step is taken in phases: which phase it is in, what that phase
reported, and the buttons."""

from __future__ import annotations

from typing import TypeVar

from msgspec import Struct
from PySide6.QtCore import QEvent, QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QFont, QHelpEvent, QMouseEvent, QPainter, QPaintEvent, QPen
from PySide6.QtWidgets import QSizePolicy, QToolTip, QWidget

from app.control.actions import Actions, native
from app.draw.format import brief, percent, thousands, token_label
from app.kit.painting import TextPainter
from app.kit.provenance import token_name
from app.kit.reader import PHASES, SELECTION, STATUS, Reader
from app.kit.theme import current_theme, font_text
from app.kit.widgets import ActionButton, ElidedLabel, Opaque, plain_label, plain_tip, row
from app.models import Models
from app.models.status import PhaseProgress
from app.window.notice_bar import paint_bar
from engine.counted import counted
from engine.wire.records import Floats
from engine.wire.status import (
    Chosen,
    ChosenToken,
    LayerDone,
    NewRow,
    PhaseReached,
    Scheduled,
    ScheduledSequence,
    Written,
    WrittenRows,
)

MOST_PAGES, MOST_CHARS, MOST_OTHERS = 4, 16, 3

T = TypeVar("T", ScheduledSequence, NewRow, ChosenToken, WrittenRows)


def phase_words(models: Models, event: PhaseReached) -> str:
    """Describe a phase for the selected sequence, or if it is not in the step, for the first; others are only
    counted."""
    match event.phase:
        case Scheduled(sequences=sequences, preempted=preempted):
            words, others = scheduled_words(_mine(models, sequences)), len(sequences) - 1
            of = f"sequence{'s' if len(preempted) > 1 else ''} {', '.join(map(str, preempted))}"
            words += f" · pages taken from {of}" if preempted else ""
        case LayerDone(rows=rows):
            words, others = row_words(models, _mine(models, rows)), len(rows) - 1
        case Chosen(tokens=tokens):
            words, others = chosen_words(_mine(models, tokens)), len(tokens) - 1
        case Written(sequences=written):
            words, others = written_words(_mine(models, written)), len(written) - 1
    return f"{words} · and {counted(others, 'other sequence')}" if others else words


def _mine(models: Models, parts: tuple[T, ...]) -> T:
    seq_id = models.selection.now.seq_id
    return next((part for part in parts if part.seq_id == seq_id), parts[0])


def scheduled_words(part: ScheduledSequence) -> str:
    """`“ cat” at position 12 · page 4 is taken for its row`."""
    count, first = len(part.token_ids), part.first_position
    if count == 1:
        words = f"{token_label(part.texts[0], MOST_CHARS)} is computed at position {thousands(first)}"
    else:
        words = (
            f"{counted(count, 'token')} are computed at positions {thousands(first)} … {thousands(first + count - 1)}"
        )
    if part.hit_tokens and part.phase == "prefill":
        words += f" · {thousands(part.hit_tokens)} before them were found in pages"
    if part.pages:
        shown = ", ".join(map(str, part.pages[:MOST_PAGES])) + (" …" if len(part.pages) > MOST_PAGES else "")
        words += f" · into page{'s' if len(part.pages) > 1 else ''} {shown}"
    return words


def row_words(models: Models, row: NewRow) -> str:
    """`‖K‖ 3.1, 2.8 · ‖V‖ 0.4, 0.6 · looked most at “Once” (0) 41 % · output ‖·‖ 12.4`."""
    words = []
    if row.key_norm.size:
        words += [f"‖K‖ {_norms(row.key_norm)}", f"‖V‖ {_norms(row.value_norm)}"]
    else:
        words.append("this layer keeps no K and V")
    if row.position is not None and row.weight is not None:
        name = token_name(models, row.seq_id, row.position, MOST_CHARS)
        is_own = models.timeline.token(row.seq_id, row.position) is None
        where = f"itself, {name}" if is_own else f"{name} (position {thousands(row.position)})"
        words.append(f"looked most at {where}, {percent(row.weight)}")
    if row.output_norm is not None:
        words.append(f"‖output‖ {brief(row.output_norm)}")
    return " · ".join(words)


def _norms(norms: Floats) -> str:
    """Each norm if there are at most four, else the smallest and the largest."""
    values = [brief(float(value)) for value in norms]
    return ", ".join(values) if len(values) <= 4 else f"{brief(float(norms.min()))} … {brief(float(norms.max()))}"


def chosen_words(token: ChosenToken) -> str:
    """`“ sat” · 41 % raw, 63 % filtered · drawn with seed 7 at position 13`."""
    found = next((c for c in token.candidates if c.token_id == token.token_id), None)
    words = [f"{token_label(token.text, MOST_CHARS)} is chosen"]
    if found is not None:
        filtered = f", {percent(found.sampled_prob)} after sampling" if token.seed is not None else ""
        words.append(f"{percent(found.prob)} raw{filtered}")
    after = [c for c in token.candidates if c.token_id != token.token_id][:MOST_OTHERS]
    is_drawn = token.seed is not None
    words.append(f"drawn with seed {token.seed} at position {token.position}" if is_drawn else "the most probable")
    words += (
        [f"then {', '.join(f'{token_label(c.text, MOST_CHARS)} {percent(c.prob)}' for c in after)}"] if after else []
    )
    return " · ".join(words)


def written_words(part: WrittenRows) -> str:
    """`6 rows written, 1 in each of 6 layers · 96 older ones written anew · 12 evicted · 1 new page`."""
    layers = counted(part.num_layers, "layer")
    count = part.num_in_each if part.num_layers > 1 else None
    where = f" in {layers}" if count is None else f", {thousands(count)} in each of {layers}"
    words = [f"{counted(part.num_written, 'row')} written{where}"]
    if part.num_rewritten:
        words.append(f"{counted(part.num_rewritten, 'older one')} written anew")
    words.append(f"{thousands(part.num_evicted)} evicted" if part.num_evicted else "none evicted")
    if part.num_new_pages:
        words.append(counted(part.num_new_pages, "new page"))
    return " · ".join(words)


HEIGHT, CELL_HEIGHT = 25, 19
PAD, NARROW_CELL, LEAST_CELL = 7.0, 30.0, 4.0  # pixels: beside a name; a layer's cell with its name; one without


class PhaseBarState(Struct, frozen=True):
    """A step, the index of the phase that is described, and its description."""

    step: PhaseProgress
    place: int
    words: str


class PhaseTrack(Opaque, QWidget):
    """One cell per phase: scheduled, each layer, chosen, written. Those passed are filled, the present one is bright. A
    click on a passed one selects it: `viewed(place)`."""

    viewed = Signal(int)

    def __init__(self) -> None:
        super().__init__()
        self._step: PhaseProgress | None = None
        self._place = 0
        self._text = TextPainter(font_text(11.5))
        self._bold = TextPainter(font_text(11.5, QFont.Weight.DemiBold))
        self._words = {name: self._bold.width(name) + 2 * PAD for name in ("scheduled", "chosen", "written")}
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Preferred, QSizePolicy.Policy.Fixed)

    def show_step(self, step: PhaseProgress, place: int) -> None:
        """Show a step, and which of its phases is described."""
        if self._step is None or self._step.num_layers != step.num_layers:
            self.updateGeometry()
        self._step, self._place = step, place
        self.update()

    @property
    def names(self) -> list[str]:
        """The names of all cells, from left to right."""
        count = 0 if self._step is None else self._step.num_layers
        return ["scheduled", *(f"L{layer}" for layer in range(count)), "chosen", "written"]

    def cells(self) -> list[QRectF]:
        """The rectangles of the cells: those with words are as wide as these need, and the layers share the rest."""
        names = self.names
        num_layers = len(names) - 3
        room = (self.width() - sum(self._words.values()) - 2.0 * (len(names) - 1)) / max(1, num_layers)
        each, gap = max(LEAST_CELL, min(NARROW_CELL, room)), 2.0 if room > LEAST_CELL else 1.0
        x, found = 0.0, []
        for name in names:
            width = self._words.get(name, each)
            found.append(QRectF(x, (HEIGHT - CELL_HEIGHT) / 2, width, CELL_HEIGHT))
            x += width + gap
        return found

    def sizeHint(self) -> QSize:
        names = self.names
        return QSize(round(sum(self._words.values()) + (len(names) - 3) * NARROW_CELL + 2 * len(names)), HEIGHT)

    def minimumSizeHint(self) -> QSize:
        return QSize(round(sum(self._words.values()) + (len(self.names) - 3) * (LEAST_CELL + 1)) + 8, HEIGHT)

    def place_at(self, x: float) -> int | None:
        """The index of the cell at `x`; None if there is none."""
        return next((n for n, cell in enumerate(self.cells()) if cell.left() <= x <= cell.right() + 2), None)

    def mousePressEvent(self, event: QMouseEvent) -> None:
        place = self.place_at(event.position().x())
        if place is not None and self._step is not None and self._step.at(place) is not None:
            self.viewed.emit(place)

    def event(self, event: QEvent) -> bool:
        if isinstance(event, QHelpEvent) and event.type() == QEvent.Type.ToolTip:
            place = self.place_at(event.pos().x())
            if place is not None and self._step is not None:
                name = self.names[place]
                name = f"layer {name[1:]}" if name[0] == "L" else name
                tense = "not reached yet" if self._step.at(place) is None else "click: what it knew"
                QToolTip.showText(event.globalPos(), plain_tip(f"{name}: {tense}"), self)
            return True
        return super().event(event)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter, theme = QPainter(self), current_theme()
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        if self._step is None:
            return
        stands = self._step.place
        for place, (name, cell) in enumerate(zip(self.names, self.cells(), strict=True)):
            is_here, was = place == stands, self._step.at(place) is not None
            painter.setPen(Qt.PenStyle.NoPen if is_here or was else QPen(theme.color("hairline"), 1))
            brush = theme.color("accent") if is_here else theme.color("accent", 60)
            painter.setBrush(brush if is_here or was else Qt.BrushStyle.NoBrush)
            painter.drawRoundedRect(cell.adjusted(0.5, 0.5, -0.5, -0.5), 3, 3)
            if place == self._place and place != stands:
                painter.setPen(QPen(theme.color("accent"), 1.4))
                painter.setBrush(Qt.BrushStyle.NoBrush)
                painter.drawRoundedRect(cell.adjusted(0.7, 0.7, -0.7, -0.7), 3, 3)
            ink = self._bold if is_here else self._text
            if ink.width(name) + 4 <= cell.width():
                role = "on_accent" if is_here else "text" if was else "muted"
                painter.setPen(theme.color(role))
                center = QPointF(cell.center())
                ink.center(painter, center.x(), center.y(), name)


class PhaseBar(Reader[PhaseBarState], QWidget):
    """Visible while there is a step in phases, and after it is written until the next step. Signal:
    `appeared(bool)`."""

    appeared = Signal(bool)

    follows = (PHASES, SELECTION, STATUS)
    reads_while_hidden = True

    def __init__(self, models: Models, actions: Actions) -> None:
        super().__init__()
        self._looked: tuple[PhaseProgress, int] | None = (
            None  # another phase than the latest, until the next is reached
        )
        self._title = plain_label(font=font_text(12.5, QFont.Weight.DemiBold))
        self.track, self._words = PhaseTrack(), ElidedLabel(role="muted")
        self.next = _button("Next phase", actions, "run.phase")
        self.finish = _button("Finish", actions, "run.step")
        self.give_up = _button("Give up", actions, "run.cancel")
        self.setFixedHeight(HEIGHT)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        buttons = (self.next, self.finish, self.give_up)
        row(14, self._title, (self.track, 0), 4, (self._words, 1), *buttons, 14, spacing=9, on=self)
        self.track.viewed.connect(self._on_viewed)
        self.follow(models)

    def _on_viewed(self, place: int) -> None:
        step = self._models.phases.now
        self._looked = None if step is None or place == step.place else (step, place)
        self.refresh()

    def read(self) -> PhaseBarState | str:
        step = self._models.phases.now
        if step is None:
            return "no step is taken in phases"
        place = self._looked[1] if self._looked is not None and self._looked[0] is step else step.place
        event = step.at(place) or step.latest
        return PhaseBarState(step, place, phase_words(self._models, event))

    def show_state(self, state: PhaseBarState) -> None:
        self._title.setText(f"Step {thousands(state.step.step)}")
        self.track.show_step(state.step, state.place)
        name = self.track.names[state.place]
        self.track.setAccessibleName(f"Step {state.step.step} in phases: {name}, {state.words}")
        self._words.setText(state.words)
        self._words.setToolTip(plain_tip(state.words))
        for button in (self.finish, self.give_up):
            button.setVisible(not state.step.is_written)
        self._appear(True)

    def show_nothing(self, why: str) -> None:
        self._appear(False)

    def _appear(self, is_there: bool) -> None:
        self.setVisible(is_there)
        self.appeared.emit(is_there)

    def paintEvent(self, event: QPaintEvent) -> None:
        paint_bar(self, "accent", alpha=20)


def _button(text: str, actions: Actions, name: str) -> ActionButton:
    """A small button of an action, with its key."""
    key = native(actions.declared(name).key)
    return ActionButton(f"{text}  {key}", actions[name], is_small=True)
