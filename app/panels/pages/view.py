"""The page pool as a grid: each page's owner, how full it is, whether it is shared, and what the step did to it."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import cast, get_args

import numpy as np
from msgspec import Struct
from PySide6.QtCore import QEvent, QPointF, QRectF, Qt, Signal
from PySide6.QtGui import QContextMenuEvent, QImage, QKeyEvent, QMouseEvent, QPainter, QPaintEvent, QPen, QResizeEvent
from PySide6.QtWidgets import QFrame, QPlainTextEdit, QWidget

from app.draw.format import thousands, token_label
from app.kit.bars import ColorKey, ColorName
from app.kit.painting import pixels_image
from app.kit.provenance import Provenance, shown_record, source_of
from app.kit.reader import BOOKMARKS, SELECTION, STATUS, STEPS, pictures
from app.kit.theme import NUM_OWNER_COLORS, Theme, Themed, current_theme, font_fixed, font_text, owner_colors
from app.kit.view import PAGED, View
from app.kit.widgets import ElidedLabel, Opaque, column, connect_all, plain_tip, row, set_text_role
from app.kit.words import paint_ribbon, record_lines, short_hash, state_name, tip_lines
from app.models import Models
from app.models.pictures import TABLE
from app.models.places import chosen_page, place_of, table_pages
from app.models.sequence_status import why_all_ended
from app.panels.pages import draw
from app.panels.pages.draw import GridColors, GridLayout, Mode, PoolArrays
from engine.counted import counted
from engine.wire.pages import KEPT, NO_OWNER, PageCell, PageMap
from engine.wire.records import StepRecord

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
            arrays.follow(pool)
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


# ---- words -----------------------------------------------------------------------------------------------------------


_SHOWN_TOKENS = 24


def pools_words(pools: Sequence[PageMap]) -> tuple[str, str]:
    """The size of the pools and how many slots of their pages are unused, in full and in short."""
    first = pools[0]
    count = f"{len(pools)} pools" if len(pools) > 1 else "pool"
    parts = [f"{count} of {thousands(first.num_pages)}"]
    parts.append(f"slack {counted(sum(pool.num_slack_tokens for pool in pools), 'token')}")
    if first.host_pages:
        parts.append(f"host {thousands(first.host_used)} of {counted(first.host_pages, 'page')}")
    parts.append(f"{counted(first.page_size, 'token')} a page")
    return " · ".join(parts), counted(sum(pool.num_pages for pool in pools), "page")


def pool_names(pools: Sequence[PageMap]) -> tuple[str, ...]:
    """Which layers each pool serves."""
    return tuple(
        "full attention layers" if pool.window is None else f"sliding layers, window of {thousands(pool.window)}"
        for pool in pools
    )


def legend_keys(
    pools: Sequence[PageMap], mode: Mode, seq_ids: Sequence[int], colors: GridColors
) -> tuple[ColorName, ...]:
    """The keys of the legend in a mode, with numbers of pages."""
    cached, free = sum(pool.num_cached for pool in pools), sum(pool.num_free for pool in pools)
    kept, used, shared = sum(pool.num_kept_pages for pool in pools), *_of_sequences(pools)
    parked = (ColorName(colors.kept, f"{thousands(kept)} of other branches"),) if kept else ()
    rest = (
        *parked,
        ColorName(colors.cached, f"{thousands(cached)} cached"),
        ColorName(colors.free, f"{thousands(free)} free"),
        ColorName(colors.null, f"{thousands(len(pools))} null (hatched)"),
    )
    match mode:
        case "state":
            held = (
                ColorName(colors.used, f"{thousands(used)} used"),
                ColorName(colors.shared, f"{thousands(shared)} shared"),
            )
            on_host = (ColorName(colors.host, "copy on host"),) if pools[0].host_pages else ()
            return (*held, *rest, *on_host)
        case "owner":
            return (
                tuple(ColorName(colors.owners[i % NUM_OWNER_COLORS], f"seq {i}") for i in seq_ids[:NUM_OWNER_COLORS])
                + rest
            )
        case "age":
            return (ColorName(colors.free, "long ago … this step", colors.young),)
        case "refs":
            return (ColorName(colors.used, "1 … 4 and more sequences", colors.young), *rest)


def _of_sequences(pools: Sequence[PageMap]) -> tuple[int, int]:
    """How many pages are used by one live sequence, and how many by several; without those that only kept steps
    hold."""
    if not any(pool.num_kept_pages for pool in pools):
        return sum(pool.num_used for pool in pools), sum(pool.num_shared for pool in pools)
    states = [block["state"] for pool in pools for block in pool.blocks]
    used, shared = (
        sum(int(np.count_nonzero(state == int(cell))) for state in states) for cell in (PageCell.USED, PageCell.SHARED)
    )
    return used, shared


def page_owners(models: Models, record: StepRecord, pool: int, page_id: int) -> tuple[int, ...]:
    """The sequences that held a page after a step. With several pools only the record's owner is known, because the
    page events do not name their pool."""
    cell = record.page_maps[pool].cell(page_id)
    if PageCell(int(cell["state"])) not in (PageCell.USED, PageCell.SHARED, PageCell.KEPT):
        return ()
    known = models.pages.facts(page_id, record.step).owners if len(record.page_maps) == 1 else ()
    return tuple(dict.fromkeys(known)) or ((int(cell["owner"]),) if int(cell["owner"]) != NO_OWNER else ())


def page_words(models: Models, record: StepRecord, pool: int, page_id: int) -> tuple[str, ...]:
    """Everything known of a page after a step; the most important first, because the end may not fit."""
    page_map = record.page_maps[pool]
    cell, size = page_map.cell(page_id), page_map.page_size
    state, fill = PageCell(int(cell["state"])), int(cell["fill"])
    owners, first = page_owners(models, record, pool, page_id), place_of(models, record, pool, page_id)
    words = [f"page {thousands(page_id)} {state_name(state)}"]
    if of_sequences := [seq_id for seq_id in owners if seq_id != KEPT]:
        words.append("seq {}".format(", ".join(map(str, of_sequences))))
    if KEPT in owners and state != PageCell.KEPT:
        words.append("kept for another branch")
    if is_filled := state not in (PageCell.FREE, PageCell.NULL):
        words.append(f"{fill}/{counted(size, 'token')}")
    if first is not None and fill:
        last = f"–{thousands(first + fill - 1)}" if fill > 1 else ""
        words.append(f"at {thousands(first)}{last}")
    committed = models.pages.facts(page_id, record.step).committed if len(record.page_maps) == 1 else None
    if committed is not None:
        texts = [models.pages.text(token_id) for token_id in committed.token_ids[:_SHOWN_TOKENS]]
    else:
        texts = _texts_at(models, record, first, fill)
    if texts and is_filled:
        words.append(" ".join(token_label(text) for text in texts))
    words.append(f"slots {thousands(page_id * size)}–{thousands((page_id + 1) * size - 1)}")
    if state in (PageCell.USED, PageCell.SHARED, PageCell.KEPT):
        words.append(f"ref count {int(cell['ref_count'])}")
    if is_filled:
        age = record.step - int(cell["step"])
        words.append("touched this step" if age == 0 else f"age {counted(age, 'step')}")
    if cell["on_host"]:
        words.append("copy on host")
    if committed is not None:
        words.append(f"found as {short_hash(committed.page_hash)}")
    return tuple(words)


def _texts_at(models: Models, record: StepRecord, first: int | None, fill: int) -> list[str]:
    if first is None:
        return []
    tokens = models.timeline.tokens(models.selection.now.seq_id, record.step)
    return [token.text for token in tokens[first : first + min(fill, _SHOWN_TOKENS)]]


# ---- the panel -------------------------------------------------------------------------------------------------------


EVENTS = "events"
_WIDE = 780  # pixels; from this width on the grid and the events are shown side by side
Page = tuple[int, int]  # pool and page_id


class PagesState(Struct, frozen=True):
    """The pools after a step: the selected page, the pages of the selected sequence in every pool, and texts."""

    record: StepRecord
    mode: Mode
    shows_grid: bool
    shows_events: bool
    selected: Page | None
    mine: tuple[tuple[int, ...], ...]
    pointed: Page | None
    keys: tuple[ColorName, ...]
    readout: tuple[str, ...]
    noted: tuple[tuple[int, ...], ...]
    events: tuple[str, ...]


class PagesView(View[PagesState]):
    """Shows the pools of the selected step. A click on a page selects its sequence and its first token in all panels.
    Signal: `menu_wanted(place on the screen)`, for the page selected by the same click."""

    name = "pages"
    reads_size = True
    follows = (SELECTION, STATUS, STEPS, BOOKMARKS, pictures(TABLE, at_rest=True))
    choices = (
        ("state", "state", "Free, used, shared, cached"),
        ("owner", "owner", "Which sequence holds a page"),
        ("age", "age", "How long ago a page was taken, shared or freed"),
        ("refs", "refs", "How many sequences refer to a page"),
        (EVENTS, "events", "What the step did to pages, line by line"),
    )

    menu_wanted = Signal(object)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._mode: Mode = "state"
        self._pointed: Page | None = None
        self._is_unplaced = False
        self.canvas = PageCanvas()
        self.canvas.setAccessibleName("Pages of the pool")
        self._legend = ColorKey(is_line=True)
        self.events = QPlainTextEdit()
        self.readout = ElidedLabel(font_fixed(11.5))
        self._build()
        connect_all(
            (self.canvas.picked, self.choose_page),
            (self.canvas.menu_wanted, self.menu_wanted),
            (self.canvas.pointed, self._on_pointed),
        )
        self.follow(models)

    def _build(self) -> None:
        self.events.setReadOnly(True)
        self.events.setFont(font_fixed(11))
        self.events.setFrameShape(QFrame.Shape.NoFrame)
        self.events.setLineWrapMode(QPlainTextEdit.LineWrapMode.WidgetWidth)
        self.events.setAccessibleName("What the step did to pages")
        self.events.setObjectName("quiet")
        self.events.document().setDocumentMargin(0)
        set_text_role(self.events, "muted")
        self.readout.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        both = row((self.canvas, 3), (self.events, 2), spacing=14)
        self.set_body(column(self._legend, (both, 1), self.readout, spacing=4))

    # ---- input of the user ---------------------------------------------------------------------------------------

    def choose(self, choice: str) -> None:
        """Colour the grid by state, owner, age or refs, or show the events."""
        if choice in get_args(Mode):
            self._mode = cast(Mode, choice)
        super().choose(choice)

    def choose_page(self, pool: int, page_id: int) -> None:
        """Select a page, together with its sequence and its first token."""
        record = shown_record(self._models)
        if record is None or pool >= len(record.page_maps):
            return
        now, status = self._models.selection.now, self._models.status.now
        alive = {sequence.seq_id for sequence in status.sequences}
        owners = [seq_id for seq_id in page_owners(self._models, record, pool, page_id) if seq_id in alive]
        seq_id = now.seq_id if now.seq_id in owners or not owners else owners[0]
        place = place_of(self._models, record, pool, page_id) if seq_id == now.seq_id and owners else None
        # for a page of another sequence, the token is selected when that sequence's table has arrived
        self._is_unplaced = place is None and bool(owners)
        self._models.selection.update(seq_id=seq_id, position=place, page=page_id, pool=pool)

    def refresh(self) -> None:
        self._place_chosen_page()
        super().refresh()

    def _place_chosen_page(self) -> None:
        """Select the first token of a page that was chosen before the table of its sequence had arrived."""
        now, record = self._models.selection.now, shown_record(self._models)
        if self._is_unplaced and now.page is not None and record is not None and now.pool < len(record.page_maps):
            place = place_of(self._models, record, now.pool, now.page)
            if place is not None:
                self._is_unplaced = False
                self._models.selection.update(position=place, page=now.page)

    def _on_pointed(self, pool: int | None, page_id: int | None) -> None:
        self._pointed = None if pool is None or page_id is None else (pool, page_id)
        self.refresh()

    def want(self, *, is_visible: bool) -> None:
        self._models.viewport.update(wants_table=is_visible)

    def _remedy(self) -> str:
        status = self._models.status
        has_rows = status.now.model is not None and bool(status.now.model.geometry.attention_layers)
        can_be_paged = has_rows and not status.has_file and not status.now.cache.is_paged
        return super()._remedy() or (PAGED if can_be_paged and self._models.selection.now.step is None else "")

    # ---- painting ------------------------------------------------------------------------------------------------

    def read(self) -> PagesState | str:
        record = shown_record(self._models)
        status, is_live = self._models.status, self._models.selection.now.step is None
        cache = status.now.cache
        if status.now.opened is not None and status.now.opened.foreign_cache is not None:
            return "The file does not say whether this cache had pages."
        if (why_not := status.why_unmeasured("page tables")) and cache.is_paged:
            return why_not
        if status.now.model is not None and not status.now.model.geometry.attention_layers:
            return "This model has no pages: its layers keep a state instead of rows."
        if is_live and status.is_known and not cache.is_paged:
            return "This cache mode has no pages: choose Paged to see them."
        if record is None or (is_live and record.cache != cache):
            if why_none := why_all_ended(self._models):
                return f"The page pool would appear with the next step, and none can come: {why_none}."
            how = self.how_to_begin if record is None else "press F10"
            return f"The page pool appears here with the next step: {how}."
        if not record.page_maps:
            return "This step was taken in a cache mode that has no pages."
        pools, is_wide = record.page_maps, self.width() >= _WIDE
        seq_ids = [sequence.seq_id for sequence in status.now.sequences]
        selected, lines = chosen_page(self._models, record), tuple(record_lines(record))
        page = self._pointed or selected
        is_there = page is not None and page[0] < len(pools) and page[1] < pools[page[0]].num_pages
        return PagesState(
            record=record,
            mode=self._mode,
            shows_grid=self.choice != EVENTS or is_wide,
            shows_events=self.choice == EVENTS or is_wide,
            selected=selected,
            # marked only if other sequences have pages as well
            mine=tuple(self._mine(record, pool) for pool in range(len(pools))) if len(seq_ids) > 1 else (),
            pointed=self._pointed,
            keys=legend_keys(pools, self._mode, seq_ids, grid_colors(current_theme())),
            readout=self._readout_of(record, *page) if page is not None and is_there else (),
            noted=tuple(tuple(self._models.bookmarks.on_pages(pool)) for pool in range(len(pools))),
            events=lines or ("The step took no page and let go of none.",),
        )

    def _readout_of(self, record: StepRecord, pool: int, page_id: int) -> tuple[str, ...]:
        """Describe a page, and list the notes of its bookmark."""
        words = tuple(page_words(self._models, record, pool, page_id))
        return (*words, *tip_lines(self._models.bookmarks.on_pages(pool).get(page_id)))

    def _mine(self, record: StepRecord, pool: int) -> tuple[int, ...]:
        return tuple(page_id for page_id in table_pages(self._models, record, pool) if page_id)

    def provenance(self, state: PagesState) -> Provenance:
        return source_of(self._models, "recorded", "", state.record.step)

    def show_state(self, state: PagesState) -> None:
        pools = state.record.page_maps
        self.set_detail(*pools_words(pools))
        self.events.setVisible(state.shows_events)
        self.canvas.setVisible(state.shows_grid)
        self._legend.setVisible(state.shows_grid)
        self._legend.show_keys(state.keys)
        self.canvas.show_pools(pools, pool_names(pools), state.mode, state.record.step)
        self.canvas.set_marks(state.selected, state.mine, state.noted)
        if (text := "\n".join(state.events)) != self.events.toPlainText():
            self.events.setPlainText(text)
        self._read_out(state)

    def _read_out(self, state: PagesState) -> None:
        """Show one line about the page under the mouse, or else the selected one; without either, the step's first
        event."""
        if not state.readout:
            more = f"   and {len(state.events) - 1} more, under events" if len(state.events) > 1 else ""
            self.readout.setText(state.events[0] + more if record_lines(state.record) else "point at a page")
            self.readout.setToolTip("")
            return
        pool = (state.pointed or state.selected or (0, 0))[0]
        per_cell = self.canvas.layouts[pool].per_cell
        run = f"first of {per_cell} pages in this pixel   " if per_cell > 1 and state.pointed else ""
        self.readout.setText(run + "   ".join(words for words in state.readout if not words.startswith("found as ")))
        self.readout.setToolTip(plain_tip("\n".join(state.readout)))
