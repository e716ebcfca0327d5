"""Tests never reach the network, never run compiled code from the hub, and open no window on a person's screen."""

from __future__ import annotations

import gc
import os

from hypothesis import settings

gc.set_threshold(10_000, 20, 20)  # most of what is made here is gone without it
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["USE_HUB_KERNELS"] = "0"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ.setdefault("QT_QPA_PLATFORM", "offscreen")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")  # no processes that import torch to compile two functions

# How long an example takes is no matter of right and wrong: another process may have the processor.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")


def pytest_collection_finish() -> None:
    """What is imported and collected stays until the end: the collector need not look through it again and again."""
    gc.collect()
    gc.freeze()
