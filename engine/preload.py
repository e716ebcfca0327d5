"""Loading torch's libraries without holding the interpreter."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import sys
from pathlib import Path


def preload_torch() -> None:
    """Map torch's largest library before torch is imported; nothing where that is not possible.

    An import holds the interpreter while the loader relocates some 400 MB, a quarter of a second in which a window takes
    no key. A foreign call lets go of it, and the import then finds the library in place.
    """
    torch = importlib.util.find_spec("torch")
    if "torch" in sys.modules or torch is None or torch.origin is None or not hasattr(os, "RTLD_NOW"):
        return
    library = Path(torch.origin).parent / "lib" / "libtorch_cpu.so"
    if library.is_file():
        dlopen = getattr(ctypes.CDLL(None), "dlopen", None)
        if dlopen is not None:
            dlopen.restype, dlopen.argtypes = ctypes.c_void_p, (ctypes.c_char_p, ctypes.c_int)
            dlopen(os.fsencode(library), sys.getdlopenflags())
