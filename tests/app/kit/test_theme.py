from __future__ import annotations

from typing import get_args

import pytest
from msgspec.structs import fields
from PySide6.QtGui import QColor, QFontInfo, QImage, QPainter, QPalette
from PySide6.QtWidgets import QApplication

from app.kit.theme import (
    DARK,
    LIGHT,
    TextRole,
    Theme,
    apply_theme,
    font_fixed,
    font_text,
    icon,
    load_fonts,
    resolve_theme,
    style_sheet,
)
from app.panels.tokens import surprisal_color
from engine.spec.model import RESOURCES


def luminance(color: str) -> float:
    channels = [QColor(color).redF(), QColor(color).greenF(), QColor(color).blueF()]
    r, g, b = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return 0.2126 * r + 0.7152 * g + 0.0722 * b


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_every_role_is_a_colour(theme: Theme) -> None:
    roles = [f.name for f in fields(theme) if f.name not in ("name", "is_dark")]
    assert len(roles) > 18
    assert all(QColor(getattr(theme, role)).isValid() and len(getattr(theme, role)) == 7 for role in roles)


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
@pytest.mark.parametrize("ground", ["ground", "panel", "title_strip", "field"])
@pytest.mark.parametrize("text", get_args(TextRole))
def test_what_is_read_stands_out(theme: Theme, ground: str, text: str) -> None:
    assert contrast(getattr(theme, text), getattr(theme, ground)) >= 4.5


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
@pytest.mark.parametrize("surprisal", [0.4, 2.0, 5.0, 7.0, 40.0])
def test_a_surprising_token_can_be_read(theme: Theme, surprisal: float) -> None:
    top = surprisal_color(theme, surprisal)
    assert top is not None
    for ground in (QColor(theme.panel), QColor(theme.title_strip)):
        image = QImage(1, 1, QImage.Format.Format_RGB32)
        image.fill(ground)
        painter = QPainter(image)
        painter.fillRect(0, 0, 1, 1, top)
        painter.end()
        assert contrast(theme.text, image.pixelColor(0, 0).name()) >= 4.5


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_the_filled_button_can_be_read(theme: Theme) -> None:
    assert contrast(theme.on_accent, theme.accent) >= 4.5


@pytest.mark.parametrize("theme", [DARK, LIGHT], ids=lambda theme: theme.name)
def test_applying_gives_palette_and_sheet(qapp: QApplication, theme: Theme) -> None:
    apply_theme(qapp, theme)
    assert qapp.palette().color(QPalette.ColorRole.Window).name() == theme.ground
    assert qapp.palette().color(QPalette.ColorRole.Text).name() == theme.text
    assert "$" not in style_sheet(theme)


def test_the_bundled_faces_are_used(qapp: QApplication) -> None:
    load_fonts()
    assert QFontInfo(font_text()).family() == "Inter"
    assert QFontInfo(font_fixed()).family() == "JetBrains Mono"
    assert QFontInfo(font_fixed()).fixedPitch()


def test_system_is_one_of_the_two(qapp: QApplication) -> None:
    assert resolve_theme("system") in (DARK, LIGHT)
    assert resolve_theme("light") is LIGHT


def test_every_icon_can_be_drawn(qapp: QApplication) -> None:
    for path in (RESOURCES / "icons").glob("*.svg"):
        image = icon(path.stem, "#ff0000").pixmap(24, 24).toImage()
        painted = [image.pixelColor(x, y).alpha() for x in range(24) for y in range(24)]
        assert max(painted) > 200, path.stem
