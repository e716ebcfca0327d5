"""What the user is waiting for: it is shown at once, and before anything else."""

from __future__ import annotations

import time

EAGER_FOR_S = 1.0
# After the user stepped or ran, texts and status wait for the first picture: at most so long for the step's record, and
# so long after that for the picture.
RECORD_WAIT_S, PICTURE_WAIT_S = 0.15, 0.03


class PersonWaiting:
    """Notes when the user did something, and when the step or picture they wait for has arrived."""

    def __init__(self) -> None:
        self._eager_until = 0.0
        self._pictures_until = 0.0
        self.is_for_step = False

    @property
    def is_eager(self) -> bool:
        """Whether the user did something within the last second."""
        return time.monotonic() < self._eager_until

    @property
    def is_for_pictures(self) -> bool:
        """Whether texts wait for the pictures of a step."""
        return time.monotonic() < self._pictures_until

    def wake(self) -> None:
        """Note that the user did something."""
        self._eager_until = time.monotonic() + EAGER_FOR_S
        self.is_for_step = True

    def expect_pictures(self) -> None:
        """Note that the user stepped or ran: pictures go first."""
        self._pictures_until = time.monotonic() + RECORD_WAIT_S

    def take_record(self) -> None:
        """Note that a step's record has arrived; its pictures follow soon or not at all."""
        self.is_for_step = False
        self._pictures_until = min(self._pictures_until, time.monotonic() + PICTURE_WAIT_S)

    def take_pictures(self) -> None:
        """Note that the pictures have arrived or will not come."""
        self._pictures_until = 0.0
