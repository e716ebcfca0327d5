"""The page pool as a grid: each page's owner, how full it is, whether it is shared, and what the step did to it."""

from __future__ import annotations

from typing import cast, get_args

from msgspec import Struct
from PySide6.QtCore import Qt, Signal
from PySide6.QtWidgets import QFrame, QPlainTextEdit

from app.kit.bars import ColorKey, ColorName
from app.kit.provenance import Provenance, shown_record, source_of
from app.kit.reader import BOOKMARKS, SELECTION, STATUS, STEPS, pictures
from app.kit.theme import current_theme, font_fixed
from app.kit.view import PAGED, View
from app.kit.widgets import ElidedLabel, column, connect_all, plain_tip, row, set_text_role
from app.kit.words import record_lines, tip_lines
from app.models import Models
from app.models.pictures import TABLE
from app.models.places import chosen_page, place_of, table_pages
from app.models.sequence_status import why_all_ended
from app.panels.pages.canvas import PageCanvas, grid_colors
from app.panels.pages.draw import Mode
from app.panels.pages.words import legend_keys, page_owners, page_words, pool_names, pools_words
from engine.wire.records import StepRecord

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
        has_rows = status.model is not None and bool(status.model.geometry.attention_layers)
        can_be_paged = has_rows and not status.has_file and not status.cache.is_paged
        return super()._remedy() or (PAGED if can_be_paged and self._models.selection.now.step is None else "")

    # ---- painting ------------------------------------------------------------------------------------------------

    def read(self) -> PagesState | str:
        record = shown_record(self._models)
        status, is_live = self._models.status, self._models.selection.now.step is None
        cache = status.cache
        if status.opened is not None and status.opened.foreign_cache is not None:
            return "The file does not say whether this cache had pages."
        if (why_not := status.why_unmeasured("page tables")) and cache.is_paged:
            return why_not
        if status.model is not None and not status.model.geometry.attention_layers:
            return "This model has no pages: its layers keep a state instead of rows."
        if is_live and status.is_known and not cache.is_paged:
            return "This cache mode has no pages: choose Paged to see them."
        if record is None or (is_live and record.cache != cache):
            if why_none := why_all_ended(self._models):
                return f"The page pool would appear with the next step, and none can come: {why_none}."
            how = self._models.draft.how_to_begin if record is None else "press F10"
            return f"The page pool appears here with the next step: {how}."
        if not record.page_maps:
            return "This step was taken in a cache mode that has no pages."
        pools, is_wide = record.page_maps, self.width() >= _WIDE
        seq_ids = [sequence.seq_id for sequence in status.now.sequences]
        selected, lines = chosen_page(self._models, record), tuple(record_lines(record))
        told = self._pointed or selected
        is_there = told is not None and told[0] < len(pools) and told[1] < pools[told[0]].num_pages
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
            readout=self._readout_of(record, *told) if told is not None and is_there else (),
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
