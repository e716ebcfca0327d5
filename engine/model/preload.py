"""Loading torch's libraries without holding the interpreter."""

from __future__ import annotations

import atexit
import ctypes
import importlib.util
import os
import sys
import threading
from pathlib import Path


def preload_torch() -> None:
    """Map torch's largest library before torch is imported; nothing where that is not possible.

    An import holds the interpreter while the loader relocates 400 MB, a quarter of a second in which a window takes no
    key. A foreign call lets go of it, and the import then finds the library in place.
    """
    torch = importlib.util.find_spec("torch")
    if "torch" in sys.modules or torch is None or torch.origin is None or not hasattr(os, "RTLD_NOW"):
        return
    library = Path(torch.origin).parent / "lib" / "libtorch_cpu.so"
    dlopen = getattr(ctypes.CDLL(None), "dlopen", None)
    if dlopen is None or not library.is_file():
        return
    dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
    loading = threading.Lock()
    atexit.register(loading.acquire)  # a process that ends while the loader is at work would wait for it for ever
    with loading:
        dlopen(os.fsencode(library), sys.getdlopenflags())
