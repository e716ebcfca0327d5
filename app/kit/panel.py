"""The frame every panel shares: a title strip that says what is shown and where its numbers come from, and a body."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from PySide6.QtCore import QPointF, QRectF, QSize, Qt, Signal
from PySide6.QtGui import QAction, QFont, QGuiApplication, QImage, QPainter, QPainterPath, QPaintEvent, QPen
from PySide6.QtWidgets import (
    QAbstractScrollArea,
    QFileDialog,
    QHBoxLayout,
    QLayout,
    QMenu,
    QStackedLayout,
    QToolButton,
    QVBoxLayout,
    QWidget,
)

from app.kit.boxes import column, holder
from app.kit.buttons import ActionButton
from app.kit.files import PICTURE_KINDS, save_look
from app.kit.icons import icon
from app.kit.labels import DotLabel, ElidedLabel, plain_label
from app.kit.segments import Segments
from app.kit.theme import Themed, current_theme, font_text

STRIP_HEIGHT = 26
RADIUS = 6
MARGIN = 10


class TitleBar(QWidget):
    """The upper end of a panel. In a dock it is the title bar, so that a panel is dragged by its name."""

    def __init__(self) -> None:
        super().__init__()
        self.setFixedHeight(STRIP_HEIGHT + 1)

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        if self.rect().adjusted(RADIUS, 2, -RADIUS, -2).contains(event.rect()):  # a label has changed, no edge
            painter.fillRect(event.rect(), current_theme().color("title_strip"))
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        # The frame runs on into the body below: only the upper corners are round here.
        outline = rounded(QRectF(self.rect()).adjusted(0.5, 0.5, -0.5, 0), bottom=False)
        painter.fillPath(outline, current_theme().color("title_strip"))
        painter.setPen(QPen(current_theme().color("hairline"), 1))
        painter.drawPath(outline)
        painter.drawLine(QPointF(0.5, STRIP_HEIGHT + 0.5), QPointF(self.width() - 0.5, STRIP_HEIGHT + 0.5))


def rounded(rect: QRectF, *, top: bool = True, bottom: bool = True) -> QPainterPath:
    """The outline every panel has, or one half of it, open where it runs on. It ends where the rectangle ends: drawings
    know no clipping."""
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


class Panel(Themed, QWidget):
    """A titled surface. Subclasses fill it with `set_body` and describe it with the other setters.

    `told(text)` is news for the status line.
    """

    # Which of view.reset, view.zoom and view.colors mean something here; the others are greyed while it is in use.
    abilities: frozenset[str] = frozenset()

    told = Signal(str)

    def __init__(self, title: str, *, can_pin: bool = False, can_copy: bool = True) -> None:
        super().__init__()
        self._can_copy = can_copy
        self.setAccessibleName(title)
        self._title = plain_label(title, font_text(12.0, QFont.Weight.DemiBold), "text")
        self._segments = Segments()
        self._segments.hide()
        self._detail = ElidedLabel(role="muted")
        self._detail.set_background("title_strip")
        self._provenance = DotLabel()
        self._pin = self._make_button("Stay here: stop following the selection", self.pin)
        self._pin.setCheckable(True)
        self._pin.setVisible(can_pin)
        self._menu_button = self._make_menu_button()
        self._extras = QHBoxLayout()
        self._empty = plain_label(role="muted", wraps=True)
        self._remedies: dict[str, ActionButton] = {}
        self._body = QWidget()
        self._strip = TitleBar()
        self._frame_actions: list[QAction] = []
        self._build_frame()
        self._set_icons()

    # ---- what subclasses and the window say ----------------------------------------------------------------------

    def set_body(self, body: QWidget | QLayout) -> None:
        """Show a widget, or what is laid out so, inside the margins."""
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
        self._title.setText(text)
        self.setAccessibleName(text)

    def show_title(self, is_shown: bool) -> None:
        """A panel whose name stands on a tab above it need not say it twice."""
        self._title.setVisible(is_shown)

    def set_detail(self, text: str, brief: str = "") -> None:
        """Muted words after the title; they give way first when the strip is narrow, to `brief` and then to nothing."""
        self._detail.setText(text, brief)

    def set_provenance(self, text: str, kind: str = "live cache", whole: str = "", brief: str = "") -> None:
        """Where the numbers come from, in two words; the kind colours the dot, `whole` is the sentence behind it (the
        same words unless given), `brief` is what stands there where the words have no room. The empty text hides it."""
        self._provenance.set_state(text, kind, whole, brief)

    def set_remedy(self, name: str, text: str, action: QAction) -> None:
        """A button for what can be done where there is nothing to show, by the name that `set_empty` has for it."""
        button = self._remedies[name] = ActionButton(text, action)
        button.hide()
        self._blank_column.insertWidget(self._blank_column.count() - 1, button, 0, Qt.AlignmentFlag.AlignHCenter)

    def set_empty(self, text: str | None, remedy: str = "") -> None:
        """One line instead of the body: what would appear and how to get it, and the button of that name. None shows
        the body."""
        if (text or "") != self._empty.text():
            self._empty.setText(text or "")
        for name, button in self._remedies.items():
            button.setVisible(name == remedy)
        wanted = self._body if text is None else self._blank
        if self._pages.currentWidget() is not wanted:
            self._pages.setCurrentWidget(wanted)

    def set_choices(self, choices: Sequence[tuple[str, str, str]]) -> None:
        """The segments of the strip: `(id, text, tool tip)` each."""
        self._segments.set_choices(choices)
        self._segments.setVisible(bool(choices))

    def set_choice(self, choice: str) -> None:
        self._segments.set_choice(choice)

    def add_to_strip(self, widget: QWidget) -> None:
        """Put a small widget at the right end of the strip, before the pin."""
        self._extras.addWidget(widget)

    def add_to_menu(self, menu: QMenu) -> None:
        """Subclasses add their own entries above the copying ones."""

    @property
    def empty_text(self) -> str:
        """The sentence that stands there instead of the body; empty while the body is shown."""
        return self._empty.text() if self._pages.currentWidget() is self._blank else ""

    @property
    def detail_text(self) -> str:
        """The muted words after the title."""
        return self._detail.text()

    @property
    def provenance_text(self) -> str:
        """The words beside the dot."""
        return self._provenance.text

    @property
    def is_pinned(self) -> bool:
        return self._pin.isChecked()

    def reset_view(self) -> None:
        """Home: show everything again. Panels that zoom extend it."""

    def zoom_to_selection(self) -> None:
        """F: bring the selected thing close. Panels that zoom extend it."""

    def pin(self, is_pinned: bool) -> None:
        """Stay where the panel is, or follow the selection again. Panels with a pin extend it."""

    def fit_colors(self) -> None:
        """C: fit the colour range to what is visible. Panels with a range extend it."""

    def grab_picture(self) -> QImage:
        """The panel as it looks, title and provenance included: a picture that can stand alone."""
        return self.frame.grab().toImage()

    @property
    def frame(self) -> QWidget:
        """The panel with its title strip, wherever that stands."""
        return self._strip.parentWidget() or self

    def take_strip(self) -> QWidget:
        """Hand the title strip to a dock, which shows it as its title bar."""
        layout = self.layout()
        if layout is not None:
            layout.removeWidget(self._strip)
        return self._strip

    def add_frame_action(self, action: QAction) -> None:
        """An entry of the small menu that belongs to whatever holds the panel."""
        self._frame_actions.append(action)

    # ---- copying and saving --------------------------------------------------------------------------------------

    def copy_picture(self) -> None:
        """Put the picture on the clipboard."""
        QGuiApplication.clipboard().setImage(self.grab_picture())
        self.told.emit(f"Picture of “{self._title.text()}” copied")

    def save_picture(self) -> None:
        """Ask for a file and write the picture as PNG, or as SVG where its name ends so."""
        name = self._title.text().lower().replace(" · ", "-").replace(" ", "-") + ".png"
        path, _ = QFileDialog.getSaveFileName(self, "Save picture", name, PICTURE_KINDS)
        if not path:
            return
        self.told.emit(save_look(self.frame, Path(path)) or f"Picture saved to {path}")

    # ---- construction --------------------------------------------------------------------------------------------

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
        button = self._make_button("Copy or save this picture", self._on_menu)
        button.setVisible(self._can_copy)
        return button

    def _build_frame(self) -> None:
        self._empty.setAlignment(Qt.AlignmentFlag.AlignCenter)
        # An empty line must never decide how wide a panel can become.
        self._empty.setMinimumSize(1, 1)
        self._extras.setContentsMargins(0, 0, 0, 0)
        self._extras.setSpacing(8)
        strip = QHBoxLayout()
        strip.setContentsMargins(MARGIN, 2, 5, 2)  # what fills its own ground must not cover the frame
        strip.addStrut(STRIP_HEIGHT - 3)  # a dock asks the layout, and not the fixed height
        strip.setSpacing(8)
        strip.addWidget(self._title)
        strip.addWidget(self._segments)
        strip.addWidget(self._detail, 1)
        strip.addWidget(self._provenance)
        strip.addLayout(self._extras)
        strip.addWidget(self._pin)
        strip.addWidget(self._menu_button)
        self._strip.setLayout(strip)
        self._pages = QStackedLayout()
        self._pages.addWidget(self._body)
        self._blank_column = column(None, self._empty, None, spacing=8)
        self._blank = holder(self._blank_column)
        self._pages.addWidget(self._blank)
        layout = QVBoxLayout(self)
        layout.setContentsMargins(0, 0, 0, 0)
        layout.setSpacing(0)
        layout.addWidget(self._strip)
        framed = QVBoxLayout()  # a stacked layout takes no margins of its own
        framed.setContentsMargins(MARGIN, MARGIN, MARGIN, MARGIN)
        framed.addLayout(self._pages)
        layout.addLayout(framed, 1)

    def take_theme(self) -> None:
        """Subclasses that keep colours elsewhere than in their state extend it."""
        self._set_icons()

    def _set_icons(self) -> None:
        theme = current_theme()
        self._pin.setIcon(icon("pin", theme.muted, theme.selected))
        self._menu_button.setIcon(icon("more", theme.muted))

    def _on_menu(self) -> None:
        menu = QMenu(self)
        menu.setAttribute(Qt.WidgetAttribute.WA_DeleteOnClose)
        self.add_to_menu(menu)
        menu.addAction("Copy picture", self.copy_picture)
        menu.addAction("Save picture…", self.save_picture)
        menu.addSeparator()
        menu.addActions(self._frame_actions)
        menu.popup(self._menu_button.mapToGlobal(self._menu_button.rect().bottomLeft()))

    def paintEvent(self, event: QPaintEvent) -> None:
        painter = QPainter(self)
        if self.rect().adjusted(RADIUS, 2, -RADIUS, -RADIUS).contains(event.rect()):  # something inside has changed
            painter.fillRect(event.rect(), current_theme().color("panel"))
            return
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        # With the strip in a dock's title bar only the lower corners are ours.
        is_whole = self._strip.parentWidget() is self
        outline = rounded(QRectF(self.rect()).adjusted(0.5, 0.5 if is_whole else 0, -0.5, -0.5), top=is_whole)
        painter.fillPath(outline, current_theme().color("panel"))
        painter.setPen(QPen(current_theme().color("hairline"), 1))
        painter.drawPath(outline)
