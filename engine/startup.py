"""What a program does before it imports anything else: Ctrl+C ends it quietly, and libraries find the environment
variables and log levels that they read when they are imported. It imports next to nothing."""

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


# loggers whose warnings do not help users: torchao's about kernels that this machine cannot run, and torch's about
# calls in torchao that are deprecated
TALKATIVE = ("torchao", "torch.utils._pytree")


def prepare() -> None:
    """Set what libraries need before they are imported, except variables that the user has set."""
    import logging  # late: Ctrl+C waits for every import before it

    os.environ.setdefault("USE_HUB_KERNELS", "0")  # compiled code from the hub is remote code
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
