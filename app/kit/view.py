"""The frame of every panel, and how it follows the models: a title strip that says what is shown and where its numbers
come from, and a body that shows one frozen state, or a reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import (
    QAction,
    QFont,
    QGuiApplication,
    QPainter,
    QPainterPath,
    QPaintEvent,
    QPen,
    QResizeEvent,
)
from PySide6.QtWidgets import (
    QAbstractScrollArea,
    QFileDialog,
    QLayout,
    QMenu,
    QStackedLayout,
    QToolButton,
    QWidget,
)

from app.kit.files import PICTURE_KINDS, save_look, save_text, why_no_look
from app.kit.panel_rows import PANELS
from app.kit.plot import Plot
from app.kit.provenance import Provenance
from app.kit.reader import Reader, State
from app.kit.theme import Themed, current_theme, font_text, icon
from app.kit.widgets import (
    ActionButton,
    DotLabel,
    ElidedLabel,
    Segments,
    column,
    connect_all,
    holder,
    plain_label,
    row,
)
from app.models import Models
from engine.spec.model import CaptureLevel, captures

# Names of the buttons that the window can give to a panel for when it has nothing to show.
GO_THERE, LOAD, MEASURE, PAGED, COMPARE, ATTACH = "go there", "load", "measure", "paged", "compare", "attach"


STRIP_HEIGHT = 26
RADIUS = 6
MARGIN = 10


class TitleBar(QWidget):
    """A panel's title strip. In a dock it is the title bar, so that the panel can be dragged by it."""

    def __init__(self) -> None:
        super().__init__()
        self.setFixedHeight(STRIP_HEIGHT + 1)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        if self.rect().adjusted(RADIUS, 2, -RADIUS, -2).contains(event.rect()):  # only a label needs repainting
            painter.fillRect(event.rect(), current_theme().color("title_strip"))
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        # The frame continues in the body below: only the upper corners are round here.
        outline = rounded(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, 0), bottom=False)
        painter.fillPath(outline, current_theme().color("title_strip"))
        painter.setPen(QPen(current_theme().color("hairline"), 1))
        painter.drawPath(outline)
        painter.drawLine(QPointF(0.5, STRIP_HEIGHT + 0.5), QPointF(self.width() - 0.5, STRIP_HEIGHT + 0.5))


def rounded(rect: QRectF, *, top: bool = True, bottom: bool = True) -> QPainterPath:
    """A panel's outline, or only its upper or lower part, open towards the other. It stays inside the rectangle,
    because SVG drawings are not clipped."""
    path = QPainterPath()
    if top and bottom:
        path.addRoundedRect(rect, RADIUS, RADIUS)
        return path
    near, far, size = (rect.bottom(), rect.top(), RADIUS) if top else (rect.top(), rect.bottom(), -RADIUS)
    path.moveTo(rect.left(), near)
    path.lineTo(rect.left(), far + size)
    path.quadTo(rect.left(), far, rect.left() + RADIUS, far)
    path.lineTo(rect.right() - RADIUS, far)
    path.quadTo(rect.right(), far, rect.right(), far + size)
    path.lineTo(rect.right(), near)
    return path


