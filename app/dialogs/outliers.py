"""The list of the largest numbers of K and V and of the most attended tokens; selecting a line goes there."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from PySide6.QtCore import Qt
from PySide6.QtWidgets import QHeaderView, QTreeWidget, QTreeWidgetItem, QWidget

from app.draw.format import brief, percent, thousands, times
from app.kit.dialog import Dialog, heading
from app.kit.provenance import lateness, step_of, token_name
from app.kit.reader import STATUS, STEPS, Reader, pictures
from app.kit.theme import font_fixed
from app.kit.widgets import column, plain_label
from app.models import Models
from app.models.pictures import OUTLIERS
from engine.spec.codec import Part
from engine.wire.pictures import Outlier, OutliersPicture

_PLACE = Qt.ItemDataRole.UserRole
LEAST_HEIGHT, FRAME = 200, 30  # pixels: of a list that can be walked through, and of a window's frame


class OutlierPlace(Struct, frozen=True):
    """The place that a line selects. For attention, `tensor` and `channel` are None."""

    layer: int
    kv_head: int
    position: int
    tensor: Part | None = None
    channel: int | None = None


class Listed(Struct, frozen=True):
    """The list, and which step it belongs to."""

    picture: OutliersPicture
    source: str


class OutliersDialog(Reader[Listed], Dialog):
    """Stays open beside the window. The arrow keys walk through the list, and all panels show the place of each
    line."""

    follows = (pictures(OUTLIERS), STEPS, STATUS)

    def __init__(self, models: Models, parent: QWidget) -> None:
        super().__init__("Largest values", parent)
        self._picture: OutliersPicture | None = None
        self.source = plain_label()  # which step the list belongs to
        self.tree = QTreeWidget()
        self.tree.setColumnCount(4)
        self.tree.setHeaderLabels(["Where", "Value", "Of its range", "Token"])
        self.tree.setAccessibleName("Largest values and most attended tokens")
        self.tree.header().setSectionResizeMode(QHeaderView.ResizeMode.ResizeToContents)
        self.tree.currentItemChanged.connect(self._on_current)
        self.tree.itemActivated.connect(self._go)
        column(self.source, self.tree, spacing=6, margins=(14, 12, 14, 14), on=self)
        self.resize(600, 680)
        self.follow(models)

    def open_below(self, picture: QWidget) -> None:
        """Open in the lower right corner of the window, below the pictures that its lines lead to, if there is room."""
        window = picture.window()
        corner = window.mapToGlobal(window.rect().bottomRight())
        room = corner.y() - picture.mapToGlobal(picture.rect().bottomLeft()).y() - FRAME if picture.isVisible() else 0
        if room >= LEAST_HEIGHT:
            self.resize(self.width(), min(self.height(), room))
        self.move(corner.x() - self.width() - 2, corner.y() - self.height() - FRAME)
        self.show()

    def first_field(self) -> QWidget | None:
        return self.tree

    def _on_current(self, item: QTreeWidgetItem | None, _previous: QTreeWidgetItem | None) -> None:
        if item is not None and self.tree.hasFocus():  # refilling the list must not change the selection
            self._go(item)

    def _go(self, item: QTreeWidgetItem) -> None:
        place = item.data(0, _PLACE)
        if not isinstance(place, OutlierPlace):
            return
        where: dict[str, object] = {"layer": place.layer, "kv_head": place.kv_head, "position": place.position}
        if place.tensor is not None:
            where |= {"lens": place.tensor, "change": False, "channel": place.channel}
        self._models.selection.update(**where)

    # ---- painting ------------------------------------------------------------------------------------------------

    def read(self) -> Listed | str:
        picture = self._models.pictures.outliers
        if picture is None:
            return "The list appears with the first step."
        request = picture.request
        late = lateness(self._models, request.seq_id, request.num_tokens)
        step = step_of(self._models, request.seq_id, request.num_tokens)
        of_now = f"step {thousands(step)}" if step is not None else "an undone step"
        return Listed(picture, picture.note or " · ".join((picture.provenance, *_exact_words(picture), late or of_now)))

    def show_nothing(self, why: str) -> None:
        self.source.setText(why)
        self._fill(None)

    def show_state(self, state: Listed) -> None:
        self.source.setText(state.source)
        if state.picture is not self._picture:
            self._fill(state.picture)

    def _fill(self, picture: OutliersPicture | None) -> None:
        self._picture = picture
        current = self.tree.currentItem()
        kept = current.data(0, _PLACE) if current is not None else None
        self.tree.blockSignals(True)
        self.tree.clear()
        if picture is not None:
            self._add_numbers(picture, "Largest |K| for its layer, by channel", "keys", picture.keys)
            self._add_numbers(picture, "Largest |V| for its layer, by channel", "values", picture.values)
            self._add_tokens(picture)
        self.tree.expandAll()
        for item in self.tree.findItems("", Qt.MatchFlag.MatchContains | Qt.MatchFlag.MatchRecursive):
            if kept is not None and item.data(0, _PLACE) == kept:
                self.tree.setCurrentItem(item)
        self.tree.blockSignals(False)

    def _add_numbers(self, picture: OutliersPicture, title: str, tensor: Part, found: Sequence[Outlier]) -> None:
        above = heading(self.tree, title)
        for one in found:
            where = f"L{one.layer} · kv head {one.kv_head} · channel {one.channel}"
            where += " · exact" * bool(_exact_words(picture) and not one.is_coded)
            place = OutlierPlace(one.layer, one.kv_head, one.position, tensor, one.channel)
            self._add(picture, above, (where, brief(one.value, 4), times(one.ratio)), place)

    def _add_tokens(self, picture: OutliersPicture) -> None:
        above = heading(self.tree, "Most attended by the newest token, mean of all heads")
        for one in picture.attended:
            where = f"{percent(one.weight)} · most in L{one.layer} head {one.head}, {percent(one.most)}"
            self._add(picture, above, (where, "", ""), OutlierPlace(one.layer, one.kv_head, one.position))
        if not picture.attended:
            above.addChild(QTreeWidgetItem(["not recorded at this step"]))

    def _add(self, picture: OutliersPicture, above: QTreeWidgetItem, words: Sequence[str], place: OutlierPlace) -> None:
        token = f"{thousands(place.position)} {token_name(self._models, picture.request.seq_id, place.position)}"
        item = QTreeWidgetItem([*words, token])
        item.setData(0, _PLACE, place)
        for number in (1, 2):
            item.setTextAlignment(number, Qt.AlignmentFlag.AlignRight | Qt.AlignmentFlag.AlignVCenter)
        item.setFont(3, font_fixed())
        above.addChild(item)

    def want(self, *, is_visible: bool) -> None:
        self._models.viewport.update(wants_outliers=is_visible)


def _exact_words(picture: OutliersPicture) -> tuple[str, ...]:
    """Whether some of the listed numbers are exact and others dequantised."""
    is_mixed = len({one.is_coded for one in (*picture.keys, *picture.values)}) > 1
    return ("exact where it says so",) if is_mixed else ()
