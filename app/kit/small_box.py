"""A list to choose from that is low enough for the strip or the first row of a panel."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import Qt
from PySide6.QtWidgets import QComboBox, QSizePolicy, QWidget

from app.kit.labels import plain_tip
from app.kit.theme import font_text

Option = tuple[str, object, str]  # what it says, what it stands for, its tool tip


class SmallBox(QComboBox):
    """`characters`: it asks for room for so many, and not for the longest entry."""

    def __init__(
        self,
        name: str,
        tip: str = "",
        options: Iterable[Option] = (),
        *,
        height: int = 20,
        characters: int = 0,
        parent: QWidget | None = None,
    ) -> None:
        super().__init__(parent)
        self.setObjectName("small")
        self.setAccessibleName(name)
        self.setToolTip(plain_tip(tip or name))
        self.setFixedHeight(height)
        self.setMaxVisibleItems(20)
        if characters:
            self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
            self.setMinimumContentsLength(characters)
        else:
            self.setFont(font_text(11.5))
        for text, value, explained in options:
            self.addItem(text, value)
            self.setItemData(self.count() - 1, plain_tip(explained), Qt.ItemDataRole.ToolTipRole)

    def let_shrink(self, characters: int) -> None:
        """From now on as wide as its longest entry where there is room, and no narrower than so many characters: in a
        narrow window it cuts what it says, and pushes no neighbour out."""
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        widest = self.sizeHint().width()
        self.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToMinimumContentsLengthWithIcon)
        self.setMinimumContentsLength(characters)
        self.setSizePolicy(QSizePolicy.Policy.Expanding, QSizePolicy.Policy.Fixed)
        self.setMaximumWidth(widest)

    def choose(self, value: object) -> None:
        """Take the entry that stands for a value."""
        self.setCurrentIndex(self.findData(value))
