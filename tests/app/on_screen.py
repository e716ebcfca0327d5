"""Is what stands on the screen what would be painted now? A widget that changed and did not ask to be repainted shows a
person what was; code that paints it anew for a test does not see that."""

from __future__ import annotations

import numpy as np
from PySide6.QtCore import Qt
from PySide6.QtGui import QImage, QPixmap
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QWidget

from tests.app.shown import kind_of

AT_EDGES = 16  # pixels: lines drawn smoothly differ where a part that is painted anew ends


def assert_repainted(window: QWidget, after: str) -> None:
    """Fails where a pixel of a window differs from what its widgets paint when they are asked."""
    if not (window.isVisible() and window.isWindow()) or window.testAttribute(Qt.WidgetAttribute.WA_DontShowOnScreen):
        return
    for _ in range(100):
        QApplication.processEvents()  # widgets get the sizes of a changed layout later
        shown, painted = _pixels(window.screen().grabWindow(window.winId())), _pixels(window.grab())
        differs = shown != painted
        if differs.sum() <= AT_EDGES:
            return
        QTest.qWait(50)  # what fades, as the cross in a line of text that was emptied, differs until it is gone
    y, x = (int(found[0]) for found in differs.nonzero())
    widget = window.childAt(x, y) or window
    raise AssertionError(f"after {after}: {kind_of(widget)} at {x}, {y} was not repainted ({differs.sum()} pixels)")


def _pixels(picture: QPixmap) -> np.ndarray:
    image = picture.toImage().convertToFormat(QImage.Format.Format_RGB32)
    rows = np.frombuffer(image.constBits(), np.uint32).reshape(image.height(), image.bytesPerLine() // 4)
    return rows & 0xFFFFFF  # without the unused fourth byte
