"""The look of the window: the colours of every role, fonts, the style sheet, and icons drawn in these colours."""

from __future__ import annotations

from functools import cache, lru_cache
from string import Template
from typing import TYPE_CHECKING, Literal, get_args

from msgspec import Struct, structs
from PySide6.QtCore import QByteArray, QEvent, QRectF, Qt
from PySide6.QtGui import QColor, QFont, QFontDatabase, QGuiApplication, QIcon, QImage, QPainter, QPalette, QPixmap
from PySide6.QtSvg import QSvgRenderer
from PySide6.QtWidgets import QApplication, QStyleFactory, QWidget

from engine.spec.model import RESOURCES

if TYPE_CHECKING:
    _Widget = QWidget
else:
    _Widget = object

TEXT_FAMILIES = ["Inter", "Segoe UI", "SF Pro Text", "Noto Sans", "DejaVu Sans"]
FIXED_FAMILIES = ["JetBrains Mono", "SF Mono", "Consolas", "DejaVu Sans Mono"]
TEXT_SIZE = 12.5
FIXED_SIZE = 12.0

ThemeChoice = Literal["system", "dark", "light"]
# Roles for text: a contrast of at least 4.5 : 1 on every background. `faint` is for lines and for what is disabled.
TextRole = Literal["text", "muted", "accent", "selected", "good", "warning", "bad"]


class Theme(Struct, frozen=True):
    """The colour of every role, as `#rrggbb`."""

    name: str
    is_dark: bool
    ground: str
    panel: str
    title_strip: str
    field: str
    hairline: str
    text: str
    muted: str
    faint: str
    accent: str
    on_accent: str
    selected: str
    edited: str
    good: str
    warning: str
    bad: str
    page_free: str
    page_used: str
    page_shared: str
    page_cached: str
    page_kept: str
    page_host: str
    signed_negative: str
    signed_middle: str
    signed_positive: str

    @property
    def bar(self) -> str:
        """The background of the bars with selectors and transport."""
        return self.title_strip if self.is_dark else self.panel

    def color(self, role: str, alpha: int = 255) -> QColor:
        """The colour of a role as a QColor."""
        return _color(getattr(self, role), alpha)


@lru_cache(maxsize=256)
def _color(code: str, alpha: int) -> QColor:
    """Cached, as it is needed thousands of times a second; the result must not be modified."""
    color = QColor(code)
    color.setAlpha(alpha)
    return color


# The colour of every role, in the dark theme and in the light one
_COLORS = {
    "ground": ("#121417", "#eef0f3"),
    "panel": ("#191c21", "#ffffff"),
    "title_strip": ("#1f2329", "#f6f7f9"),
    "field": ("#131619", "#f6f7f9"),
    "hairline": ("#2b3037", "#d9dde3"),
    "text": ("#e7eaee", "#1c2127"),
    "muted": ("#8f99a6", "#5f6b78"),
    "faint": ("#5b6470", "#9aa4af"),
    "accent": ("#62b5ff", "#1769c2"),
    "on_accent": ("#0b1622", "#ffffff"),
    "selected": ("#ffb454", "#a15500"),
    "edited": ("#3fd8c4", "#00776b"),
    "good": ("#6fcf97", "#187a43"),
    "warning": ("#f2c94c", "#8a6200"),
    "bad": ("#ff6b6b", "#c62828"),
    "page_free": ("#252a31", "#e6e9ee"),
    "page_used": ("#3f7fd1", "#5a96e0"),
    "page_shared": ("#9d7bea", "#a58bea"),
    "page_cached": ("#3a5f4c", "#a9d3ba"),
    "page_kept": ("#5d6f8c", "#a3b0c4"),
    "page_host": ("#7a5f35", "#e0c48f"),
    "signed_negative": ("#62b5ff", "#2166ac"),
    "signed_middle": ("#121417", "#fafafa"),
    "signed_positive": ("#ffaa54", "#bf5700"),
}
DARK = Theme(name="dark", is_dark=True, **{role: dark for role, (dark, _) in _COLORS.items()})
LIGHT = Theme(name="light", is_dark=False, **{role: light for role, (_, light) in _COLORS.items()})


