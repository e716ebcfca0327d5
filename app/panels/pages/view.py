"""The page pool as a grid: which page belongs to whom, how full it is, what is shared, and what just happened."""

from __future__ import annotations

from typing import cast, get_args

from PySide6.QtCore import Qt
from PySide6.QtGui import QHideEvent, QResizeEvent, QShowEvent
from PySide6.QtWidgets import QFrame, QHBoxLayout, QPlainTextEdit, QVBoxLayout, QWidget

from app.draw.format import thousands
from app.kit.labels import ElidedLabel, plain_tip, tint
from app.kit.owner_colors import owner_color
from app.kit.page_words import record_lines
from app.kit.panel import Panel
from app.kit.provenance import shown_record, tell_source
from app.kit.theme import Theme, font_fixed
from app.models import Models
from app.models.page_places import chosen_page, place_of, table_pages
from app.models.slices import TABLE
from app.panels.pages.canvas import PageCanvas
from app.panels.pages.colors import grid_colors
from app.panels.pages.draw import NUM_OWNER_COLORS, Mode
from app.panels.pages.facts import PageInfo, page_info
from app.panels.pages.legend import Key, Legend
from engine.wire.page_map import PageMap
from engine.wire.records import StepRecord

EVENTS = "events"
_WIDE = 780


