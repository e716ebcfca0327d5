"""Tests never reach the network, never run compiled code from the hub, and open no window on a person's screen."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

gc.set_threshold(10_000, 20, 20)  # most objects made in tests are freed without the collector
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault(
    "TORCHINDUCTOR_COMPILE_THREADS", "1"
)  # worker processes would import torch to compile two functions

# No deadline for an example: another process may have the processor.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """Exempt everything imported and collected so far from garbage collection: it stays until the end."""
    gc.collect()
    gc.freeze()