class View(Reader[State], Themed, QWidget):
    """A panel. A subclass sets its `name`, by which it has a row in `PANELS`, and what it `follows`, builds its body in
    the constructor, which ends with `self.follow(models)`, and implements `read`, `show_state` and `provenance`.

    This base does the rest. While the panel is hidden, nothing is read. `show_state` is called only when the state or
    the theme has changed. `provenance` is asked for at every reading, because unchanged numbers may by now be of an
    earlier step. Without a state, the strip is empty and the body is replaced by the reason. With `choices` (id, text,
    tool tip) the strip has segments, and `choice` is the chosen one.

    Signals: `message(text)`, for the status line; `wants(Command or Question)`, something of the engine.
    """

    name: ClassVar[str]
    title: ClassVar[str]  # that of its row
    # Which of view.reset, view.zoom and view.colors this panel supports; the others are disabled while it is focused.
    abilities: frozenset[str] = frozenset()
    can_pin: ClassVar[bool] = False
    can_copy: ClassVar[bool] = True
    choices: ClassVar[tuple[tuple[str, str, str], ...]] = ()
    choices_when_empty: ClassVar[bool] = True  # whether the segments are visible without a state
    reads_size: ClassVar[bool] = False  # whether the state depends on the panel's size
    needs: ClassVar[CaptureLevel | None] = None  # the capture level of a step that this panel requires

    message = Signal(str)
    wants = Signal(object)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" in vars(cls):
            cls.title = PANELS[cls.name].title

    def __init__(self, models: Models) -> None:
        super().__init__()
        self._models = models
        self.setAccessibleName(self.title)
        self.title_label = plain_label(self.title, font_text(12.0, QFont.Weight.DemiBold), "text")
        self.segments = Segments()
        self.segments.hide()
        self.detail = ElidedLabel(role="muted")
        self.detail.set_background("title_strip")
        self.provenance_label = DotLabel()
        self.pin_button = self._make_button("Stay here: stop following the selection", self.pin)
        self.pin_button.setCheckable(True)
        self.pin_button.setVisible(self.can_pin)
        self._menu_button = self._make_menu_button()
        self._extras = row(spacing=8)
        self.empty = plain_label(role="muted", wraps=True)
        self.remedies: dict[str, ActionButton] = {}
        self._body = QWidget()
        self._strip = TitleBar()
        self.frame_actions: list[QAction] = []  # entries of the panel's holder in the small menu
        self._build_frame()
        self._set_icons()
        if type(self).provenance is not View.provenance:  # reserve its width, so that its first text widens no column
            policy = self.provenance_label.sizePolicy()
            policy.setRetainSizeWhenHidden(True)
            self.provenance_label.setSizePolicy(policy)
        self.choice = self.choices[0][0] if self.choices else ""
        if self.choices:
            self.set_choices(self.choices)
            self.segments.set_choice(self.choice)
            self.segments.chosen.connect(self.choose)

    # ---- following the models --------------------------------------------------------------------------------------

    def provenance(self, state: State) -> Provenance | None:
        """Where the numbers of a state come from, and whether they are of the newest step; None shows nothing."""
        return None

    def follow(self, models: Models) -> None:
        super().follow(models)
        for changed in (models.draft.changed, models.status.changed):
            changed.connect(self._on_beginning)

    @property
    def how_to_begin(self) -> str:
        """How the first step is taken, in a few words; where the prompt is wrong, its panel says what it needs."""
        status, warning = self._models.status, self._models.draft.warning
        if (file := status.now.opened) is not None:
            return "the file is being read" if file.num_steps else "go on with the file's model"
        if status.now.work is not None and not status.is_loading:
            return "it can be taken when what is going on has ended"
        if status.now.model is None and not status.is_busy:
            return "choose a model, then press F10"
        if warning:
            return "change the prompt as its panel says, then press F10"
        return "type a prompt and press F10" if self._models.draft.problem else "press F10"

    def _on_beginning(self) -> None:
        """What would take the first step may be something else by now."""
        if isinstance(self._state, str) and not self._models.timeline.nodes:
            self._ask_refresh()

    def choose(self, choice: str) -> None:
        """Select a segment of the strip, as a click on it does."""
        self.choice = choice
        self.segments.set_choice(choice)
        self.refresh()

    def refresh(self) -> None:
        super().refresh()
        if isinstance(self._state, str):
            self.set_empty(self._state, self._remedy())  # with the same reason another remedy may be possible by now

    def show_nothing(self, why: str) -> None:
        self.set_detail("")
        self.provenance_label.set_state("", "live cache")
        if not self.choices_when_empty:
            self.set_choices(())

    def show_choices(self, is_any: bool) -> None:
        """Show or hide the segments: where there is room for all that they choose between, they are not needed."""
        self.set_choices(self.choices if is_any else ())
        self.segments.set_choice(self.choice)

    def _remedy(self) -> str:
        """The name of the button that would help when there is nothing to show; empty if none does."""
        if self._models.timeline.is_elsewhere:
            return GO_THERE
        if self._models.status.is_unloaded:
            return LOAD
        return "" if self.is_measured else MEASURE

    @property
    def is_measured(self) -> bool:
        """Whether the present capture level includes what this panel shows."""
        status = self._models.status.now
        return self.needs is None or not self._models.status.is_known or captures(status.capture.level, self.needs)

    def _take(self, state: State) -> None:
        before = self._state
        self.set_empty(None)
        if self._state is not before:  # showing the body resized it, which read and showed a newer state
            return
        super()._take(state)
        source = self.provenance(state) or Provenance("")
        self.provenance_label.set_state(source.words, source.kind, source.sentence, source.brief)

    def resizeEvent(self, event: QResizeEvent) -> None:
        super().resizeEvent(event)
        if self.reads_size:
            self.refresh()

    def take_theme(self) -> None:
        """Show everything in the colours of another theme."""
        self._set_icons()
        self.show_again()

    # ---- set by subclasses and the window --------------------------------------------------------------------

    def set_body(self, body: QWidget | QLayout) -> None:
        """Show a widget or a layout inside the margins."""
        widget = holder(body) if isinstance(body, QLayout) else body
        for area in (widget, *widget.findChildren(QAbstractScrollArea)):
            if isinstance(area, QAbstractScrollArea) and not area.accessibleName():
                area.setAccessibleName(self.accessibleName())
        old, self._body = self._body, widget
        self._pages.addWidget(widget)
        self._pages.setCurrentWidget(widget)
        self._pages.removeWidget(old)
        old.setParent(None)
        old.deleteLater()

    def set_title(self, text: str) -> None:
        self.title_label.setText(text)
        self.setAccessibleName(text)

    def set_detail(self, text: str, brief: str = "", tip: str = "") -> None:
        """Muted text after the title; where the strip is narrow it is replaced by `brief`, then left out. `tip` says
        what the words mean."""
        self.detail.setText(text, brief, tip)

    def set_remedy(self, name: str, text: str, action: QAction) -> None:
        """Add a button that `set_empty` can show, by `name`, when there is nothing else to show."""
        button = self.remedies[name] = ActionButton(text, action)
        button.hide()
        self._blank_column.insertWidget(self._blank_column.count() - 1, button, 0, Qt.AlignmentFlag.AlignHCenter)

    def set_empty(self, text: str | None, remedy: str = "") -> None:
        """Show a sentence instead of the body: what would appear and how to get it, with the button named `remedy`.
        None shows the body."""
        if (text or "") != self.empty.text():
            self.empty.setText(text or "")
        for name, button in self.remedies.items():
            button.setVisible(name == remedy)
        wanted = self._body if text is None else self._blank
        if self._pages.currentWidget() is not wanted:
            self._pages.setCurrentWidget(wanted)

    def set_choices(self, choices: Sequence[tuple[str, str, str]]) -> None:
        """Set the segments of the strip: `(id, text, tool tip)` each."""
        self.segments.set_choices(choices)
        self.segments.setVisible(bool(choices))

    def add_to_strip(self, widget: QWidget) -> None:
        """Add a small widget at the right end of the strip, before the pin."""
        self._extras.addWidget(widget)

    def new_plot(self, name: str, picked: Callable[[Any], object]) -> Plot:
        """A plot in this panel, which reads again what is pointed at; `picked` takes the key of a point that is
        clicked."""
        plot = Plot(name)
        self.abilities |= {"view.reset"}
        connect_all((plot.pointed, self.refresh), (plot.picked, picked), (plot.message, self.message))
        return plot

    def select_step(self, step: int) -> None:
        """Select a step, such as that of a point of a plot."""
        self._models.selection.update(step=step)

    def select_layer(self, layer: int) -> None:
        """Select a layer, such as that of a row or a bar."""
        self._models.selection.update(layer=layer)

    def select_position(self, position: int | None) -> None:
        """Select a token, such as that of a point, or none."""
        self._models.selection.update(position=position)

    def add_to_menu(self, menu: QMenu) -> None:
        """Add entries above those for copying; overridden by subclasses."""

    @property
    def empty_text(self) -> str:
        """The sentence shown instead of the body; empty while the body is shown."""
        return self.empty.text() if self._pages.currentWidget() is self._blank else ""

    def reset_view(self) -> None:
        """Show everything again, in every plot of the panel (Home). Overridden by panels that zoom."""
        for plot in self.findChildren(Plot):
            plot.reset_view()

    def zoom_to_selection(self) -> None:
        """Zoom to the selection (F). Overridden by panels that zoom."""

    def pin(self, is_pinned: bool) -> None:
        """Stay at the present place, or follow the selection again. Overridden by panels with a pin."""

    def fit_colors(self) -> None:
        """Fit the colour range to what is visible (C). Overridden by panels with a range."""

    @property
    def frame(self) -> QWidget:
        """The widget that contains panel and title strip: the dock, or the panel itself."""
        return self._strip.parentWidget() or self

    def take_strip(self) -> QWidget:
        """Hand the title strip to a dock, which shows it as its title bar."""
        layout = self.layout()
        if layout is not None:
            layout.removeWidget(self._strip)
        return self._strip

    # ---- copying and saving --------------------------------------------------------------------------------------

    def copy_picture(self) -> None:
        """Copy the panel as an image, with title and provenance, so that the image can stand alone."""
        if why_not := why_no_look(self.frame):
            self.message.emit(why_not)
            return
        QGuiApplication.clipboard().setImage(self.frame.grab().toImage())
        self.message.emit(f"Picture of “{self.title_label.text()}” copied")

    def save_picture(self) -> None:
        """Ask for a file and write the picture as PNG, or as SVG if its name ends so."""
        name = self.title_label.text().lower().replace(" · ", "-").replace(" ", "-") + ".png"
        path, _ = QFileDialog.getSaveFileName(self, "Save picture", name, PICTURE_KINDS)
        if not path:
            return
        self.message.emit(save_look(self.frame, Path(path)) or f"Picture saved to {path}")

    # ---- construction --------------------------------------------------------------------------------------------

    def save_text_as(self, title: str, name: str, kinds: str, text: Callable[[], str], saved: str) -> None:
        """Ask for a file and write a text to it; the status line says `saved` and the path, or the problem."""
        path, _ = QFileDialog.getSaveFileName(self, title, name, kinds)
        if path:
            self.message.emit(save_text(text(), Path(path)) or f"{saved} {path}")

    def _make_button(self, tip: str, slot: object) -> QToolButton:
        button = QToolButton(self)
        button.setToolTip(tip)
        button.setAccessibleName(tip)
        button.setIconSize(QSize(14, 14))
        button.setFixedSize(20, 20)
        button.setFocusPolicy(Qt.FocusPolicy.TabFocus)
        button.clicked.connect(slot)
        return button

    def _make_menu_button(self) -> QToolButton:
        button = self._make_button("Copy or save this picture", self.open_menu)
        button.setVisible(self.can_copy)
        return button

    def _build_frame(self) -> None:
        self.empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        # The length of this text must not limit how narrow the panel can become.
        self.empty.setMinimumSize(1, 1)
        left = self.title_label, self.segments, (self.detail, 1), self.provenance_label
        # a widget that paints its background must not cover the frame
        margins = (MARGIN, 2, 5, 2)
        strip = row(*left, self._extras, self.pin_button, self._menu_button, spacing=8, margins=margins, on=self._strip)
        strip.addStrut(STRIP_HEIGHT - 3)  # a dock uses the layout's height, not the fixed one
        self._blank_column = column(None, self.empty, None, spacing=8)
        self._blank = holder(self._blank_column)
        self._pages = QStackedLayout()
        framed = column(self._pages, margins=(MARGIN, MARGIN, MARGIN, MARGIN))  # a stacked layout has none of its own
        column(self._strip, (framed, 1), spacing=0, on=self)
        # Only now: a stacked layout shows its first widget at once, which as a child of none would be a window.
        self._pages.addWidget(self._body)
        self._pages.addWidget(self._blank)

    def _set_icons(self) -> None:
        theme = current_theme()
        self.pin_button.setIcon(icon("pin", theme.muted, theme.selected))
        self._menu_button.setIcon(icon("more", theme.muted))

    def open_menu(self) -> None:
        """Open the small menu."""
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.add_to_menu(menu)
        menu.addAction("Copy picture", self.copy_picture)
        menu.addAction("Save picture…", self.save_picture)
        menu.addSeparator()
        menu.addActions(self.frame_actions)
        menu.popup(self._menu_button.mapToGlobal(self._menu_button.rect().bottomLeft()))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        if self.rect().adjusted(RADIUS, 2, -RADIUS, -RADIUS).contains(event.rect()):  # only the inside changed
            painter.fillRect(event.rect(), current_theme().color("panel"))
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        # If the strip is a dock's title bar, only the lower corners are painted here.
        is_whole = self._strip.parentWidget() is self
        outline = rounded(QRectF(self.rect()).adjusted(0.5, 0.5 if is_whole else 0, -0.5, -0.5), top=is_whole)
        painter.fillPath(outline, current_theme().color("panel"))
        painter.setPen(QPen(current_theme().color("hairline"), 1))
        painter.drawPath(outline)