@cache
def load_fonts() -> None:
    """Register the bundled fonts with Qt, once; if a file is missing, the next family of the list is used."""
    for path in sorted((RESOURCES / "fonts").glob("*.[ot]tf")):
        QFontDatabase.addApplicationFont(str(path))


def font_text(size: float = TEXT_SIZE, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    """The proportional font, `size` in pixels."""
    return _font(TEXT_FAMILIES, size, weight)


def font_fixed(size: float = FIXED_SIZE, weight: QFont.Weight = QFont.Weight.Normal) -> QFont:
    """The monospaced font for tokens, ids and numbers, `size` in pixels."""
    font = _font(FIXED_FAMILIES, size, weight)
    font.setStyleHint(QFont.StyleHint.Monospace)
    font.setFixedPitch(True)
    font.setFeature(QFont.Tag("calt"), 0)  # no ligatures: every character is shown by itself
    return font


def _font(families: list[str], size: float, weight: QFont.Weight) -> QFont:
    font = QFont(families)
    screen = QGuiApplication.primaryScreen()
    dots_per_inch = screen.logicalDotsPerInch() if screen else 96.0
    # setPixelSize takes whole pixels only; points take fractions.
    font.setPointSizeF(size * 72.0 / dots_per_inch)
    font.setWeight(weight)
    font.setHintingPreference(QFont.HintingPreference.PreferNoHinting)
    return font


def resolve_theme(choice: ThemeChoice) -> Theme:
    """The theme of a choice; `system` follows the desktop, and is dark if the desktop has no preference."""
    if choice == "system":
        scheme = QGuiApplication.styleHints().colorScheme()
        return LIGHT if scheme == Qt.ColorScheme.Light else DARK
    return DARK if choice == "dark" else LIGHT


def current_theme() -> Theme:
    """The theme of the application's palette, dark before one was applied. Widgets call this when they paint; Qt sends
    `changeEvent` and repaints every widget when the theme changes."""
    return _theme_of(QGuiApplication.palette().cacheKey())


@lru_cache(maxsize=8)
def _theme_of(_palette_key: int) -> Theme:
    """Cached by palette, as it is needed hundreds of times a second."""
    ground = QGuiApplication.palette().color(QPalette.ColorRole.Window).name()
    return LIGHT if ground == LIGHT.ground else DARK


class Themed(_Widget):
    """Mixin of a widget that keeps icons or pictures in the theme's colours: `take_theme` makes them again.

    A widget that looks up its colours when it paints does not need it.
    """

    _theme_taken: Theme | None = None

    def take_theme(self) -> None:
        """Make icons and pictures in the current theme; called when it has changed, and for the first."""
        raise NotImplementedError

    def changeEvent(self, event: QEvent) -> None:
        super().changeEvent(event)
        # `apply_theme` sets the style sheet last; Qt sends the same event to a widget that gets another parent
        if event.type() == QEvent.Type.StyleChange and self._theme_taken is not current_theme():
            self._theme_taken = current_theme()
            self.take_theme()


def apply_theme(app: QApplication, theme: Theme) -> None:
    """Apply fonts, colours and style sheet to the application."""
    apply_colors(app, theme)
    apply_shapes(app, theme)


def apply_colors(app: QApplication, theme: Theme) -> None:
    """Apply the Fusion style with an explicit palette: desktops without a theme plug-in ignore the colour scheme."""
    if app.style().name().lower() != "fusion":
        app.setStyle(QStyleFactory.create("Fusion"))
    app.setFont(font_text())
    app.setPalette(_palette(theme))


def apply_shapes(app: QApplication, theme: Theme) -> None:
    """Apply the style sheet, after the window was built: under a style sheet Qt restyles every widget whenever it gets
    a parent, which would double the time of building."""
    app.setStyleSheet(style_sheet(theme))


def _palette(theme: Theme) -> QPalette:
    role = QPalette.ColorRole
    palette = QPalette()
    roles = {
        role.Window: theme.ground,
        role.WindowText: theme.text,
        role.Base: theme.field,
        role.AlternateBase: theme.title_strip,
        role.Text: theme.text,
        role.PlaceholderText: theme.muted,
        role.Button: theme.title_strip,
        role.ButtonText: theme.text,
        role.BrightText: theme.bad,
        role.Highlight: theme.accent,
        role.HighlightedText: theme.on_accent,
        role.Link: theme.accent,
        role.LinkVisited: theme.accent,
        role.ToolTipBase: theme.title_strip,
        role.ToolTipText: theme.text,
        role.Light: theme.hairline,
        role.Midlight: theme.hairline,
        role.Mid: theme.hairline,
        role.Dark: theme.ground,
        role.Shadow: theme.ground,
        role.Accent: theme.accent,
    }
    for key, value in roles.items():
        palette.setColor(key, QColor(value))
    for key in (role.WindowText, role.Text, role.ButtonText):
        palette.setColor(QPalette.ColorGroup.Disabled, key, QColor(theme.faint))
    palette.setColor(QPalette.ColorGroup.Disabled, role.Highlight, QColor(theme.hairline))
    return palette


# Eight hues as far apart as possible, of one lightness per theme, none of them the warm colour of the selection.
NUM_OWNER_COLORS = 8

_OWNERS = {
    True: ("#4d9be6", "#57b894", "#b58be8", "#d9777f", "#8fb04e", "#55b5c4", "#c98fb9", "#a39a7c"),
    False: ("#3f86d6", "#2f9b74", "#8d6fd8", "#cc5a68", "#6f9430", "#2b94a6", "#b0649b", "#857a55"),
}


def owner_colors(theme: Theme) -> tuple[str, ...]:
    return _OWNERS[theme.is_dark]


def owner_color(theme: Theme, seq_id: int) -> str:
    """The colour of a sequence, the same wherever it is named."""
    return owner_colors(theme)[seq_id % NUM_OWNER_COLORS]


# Shapes for which the Fusion style has no palette role
_SHEET = Template("""
QToolTip { background: $title_strip; color: $text; border: 1px solid $hairline; padding: 4px 7px; }
QMenuBar { background: $panel; border-bottom: 1px solid $hairline; padding: 0 4px; }
QMenuBar::item { padding: 4px 8px; background: transparent; color: $muted; border-radius: 4px; }
QMenuBar::item:selected, QMenuBar::item:pressed { background: $title_strip; color: $text; }
QMenu { background: $panel; border: 1px solid $hairline; padding: 4px; }
QMenu::item { padding: 4px 22px 5px 12px; border-radius: 4px; }
QMenu::item:selected { background: $hairline; }
QMenu::item:disabled { color: $muted; }
QMenu::separator { height: 1px; background: $hairline; margin: 4px 6px; }
QMenu::indicator { width: 13px; height: 13px; left: 4px; }
QMenu::icon { left: 6px; }

QPushButton, QToolButton#selector, QToolButton#field {
    background: $field; border: 1px solid $hairline; border-radius: 5px; padding: 4px 9px; color: $text;
}
QPushButton:hover, QToolButton#selector:hover, QToolButton#field:hover { border-color: $faint; }
QPushButton:focus, QToolButton#selector:focus, QToolButton#field:focus { border-color: $accent; }
QPushButton:pressed { background: $hairline; }
QPushButton:disabled { color: $faint; }
QPushButton[primary="true"] { background: $accent; border-color: $accent; color: $on_accent; font-weight: 600; }
QPushButton[primary="true"]:focus { border-color: $text; }
QPushButton[primary="true"]:disabled { background: $hairline; border-color: $hairline; color: $faint; }
QToolButton::menu-indicator { image: none; width: 0; }
QToolButton { background: transparent; border: 1px solid transparent; border-radius: 4px; padding: 1px; color: $muted; }
QToolButton:hover { background: $hairline; color: $text; }
QToolButton:focus { border-color: $accent; }

QPlainTextEdit, QLineEdit, QSpinBox, QDoubleSpinBox {
    background: $field; border: 1px solid $hairline; border-radius: 5px; padding: 3px 6px;
    selection-background-color: $accent; selection-color: $on_accent;
}
QComboBox { background: $field; border: 1px solid $hairline; border-radius: 5px; padding: 3px 6px; color: $text; }
QComboBox:hover { border-color: $faint; }
QComboBox:focus { border-color: $accent; }
QComboBox:disabled { color: $faint; }
QComboBox::drop-down { border: none; width: 20px; }
QComboBox::down-arrow { image: url("$down"); width: 14px; height: 14px; }
QComboBox QAbstractItemView { background: $panel; border: 1px solid $faint; padding: 3px; outline: none; }
QLabel:disabled { color: $muted; }
QCheckBox:disabled { color: $faint; }
QPlainTextEdit:focus, QLineEdit:focus, QSpinBox:focus, QDoubleSpinBox:focus { border-color: $accent; }
QLineEdit:disabled, QSpinBox:disabled, QDoubleSpinBox:disabled { color: $faint; }
QSpinBox::up-button, QSpinBox::down-button, QDoubleSpinBox::up-button, QDoubleSpinBox::down-button { width: 0; }
QLabel#unit { color: $muted; background: transparent; }
QAbstractSpinBox QLineEdit { border: none; padding: 0 4px; background: transparent; }
QListView, QTreeView, QTableView {
    background: $field; border: 1px solid $hairline; border-radius: 5px; outline: none;
}
QListView::item, QTreeView::item { padding: 5px 8px; border-radius: 4px; }
QTreeView { show-decoration-selected: 0; }
QListView::item:selected, QTreeView::item:selected { background: $hairline; color: $text; }
QHeaderView::section { background: $title_strip; border: none; padding: 4px 8px; color: $muted; }

$text_roles

QScrollBar:vertical { background: transparent; width: 10px; margin: 0; }
QScrollBar:horizontal { background: transparent; height: 10px; margin: 0; }
QScrollBar::handle { background: $hairline; border-radius: 3px; margin: 2px; }
QScrollBar::handle:vertical { min-height: 28px; }
QScrollBar::handle:horizontal { min-width: 28px; }
QScrollBar::handle:hover { background: $faint; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
QAbstractScrollArea::corner { background: transparent; border: none; }
QToolButton#transport { background: $field; border: 1px solid $hairline; border-radius: 5px; color: $text; }
QToolButton#transport:hover { border-color: $faint; }
QToolButton#transport:focus { border-color: $accent; }
QToolButton#transport:disabled { background: transparent; color: $faint; }
QToolButton#transport[primary="true"] { background: $accent; border-color: $accent; color: $on_accent; }
QToolButton#transport[primary="true"]:focus { border-color: $text; }
QToolButton#transport[primary="true"]:disabled { background: $hairline; border-color: $hairline; color: $faint; }
QPushButton#find { background: transparent; border: none; color: $muted; padding: 3px 12px; }
QPushButton#find:hover { color: $text; }
QPushButton#small { padding: 1px 7px; }
QPushButton#link { text-align: left; padding: 0 0 2px 0; border: none; background: transparent; color: $accent; }
QPushButton#link:disabled { color: $muted; }
QPushButton#link:hover:enabled, QPushButton#link:focus { text-decoration: underline; }
QComboBox#small, QSpinBox#small { padding: 0 5px; border-radius: 4px; }
QComboBox#small::drop-down { width: 16px; }
QMainWindow::separator { background: transparent; width: 6px; height: 6px; }
QMainWindow::separator:hover { background: $hairline; }
QTabBar::tab {
    background: transparent; color: $muted; border: none; border-bottom: 2px solid transparent;
    padding: 1px 2px 2px 2px; margin: 0 6px 3px 6px; font-weight: 600;
}
QTabBar::tab:hover { color: $text; }
QTabBar::tab:selected { color: $text; border-bottom-color: $accent; }
QPlainTextEdit#quiet, QTableView#quiet { background: transparent; border: none; border-radius: 0; padding: 0; }
QTableView#quiet { selection-background-color: transparent; selection-color: $text; }
QTableView#quiet::item:selected { background: transparent; }
QTableView#quiet QHeaderView { background: transparent; }
QTableView#quiet QHeaderView::section { background: transparent; padding: 0 7px; border-bottom: 1px solid $hairline; }
QSplitter::handle { background: transparent; }
QProgressBar { background: $hairline; border: none; border-radius: 2px; max-height: 4px; min-height: 4px; }
QProgressBar::chunk { background: $accent; border-radius: 2px; }
QCheckBox, QRadioButton { spacing: 8px; }
QCheckBox::indicator, QRadioButton::indicator {
    width: 13px; height: 13px; border: 1px solid $faint; background: $field; border-radius: 3px;
}
QRadioButton::indicator { border-radius: 7px; }
QCheckBox::indicator:hover, QRadioButton::indicator:hover { border-color: $muted; }
QCheckBox::indicator:checked { background: $accent; border-color: $accent; image: url("$check"); }
QRadioButton::indicator:checked {
    border-color: $accent;
    background: qradialgradient(cx:0.5, cy:0.5, radius:0.5, fx:0.5, fy:0.5,
        stop:0 $accent, stop:0.52 $accent, stop:0.6 $field, stop:1 $field);
}
QCheckBox:focus, QRadioButton:focus { color: $accent; }
QDialog { background: $panel; }
QDialog#popup, QFrame#popup { background: $panel; border: 1px solid $faint; border-radius: 0; }
""")


def style_sheet(theme: Theme) -> str:
    """The style sheet in the colours of a theme."""
    check = RESOURCES / "icons" / f"check-{theme.name}.svg"
    down = RESOURCES / "icons" / f"down-{theme.name}.svg"
    roles = "\n".join(
        f'QLabel[textRole="{role}"], QPlainTextEdit[textRole="{role}"] {{ color: {getattr(theme, role)}; }}'
        for role in get_args(TextRole)
    )
    return _SHEET.substitute(structs.asdict(theme), text_roles=roles, check=check.as_posix(), down=down.as_posix())


@cache
def _source(name: str) -> str:
    return (RESOURCES / "icons" / f"{name}.svg").read_text(encoding="utf-8")


def pixmap(name: str, color: str, size: int, ratio: float = 1.0) -> QPixmap:
    """One icon, in one size and colour."""
    result = QPixmap.fromImage(_drawn(name, color, round(size * ratio)))
    result.setDevicePixelRatio(ratio)
    return result


@cache
def _drawn(name: str, color: str, pixels: int) -> QImage:
    """The icon as an image, cached, as a few dozen icons are shown on hundreds of buttons. (A pixmap could not be
    cached: none may outlive the application.)"""
    image = QImage(pixels, pixels, QImage.Format.Format_ARGB32_Premultiplied)
    image.fill(Qt.GlobalColor.transparent)
    painter = QPainter(image)
    painter.setRenderHint(QPainter.RenderHint.Antialiasing)
    renderer = QSvgRenderer(QByteArray(_source(name).replace("currentColor", color).encode()))
    renderer.render(painter, QRectF(image.rect()))
    painter.end()
    return image


def icon(name: str, color: str, checked: str | None = None, disabled: str | None = None, *, size: int = 14) -> QIcon:
    """An icon with a colour for each state, in one size, also for screens of double density."""
    result = QIcon()
    for pixels in (size, 2 * size):
        result.addPixmap(pixmap(name, color, pixels))
        if checked is not None:
            result.addPixmap(pixmap(name, checked, pixels), QIcon.Mode.Normal, QIcon.State.On)
        if disabled is not None:
            result.addPixmap(pixmap(name, disabled, pixels), QIcon.Mode.Disabled)
    return result
