"""The style sheet: shapes for which the Fusion style has no palette role. Its colours are the theme's."""

from __future__ import annotations

from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from msgspec import structs

if TYPE_CHECKING:
    from app.kit.theme import Theme

TEXT_ROLES = ("text", "muted", "accent", "selected", "good", "warning", "bad")
RESOURCES = Path(__file__).resolve().parents[2] / "resources"

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
        for role in TEXT_ROLES
    )
    return _SHEET.substitute(structs.asdict(theme), text_roles=roles, check=check.as_posix(), down=down.as_posix())
