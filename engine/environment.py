"""Environment variables and log levels that libraries need before they are imported."""

from __future__ import annotations

import logging
import os

# loggers whose warnings do not help users: torchao's about kernels that this machine cannot run, and torch's about
# calls in torchao that are deprecated
TALKATIVE = ("torchao", "torch.utils._pytree")


def prepare() -> None:
    """Set them, except variables that the user has set."""
    os.environ.setdefault("USE_HUB_KERNELS", "0")  # compiled code from the hub is remote code
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
