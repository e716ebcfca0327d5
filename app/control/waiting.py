"""What a person waits for: that comes at once, and before everything else."""

from __future__ import annotations

import time

from PySide6.QtCore import QObject, Signal

EAGER_FOR_S = 1.0
# After a person stepped or ran, words and status wait for the first picture: so long for its record, and from that on.
RECORD_WAIT_S, PICTURE_WAIT_S = 0.15, 0.03


class PersonWaiting(QObject):
    """Noted when a person did something, and when what they wait for has come. News: `woken()`."""

    woken = Signal()

    def __init__(self, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._eager_until = 0.0
        self._pictures_until = 0.0
        self.is_for_step = False

    @property
    def is_eager(self) -> bool:
        """Whether a person did something just now."""
        return time.monotonic() < self._eager_until

    @property
    def is_for_pictures(self) -> bool:
        """Whether words wait for the pictures of a step."""
        return time.monotonic() < self._pictures_until

    def wake(self) -> None:
        """A person did something."""
        self._eager_until = time.monotonic() + EAGER_FOR_S
        self.is_for_step = True
        self.woken.emit()

    def expect_pictures(self) -> None:
        """A person stepped or ran."""
        self._pictures_until = time.monotonic() + RECORD_WAIT_S

    def take_record(self) -> None:
        """A step was done; its pictures follow soon, or not at all."""
        self.is_for_step = False
        self._pictures_until = min(self._pictures_until, time.monotonic() + PICTURE_WAIT_S)

    def take_pictures(self) -> None:
        """They are there, or do not come any more."""
        self._pictures_until = 0.0
