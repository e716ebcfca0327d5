"""What Ctrl+C does while a program starts. It imports next to nothing, as it is imported before anything else."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType

STATUS = 130  # of a program that was interrupted, as shells count it


def end_at_interrupt() -> None:
    """End the process at once and without a word at Ctrl+C: raised within an import, `KeyboardInterrupt` would print a
    traceback or be taken for a library that is missing."""
    _set(signal.default_int_handler, _end)


def raise_at_interrupt() -> None:
    """Raise `KeyboardInterrupt` at Ctrl+C again."""
    _set(_end, signal.default_int_handler)


def _set(expected: object, handler: object) -> None:
    """Replace the handler that is expected; leave any other one, such as that of a program that called this one."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is expected:
        signal.signal(signal.SIGINT, handler)  # type: ignore[arg-type]


def _end(_number: int, _frame: FrameType | None) -> None:
    os._exit(STATUS)
