"""The canvas of the page pool: one image per pool, outlines of selected pages, and mouse and keys."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QImage, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QWidget

from app.kit.painting import pixels_image
from app.kit.theme import Theme, Themed, current_theme, font_text, owner_colors
from app.kit.widgets import Opaque
from app.kit.words import paint_ribbon
from app.panels.pages import draw
from app.panels.pages.draw import GridColors, GridLayout, Mode, PoolArrays
from engine.wire.pages import PageMap

LARGEST_CELL = 26
_NAME_HEIGHT = 16
# More outlines than this are not drawn: they would be indistinguishable, and slow.
_MAX_OUTLINES = 2000


@lru_cache(maxsize=8)
def grid_colors(theme: Theme) -> GridColors:
    return GridColors(
        free=theme.page_free,
        used=theme.page_used,
        shared=theme.page_shared,
        cached=theme.page_cached,
        kept=theme.page_kept,
        host=theme.page_host if theme.is_dark else "#b98a3c",
        null=theme.faint,
        ink=theme.text if theme.is_dark else theme.panel,
        young=theme.accent,
        owners=owner_colors(theme),
    )


class PageCanvas(Themed, Opaque, QWidget):
    """Signals: `picked(pool, page_id)`, by click or arrow keys; `pointed(pool, page_id)`, the page under the mouse, or
    None; `menu_wanted(point on the screen)`, for the page picked just before."""

    picked = Signal(int, int)
    pointed = Signal(object, object)
    menu_wanted = Signal(object)

    def __init__(self) -> None:
        super().__init__()
        self._pools: tuple[PageMap, ...] = ()
        self.names: tuple[str, ...] = ()
        self._arrays: list[PoolArrays] = []
        self.layouts: list[GridLayout] = []
        self.images: list[QImage] = []
        self._mode: Mode = "state"
        self._step = 0
        self._selected: tuple[int, int] | None = None
        self._mine: Sequence[Sequence[int]] = ()
        self._noted: Sequence[Sequence[int]] = ()
        self._drawn_in = current_theme()
        self.setMouseTracking(True)
        self.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
        self.setCursor(Qt.CursorShape.PointingHandCursor)
        self.setMinimumSize(40, 24)
        self.set_background()

    # ---- what is shown -------------------------------------------------------------------------------------------

    def take_theme(self) -> None:
        if self._pools and current_theme() is not self._drawn_in:
            self._draw()

    def show_pools(self, pools: tuple[PageMap, ...], names: tuple[str, ...], mode: Mode, step: int) -> None:
        """Show the pools after one step; the images are made again only if something in them changed."""
        same = len(pools) == len(self._pools) and all(a is b for a, b in zip(pools, self._pools, strict=True))
        if same and (names, mode) == (self.names, self._mode) and (step == self._step or mode != "age"):
            return
        self._pools, self.names, self._mode, self._step = pools, names, mode, step
        self._arrays += [PoolArrays() for _ in range(len(pools) - len(self._arrays))]
        for arrays, pool in zip(self._arrays, pools, strict=False):
            arrays.take(pool)
        self._draw()

    def set_marks(
        self, selected: tuple[int, int] | None, mine: Sequence[Sequence[int]], noted: Sequence[Sequence[int]]
    ) -> None:
        """Set the selected page as `(pool, page_id)`, and for every pool the pages of the selected sequence and those
        with a bookmark."""
        if (selected, mine, noted) != (self._selected, self._mine, self._noted):
            self._selected, self._mine, self._noted = selected, mine, noted
            self.update()

    def _draw(self) -> None:
        ratio = self.devicePixelRatioF()
        height = self._room() - (_NAME_HEIGHT if self._has_names else 0)
        room = int(self.width() * ratio) - 2, int(height * ratio) - 2, int(LARGEST_CELL * ratio)
        self.layouts = [draw.arrange(pool.num_pages, *room) for pool in self._pools]
        self._drawn_in = current_theme()
        colors = grid_colors(self._drawn_in)
        self.images = [
            pixels_image(draw.paint(layout, arrays, self._mode, self._step, colors), ratio)
            for layout, arrays in zip(self.layouts, self._arrays, strict=False)
        ]
        self.update()

    @property
    def _has_names(self) -> bool:
        return len(self._pools) > 1

    def _room(self) -> float:
        """The height of one pool, with its name."""
        return self.height() / max(1, len(self._pools))

    def _origin(self, pool: int) -> QPointF:
        return QPointF(1, pool * self._room() + (_NAME_HEIGHT if self._has_names else 0) + 1)

    def page_rect(self, pool: int, page_id: int) -> QRectF:
        """The rectangle of a page in the widget."""
        ratio = self.devicePixelRatioF()
        x, y, width, height = (side / ratio for side in self.layouts[pool].rect(page_id))
        return QRectF(x, y, width, height).translated(self._origin(pool))

    # ---- painting ------------------------------------------------------------------------------------------------

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        self.fill_background(painter)
        for number, image in enumerate(self.images):
            if self._has_names:
                painter.setFont(font_text(11))
                painter.setPen(current_theme().color("muted"))
                top = self._origin(number).y() - _NAME_HEIGHT - 1
                place = QRectF(0, top, self.width(), _NAME_HEIGHT)
                painter.drawText(place, int(Qt.AlignmentFlag.AlignVCenter), self.names[number])
            painter.drawImage(self._origin(number), image)
        self._paint_mine(painter)
        self._paint_noted(painter)
        if self._selected is not None and self._selected[0] < len(self.layouts):
            self._paint_selected(painter, *self._selected)
        if self.hasFocus():
            painter.setPen(QPen(current_theme().color("accent"), 1))
            painter.drawRect(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, -0.5))

    def _paint_mine(self, painter: QPainter) -> None:
        """Outline every page of the selected sequence, where cells are large enough."""
        for number, pages in enumerate(self._mine[: len(self.layouts)]):
            layout = self.layouts[number]
            if layout.pitch < draw.LEAST_SHAPED or len(pages) > _MAX_OUTLINES:
                continue
            painter.setPen(QPen(current_theme().color("text", 150), 1))
            painter.setBrush(Qt.BrushStyle.NoBrush)
            rects = [self.page_rect(number, page_id) for page_id in pages if page_id < layout.num_pages]
            painter.drawRects([rect.adjusted(-0.5, -0.5, -0.5, -0.5) for rect in rects])

    def _paint_noted(self, painter: QPainter) -> None:
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        for number, pages in enumerate(self._noted[: len(self.layouts)]):
            for page_id in pages:
                if page_id < self.layouts[number].num_pages:
                    rect = self.page_rect(number, page_id)
                    paint_ribbon(painter, rect.right() - 1, rect.top() - 2, 0.9 if rect.width() >= 9 else 0.7)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing, False)

    def _paint_selected(self, painter: QPainter, pool: int, page_id: int) -> None:
        if page_id >= self.layouts[pool].num_pages:
            return
        rect = self.page_rect(pool, page_id)
        grow = max(0.0, (5 - rect.width()) / 2)  # so that a page of one pixel can be found
        rect.adjust(-grow, -grow, grow, grow)
        painter.setBrush(Qt.BrushStyle.NoBrush)
        painter.setPen(QPen(current_theme().color("panel"), 1))
        painter.drawRect(rect.adjusted(0.5, 0.5, -1.5, -1.5))
        painter.setPen(QPen(current_theme().color("selected"), 1.6))
        painter.drawRect(rect.adjusted(-0.8, -0.8, 0.3, 0.3))

    # ---- mouse and keys ------------------------------------------------------------------------------------------

    def page_at(self, point: QPointF) -> tuple[int, int] | None:
        """(pool, page) at a point; None if there is none."""
        ratio = self.devicePixelRatioF()
        for number, layout in enumerate(self.layouts):
            inside = (point - self._origin(number)) * ratio
            page_id = layout.hit(inside.x(), inside.y())
            if page_id is not None:
                return number, page_id
        return None

    def mousePressEvent(self, event: QMouseEvent) -> None:
        found = self.page_at(event.position())
        if found is not None and event.button() == Qt.MouseButton.LeftButton:
            self.picked.emit(*found)

    def contextMenuEvent(self, event: QContextMenuEvent) -> None:
        found = self.page_at(QPointF(event.pos()))
        if event.reason() == QContextMenuEvent.Reason.Mouse and found is not None:
            self.picked.emit(*found)
        if found is not None or self._selected is not None:
            self.menu_wanted.emit(event.globalPos())

    def mouseMoveEvent(self, event: QMouseEvent) -> None:
        found = self.page_at(event.position())
        self.pointed.emit(*(found or (None, None)))

    def leaveEvent(self, event: QEvent) -> None:
        super().leaveEvent(event)
        self.pointed.emit(None, None)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        pool, page_id = self._selected or (0, 0)
        moves = {Qt.Key.Key_Left: -1, Qt.Key.Key_Right: 1}
        if self.layouts and pool < len(self.layouts):
            columns, per_cell = self.layouts[pool].columns, self.layouts[pool].per_cell
            moves |= {Qt.Key.Key_Up: -columns, Qt.Key.Key_Down: columns}
            move = moves.get(Qt.Key(event.key()))
            if move is not None:
                there = page_id + move * per_cell
                self.picked.emit(pool, int(np.clip(there, 0, self.layouts[pool].num_pages - 1)))
                return
        super().keyPressEvent(event)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self._pools:
            self._draw()
