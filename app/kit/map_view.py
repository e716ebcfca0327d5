"""The base of panels with a heat map: tokens across, and below it a line with the value under the cursor; and the menu
of lenses."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from PySide6.QtCore import QPoint, QPointF, Signal
from PySide6.QtGui import QAction, QActionGroup
from PySide6.QtWidgets import QMenu, QToolButton

from app.draw.format import thousands
from app.draw.grid import TokenRange
from app.draw.matrix import MatrixCell, matrix_of
from app.kit.boxes import column, row
from app.kit.changes import connect_all
from app.kit.heatmap import HeatMap
from app.kit.labels import plain_label, plain_tip
from app.kit.provenance import token_name
from app.kit.reader import State
from app.kit.theme import FIXED_SIZE, font_fixed
from app.kit.view import View
from app.models import Models
from app.models.chosen_rows import is_within
from app.models.selection import Selected
from engine.spec.edit import Rows
from engine.spec.lenses import LENSES, TABLE, Lens


class MapView(View[State]):
    """The visible positions and the number of columns are kept in `models.viewport`, in fields named after the `kind`
    of picture: `head_range`, `head_columns`. A subclass follows the viewport and implements `pick`, `tell` and
    `rows_between`. Signal: `menu_wanted(point on the screen)`, for the selection."""

    abilities = frozenset(("view.reset", "view.zoom"))
    can_pin = True
    kind: ClassVar[str]
    name_length: ClassVar[int] = 12  # characters of a token's text
    readout_size: ClassVar[float] = FIXED_SIZE

    menu_wanted = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.map = HeatMap(self._token_name)
        self.readout = plain_label(font=font_fixed(self.readout_size))
        self.readout.setObjectName("readout")
        self.readout.setMinimumWidth(1)
        self.map.can_select = True
        self._lay_out()
        connect_all(
            (self.map.hovered, self.tell),
            (self.map.picked, self.pick),
            (self.map.dragged, self._on_dragged_over),
            (self.map.menu_wanted, self._on_menu_wanted),
            (self.map.zoomed, self._on_zoomed),
            (self.map.resized, self.refresh),
            (self.map.fit_wanted, self.fit_colors),
            (models.viewport.changed, self._on_viewport),
            (models.selection.changed, self._on_selected),
        )

    @property
    def picture(self) -> Any:
        """The picture that is shown; None if there is none."""
        state: Any = self.state
        return None if state is None else state.picture

    def cell_at(self, point: QPointF | None) -> MatrixCell | None:
        """The cell at a point of the map; None if there is none."""
        picture = self.picture
        return None if picture is None or point is None else matrix_of(picture).at(point.x(), point.y())

    def _lay_out(self) -> None:
        self._row = row((self.map, 1), spacing=8)
        self.set_body(column((self._row, 1), self.readout, spacing=2))

    def pick(self, point: QPointF) -> None:
        """Handle a click on the map; `point` is (position, row)."""
        raise NotImplementedError

    def area(self, start: QPointF, stop: QPointF) -> Rows | None:
        """The rows between two points of the map, both included; None if there are none."""
        first, last = self.cell_at(start), self.cell_at(stop)
        return None if first is None or last is None else self.rows_between(first, last)

    def rows_between(self, first: MatrixCell, last: MatrixCell) -> Rows:
        """The rows between two cells, both included."""
        raise NotImplementedError

    def _on_dragged_over(self, start: QPointF, stop: QPointF) -> None:
        if (area := self.area(start, stop)) is not None:
            self._models.selection.update(position=area.start, channel=None, area=area)

    def _on_menu_wanted(self, point: QPointF | None, place: QPoint) -> None:
        """Open the menu for what is under the mouse, or for the selected area if that contains it."""
        here = self.area(point, point) if point is not None else None
        if here is not None:
            now = self._models.selection.now.area
            if now is None or not is_within(here, now):
                self._models.selection.update(position=here.start, channel=None, area=here)
        self.menu_wanted.emit(place)

    def tell(self, point: QPointF | None) -> None:
        """Show the value under the cursor in the line below; None: the cursor is elsewhere."""
        raise NotImplementedError

    def reset_view(self) -> None:
        self.map.reset_view()

    def zoom_to_selection(self) -> None:
        position = self._models.selection.now.position
        if position is None:
            self.map.follow_newest()
        else:
            self.map.zoom_to(position)

    def want(self, *, is_visible: bool) -> None:
        self._models.viewport.update(**{f"{self.kind}_columns": self.map.num_columns if is_visible else None})

    def _on_zoomed(self, wanted: TokenRange | None) -> None:
        self._models.viewport.update(**{f"{self.kind}_range": wanted})

    def _on_selected(self, old: Selected, new: Selected) -> None:
        """Bring a token that was selected elsewhere into sight."""
        if new.position is not None and new.position != old.position:
            self.map.bring_into_sight(new.position)

    def _on_viewport(self) -> None:
        self.map.show_range(getattr(self._models.viewport.now, f"{self.kind}_range"))
        self.pin_button.setChecked(self._models.viewport.is_pinned(self.kind))

    @property
    def _shown_seq_id(self) -> int:
        """The sequence that the picture shows, which for a while may not be the selected one."""
        picture = self.picture
        return self._models.selection.now.seq_id if picture is None else int(picture.request.seq_id)

    def _token_name(self, position: int) -> str:
        return token_name(self._models, self._shown_seq_id, position, self.name_length)


COUNTS = (0, 4, 16, 64, 256)  # of the latest queries; 0: all


class LensMenu(QToolButton):
    """Names the lens of the picture shown; its menu has all that the picture can have, and selects it: for pictures of
    rows, or `of_queries` for those of attention, where it also selects of how many of the latest queries."""

    def __init__(self, models: Models, lenses: Iterable[Lens] = TABLE, *, of_queries: bool = False) -> None:
        super().__init__()
        self._models, self._of_queries = models, of_queries
        self.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)
        menu = QMenu(self)
        menu.setToolTipsVisible(True)
        self._actions = QActionGroup(menu)
        for lens in lenses if not of_queries else [lens for lens in lenses if lens.heads == "query"]:
            action = self._actions.addAction(f"{lens.words}  ({lens.label})")
            action.setData(lens.name)
            action.setCheckable(True)
            action.setToolTip(plain_tip(lens.formula))
            menu.addAction(action)
        self._actions.triggered.connect(self._on_triggered)
        self._counts = QActionGroup(menu)
        if of_queries:
            menu.addSeparator()
            menu.addAction("Of which queries").setEnabled(False)
            for count in COUNTS:
                action = self._counts.addAction(latest_words(count).capitalize())
                action.setData(count)
                action.setCheckable(True)
                menu.addAction(action)
            self._counts.triggered.connect(self._on_count)
        self.setMenu(menu)
        self.show_lens("keys")

    def show_lens(self, name: str, latest: int = 0, *, has_room: bool = True) -> None:
        """Name the lens of the picture that is shown, and of how many of the latest queries it is (0: all); without
        room for a name only the tool tip has it."""
        lens = LENSES[name]
        has_counts = lens.reads == "queries"
        is_some = has_counts and latest
        words = f"{lens.label} · {thousands(latest)} ▾" if is_some else f"{lens.label} ▾"
        self.setText(words if has_room else "▾")
        of = f", of {latest_words(latest)}" if is_some else ""
        self.setToolTip(f"What is drawn of each row{of}" if has_room else f"{lens.words}{of}")
        self.setAccessibleName(f"Lens: {lens.words}{of}")
        for action in self._actions.actions():
            action.setChecked(action.data() == name)
        for action in self._counts.actions():
            action.setChecked(action.data() == latest)
            action.setEnabled(has_counts)

    def _on_triggered(self, action: QAction) -> None:
        if self._of_queries:
            self._models.viewport.update(attention_lens=str(action.data()))
        else:
            self._models.selection.update(lens=str(action.data()), change=False)

    def _on_count(self, action: QAction) -> None:
        self._models.viewport.update(attention_latest=int(action.data()))


def latest_words(count: int) -> str:
    """`the latest 16 queries`, or all of them."""
    return f"the latest {thousands(count)} queries" if count else "all queries"
