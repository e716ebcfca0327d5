"""What the engine's libraries are told before they are imported."""

from __future__ import annotations

import logging
import os

# torchao tells which of its kernels this machine cannot run, and torch what torchao does not need to do any more
TALKATIVE = ("torchao", "torch.utils._pytree")


def prepare() -> None:
    """Set it, where whoever started the program did not."""
    os.environ.setdefault("USE_HUB_KERNELS", "0")  # compiled code from the hub is remote code
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    for name in TALKATIVE:
        logging.getLogger(name).setLevel(logging.ERROR)