class PagesView(Panel):
    """Follows the selection; clicking a page selects its sequence and its first token everywhere."""

    def __init__(self, models: Models, theme: Theme, parent: QWidget | None = None) -> None:
        super().__init__(theme, "Pages", parent)
        self._models = models
        self._mode: Mode = "state"
        self._shows_events = False
        self._told: object = None
        self._pointed: tuple[int, int] | None = None
        self._unplaced = False
        self._canvas = PageCanvas(theme)
        self._canvas.setAccessibleName("Pages of the pool")
        self._legend = Legend(theme)
        self._events = QPlainTextEdit()
        self._readout = ElidedLabel()
        self._build()
        self.chosen.connect(self._on_chosen)
        self._canvas.picked.connect(self._on_picked)
        self._canvas.pointed.connect(self._on_pointed)
        models.selection.changed.connect(self._refresh)
        models.timeline.legible.connect(self._refresh)
        models.timeline.reset.connect(self._refresh)
        models.slices.changed.connect(self._on_slice)
        models.status.changed.connect(self._refresh)
        self.set_theme(theme)

    def _build(self) -> None:
        self._events.setReadOnly(True)
        self._events.setFont(font_fixed(11))
        self._events.setFrameShape(QFrame.Shape.NoFrame)
        self._events.setLineWrapMode(QPlainTextEdit.LineWrapMode.WidgetWidth)
        self._events.setAccessibleName("What the step did to pages")
        self._events.setObjectName("quiet")
        self._events.document().setDocumentMargin(0)
        self._readout.setFont(font_fixed(11.5))
        self._readout.setTextInteractionFlags(Qt.TextInteractionFlag.TextSelectableByMouse)
        row = QHBoxLayout()
        row.setSpacing(14)
        row.addWidget(self._canvas, 3)
        row.addWidget(self._events, 2)
        body = QWidget()
        column = QVBoxLayout(body)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(4)
        column.addWidget(self._legend)
        column.addLayout(row, 1)
        column.addWidget(self._readout)
        self.set_body(body)
        self.set_choices(
            (
                ("state", "state", "Free, used, shared, cached"),
                ("owner", "owner", "Which sequence holds a page"),
                ("age", "age", "How long ago a page was taken, shared or freed"),
                ("refs", "refs", "How many sequences refer to a page"),
                (EVENTS, "events", "What the step did to pages, line by line"),
            )
        )

    # ---- intents -------------------------------------------------------------------------------------------------

    def set_theme(self, theme: Theme) -> None:
        super().set_theme(theme)
        self._canvas.set_theme(theme)
        tint(self._readout, theme, "muted")
        tint(self._events, theme, "muted")
        self._told = None
        self._refresh()

    def choose(self, choice: str) -> None:
        """Colour the grid by state, owner, age or refs, or show the events."""
        self._shows_events = choice == EVENTS
        if choice in get_args(Mode):
            self._mode = cast(Mode, choice)
        self._refresh()

    def _on_chosen(self, choice: str) -> None:
        self.choose(choice)

    def _on_picked(self, pool: int, page_id: int) -> None:
        self.choose_page(pool, page_id)

    def choose_page(self, pool: int, page_id: int) -> None:
        """Select a page: its sequence and its first token with it."""
        record = shown_record(self._models)
        if record is None or pool >= len(record.page_maps):
            return
        info, now = page_info(self._models, record, pool, page_id), self._models.selection.now
        status = self._models.status.now
        alive = {sequence.seq_id for sequence in status.sequences} if status is not None else set()
        owners = [seq_id for seq_id in info.owners if seq_id in alive]
        seq_id = now.seq_id if now.seq_id in owners or not owners else owners[0]
        place = place_of(self._models, record, pool, page_id) if seq_id == now.seq_id and owners else None
        # the page of another sequence finds its positions when that table has come
        self._unplaced = place is None and bool(owners)
        self._models.selection.update(seq_id=seq_id, position=place, page=page_id, pool=pool)

    def _on_pointed(self, pool: int | None, page_id: int | None) -> None:
        pointed = None if pool is None or page_id is None else (pool, page_id)
        if pointed != self._pointed:
            self._pointed = pointed
            self._read_out(shown_record(self._models))

    def _on_slice(self, kind: str) -> None:
        if kind != TABLE:
            return
        now, record = self._models.selection.now, shown_record(self._models)
        if self._unplaced and now.page is not None and record is not None and now.pool < len(record.page_maps):
            place = place_of(self._models, record, now.pool, now.page)
            if place is not None:
                self._unplaced = False
                self._models.selection.update(position=place, page=now.page)
        self._refresh()

    # ---- showing -------------------------------------------------------------------------------------------------

    def _refresh(self) -> None:
        if not self.isVisible():
            return
        record = shown_record(self._models)
        problem = self._problem(record)
        self.set_choice(EVENTS if self._shows_events else self._mode)
        self.set_empty(problem)
        if problem is not None or record is None:
            self.set_provenance("")
            self.set_detail("")
            self._told = None
            return
        tell_source(self, self._models, "recorded", "", record.step)
        self._canvas.show_pools(record.page_maps, self._names(record), self._mode, record.step)
        mine = [self._mine(record, pool) for pool in range(len(record.page_maps))]
        self._canvas.set_selected(chosen_page(self._models, record), mine)
        self._read_out(record)
        self._tell(record)

    def _problem(self, record: StepRecord | None) -> str | None:
        """Why there is nothing to draw, and how to get it."""
        status, is_live = self._models.status.now, self._models.selection.now.step is None
        cache = status.cache if status is not None else None
        if is_live and cache is not None and not cache.is_paged:
            return "This cache mode has no pages: choose Paged to see them."
        if record is None or (is_live and cache is not None and record.cache != cache):
            return "The page pool appears here with the next step."
        return None if record.page_maps else "This step was taken in a cache mode that has no pages."

    def _names(self, record: StepRecord) -> tuple[str, ...]:
        return tuple(
            "full attention layers" if pool.window is None else f"sliding layers, window of {thousands(pool.window)}"
            for pool in record.page_maps
        )

    def _mine(self, record: StepRecord, pool: int) -> list[int]:
        """The pages of the selected sequence: worth showing where others have pages too."""
        status = self._models.status.now
        if status is None or len(status.sequences) < 2:
            return []
        return [page_id for page_id in table_pages(self._models, record, pool) if page_id]

    def _tell(self, record: StepRecord) -> None:
        """Words and lines: only when they are others."""
        is_wide = self.width() >= _WIDE
        self._events.setVisible(self._shows_events or is_wide)
        self._canvas.setVisible(not self._shows_events or is_wide)
        self._legend.setVisible(not self._shows_events or is_wide)
        key = (record, self._mode, self._events.isVisible(), self.theme)
        if key == self._told:
            return
        self._told = key
        num_pages = sum(pool.num_pages for pool in record.page_maps)
        self.set_detail(self._about(record.page_maps), f"{thousands(num_pages)} pages")
        self._legend.show_keys(self.theme, self._keys(record))
        if self._events.isVisible():
            lines = record_lines(record)
            self._events.setPlainText("\n".join(lines) or "The step took no page and let go of none.")

    def _about(self, pools: tuple[PageMap, ...]) -> str:
        first = pools[0]
        parts = [f"pool of {thousands(first.num_pages)}"]
        if len(pools) > 1:
            parts = [f"{len(pools)} pools of {thousands(first.num_pages)}"]
        parts.append(f"slack {thousands(sum(pool.num_slack_tokens for pool in pools))} tokens")
        if first.host_pages:
            host = "host {0} of {1} pages"
            parts.append(host.format(thousands(first.host_used), thousands(first.host_pages)))
        parts.append(f"{thousands(first.page_size)} tokens a page")
        return " · ".join(parts)

    def _keys(self, record: StepRecord) -> tuple[Key, ...]:
        pools, colors = record.page_maps, grid_colors(self.theme)
        shared, cached = sum(p.num_shared for p in pools), sum(p.num_cached for p in pools)
        used, free = sum(p.num_used for p in pools), sum(p.num_free for p in pools)
        rest = (
            Key(colors.cached, f"{thousands(cached)} cached"),
            Key(colors.free, f"{thousands(free)} free"),
        )
        match self._mode:
            case "state":
                held = (
                    Key(colors.used, f"{thousands(used)} used"),
                    Key(colors.shared, f"{thousands(shared)} shared"),
                )
                on_host = (Key(colors.host, "copy on host"),) if pools[0].host_pages else ()
                return (*held, *rest, *on_host)
            case "owner":
                status = self._models.status.now
                ids = [sequence.seq_id for sequence in status.sequences] if status is not None else []
                return tuple(Key(owner_color(self.theme, i), f"seq {i}") for i in ids[:NUM_OWNER_COLORS]) + rest
            case "age":
                ends = "long ago … this step"
                return (Key(colors.free, ends, colors.young),)
            case "refs":
                return (Key(colors.used, "1 … 4 and more sequences", colors.young), *rest)

    def _read_out(self, record: StepRecord | None) -> None:
        if record is None or not record.page_maps:
            return
        place = self._pointed or chosen_page(self._models, record)
        if place is None or place[0] >= len(record.page_maps) or place[1] >= record.page_maps[place[0]].num_pages:
            self._say(self._happened(record), "")
            return
        info = page_info(self._models, record, *place)
        per_cell = self._canvas.layouts[place[0]].per_cell if self._canvas.layouts else 1
        run = f"first of {per_cell} pages in this pixel   " if per_cell > 1 and self._pointed else ""
        self._say(run + info.line(), self._tip(info))

    def _happened(self, record: StepRecord) -> str:
        lines = record_lines(record)
        more = f"   and {len(lines) - 1} more, under events" if len(lines) > 1 else ""
        return lines[0] + more if lines else "point at a page"

    def _tip(self, info: PageInfo) -> str:
        return "\n".join(text for _, text in info.lines())

    def _say(self, text: str, tip: str) -> None:
        if text != self._readout.text():
            self._readout.setText(text)
        self._readout.setToolTip(plain_tip(tip))

    # ---- what the engine should send -----------------------------------------------------------------------------

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        self._models.viewport.update(wants_table=True)
        self._refresh()

    def hideEvent(self, event: QHideEvent) -> None:
        super().hideEvent(event)
        self._models.viewport.update(wants_table=False)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        self._refresh()
