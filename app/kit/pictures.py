"""Pixel arrays as Qt images, and the colour tables of a theme."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt
from PySide6.QtGui import QBrush, QColor, QImage

from app.draw.colormap import ColorScale, ColorTable, contrast_text, magnitude_table, rgb, signed_table
from app.draw.ghost import Hatch, lines
from app.kit.theme import Theme

LOUD = {True: "#ff2fd0", False: "#d400a8"}  # NaN and Inf: magenta, which no colour map and no other role uses


@lru_cache(maxsize=8)
def signed_colors(theme: Theme) -> ColorTable:
    return signed_table(theme.signed_negative, theme.signed_middle, theme.signed_positive, loud_color(theme))


@lru_cache(maxsize=8)
def magnitude_colors(theme: Theme) -> ColorTable:
    top = "#eaf5ff" if theme.is_dark else "#062a52"
    return magnitude_table(theme.signed_middle, theme.accent, top, loud_color(theme))


@lru_cache(maxsize=8)
def color_scale(theme: Theme, *, is_signed: bool) -> ColorScale:
    """The colours of numbers of either sign, or of magnitudes."""
    table = signed_colors(theme) if is_signed else magnitude_colors(theme)
    return ColorScale(table, is_signed, tuple(contrast_text(table, "#000000", "#ffffff")))


def loud_color(theme: Theme) -> str:
    """The colour of NaN and Inf."""
    return LOUD[theme.is_dark]


@lru_cache(maxsize=16)
def ghost_hatch(theme: Theme, ratio: float) -> Hatch:
    """The hatch of a evicted row: thin lines on the panel's background."""
    line = "#414952" if theme.is_dark else "#c2c9d1"
    return Hatch(argb(line), argb(theme.panel), round(5 * ratio))


def ghost_brush(theme: Theme, ratio: float) -> QBrush:
    """The same hatch as a brush, with a transparent ground and stronger lines, to paint over colours and text."""
    pitch = ghost_hatch(theme, ratio).pitch
    is_line = lines(pitch, pitch, 0, 0, pitch)
    return QBrush(pixels_image(np.where(is_line, np.uint32(argb(theme.faint)), np.uint32(0)), ratio))


@lru_cache(maxsize=64)
def argb(color: str) -> int:
    """`#rrggbb` as the 0xAARRGGBB word that `pixels_image` takes."""
    return QColor(color).rgba()


def pixels_image(pixels: npt.NDArray[np.uint32], ratio: float = 1.0) -> QImage:
    """0xAARRGGBB words with premultiplied alpha as an image that owns its memory."""
    height, width = pixels.shape
    flat = np.ascontiguousarray(pixels)
    image = QImage(flat.data, width, height, 4 * width, QImage.Format.Format_ARGB32_Premultiplied).copy()
    image.setDevicePixelRatio(ratio)
    return image


def veil_image(opacity: npt.NDArray[np.float32], color: str, ratio: float) -> QImage:
    """One colour with the opacity `[height, width]` (0 … 1), as an image that owns its memory."""
    shares = np.rint(opacity * 255).astype(np.uint32)
    red, green, blue = ((shares * part + 127) // 255 for part in rgb(color))
    return pixels_image((shares << 24 | red << 16 | green << 8 | blue).astype(np.uint32), ratio)
