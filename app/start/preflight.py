"""Checks before Qt is imported: where a library is missing, Qt aborts the process without a useful message.

Standard library only; nothing here imports Qt.
"""

from __future__ import annotations

import ctypes
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

# Shared library -> Debian or Ubuntu package: what Qt needs to be imported, and what a window on X11 needs as well.
BASE_LIBRARIES: Mapping[str, str] = {
    "libglib-2.0.so.0": "libglib2.0-0",
    "libGL.so.1": "libgl1",
    "libEGL.so.1": "libegl1",
    "libxkbcommon.so.0": "libxkbcommon0",
    "libdbus-1.so.3": "libdbus-1-3",
    "libfontconfig.so.1": "libfontconfig1",
}
X11_LIBRARIES: Mapping[str, str] = {
    "libX11-xcb.so.1": "libx11-xcb1",
    "libxkbcommon-x11.so.0": "libxkbcommon-x11-0",
    "libxcb-cursor.so.0": "libxcb-cursor0",
    "libxcb-icccm.so.4": "libxcb-icccm4",
    "libxcb-image.so.0": "libxcb-image0",
    "libxcb-keysyms.so.1": "libxcb-keysyms1",
    "libxcb-randr.so.0": "libxcb-randr0",
    "libxcb-render.so.0": "libxcb-render0",
    "libxcb-render-util.so.0": "libxcb-render-util0",
    "libxcb-shape.so.0": "libxcb-shape0",
    "libxcb-shm.so.0": "libxcb-shm0",
    "libxcb-sync.so.1": "libxcb-sync1",
    "libxcb-xfixes.so.0": "libxcb-xfixes0",
    "libxcb-xkb.so.1": "libxcb-xkb1",
    "libxcb-glx.so.0": "libxcb-glx0",
}
DISTRIBUTIONS = ("kvloupe", "PySide6-Essentials", "pyqtgraph", "numpy", "torch", "transformers", "safetensors")

Opens = Callable[[str], bool]


def can_open(library: str) -> bool:
    """Whether the loader finds a shared library."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def missing_libraries(libraries: Iterable[str], opens: Opens = can_open) -> list[str]:
    """Return the libraries that the loader does not find."""
    return [library for library in libraries if not opens(library)]


def has_display(environment: Mapping[str, str]) -> bool:
    """Whether there is somewhere to open a window: a display, or a platform that needs none."""
    if platform.system() != "Linux" or environment.get("QT_QPA_PLATFORM"):
        return True
    return bool(environment.get("DISPLAY") or environment.get("WAYLAND_DISPLAY"))


def needs_x11(environment: Mapping[str, str]) -> bool:
    """Whether Qt will open its window on X11."""
    chosen = environment.get("QT_QPA_PLATFORM", "")
    if chosen:
        return chosen.split(":")[0] == "xcb"
    return bool(environment.get("DISPLAY")) and not environment.get("WAYLAND_DISPLAY")


def library_problem(environment: Mapping[str, str], opens: Opens = can_open) -> str | None:
    """Name the missing system libraries and the command that installs them; None when all are found."""
    if platform.system() != "Linux":
        return None
    table = {**BASE_LIBRARIES, **(X11_LIBRARIES if needs_x11(environment) else {})}
    missing = missing_libraries(table, opens)
    if not missing:
        return None
    what = "1 system library is" if len(missing) == 1 else f"{len(missing)} system libraries are"
    packages = " ".join(dict.fromkeys(table[library] for library in missing))
    return (
        f"KV Loupe cannot open a window: {what} missing ({', '.join(missing)}).\n"
        f"On Debian or Ubuntu:  sudo apt install {packages}"
    )


def doctor(settings: Path, environment: Mapping[str, str] = os.environ) -> tuple[str, bool]:
    """Return a report of what may keep the program from starting, and whether all is well."""
    lines = [f"Python {platform.python_version()} on {platform.platform()}"]
    versions, is_whole = _versions()
    lines += versions
    problem = library_problem(environment)
    lines.append(problem or "system libraries: all found")
    display = environment.get("WAYLAND_DISPLAY") or environment.get("DISPLAY") or "none: use --tour DIR"
    lines.append(f"display: {display}")
    lines.append(f"settings: {settings}{'' if settings.exists() else ' (not written yet)'}")
    models = Path(environment.get("HF_HOME", Path.home() / ".cache" / "huggingface"))
    lines.append(f"models of this computer: {models}{'' if models.exists() else ' (none)'}")
    lines.append(f"free disk: {shutil.disk_usage(Path.home()).free / 2**30:.1f} GiB")
    return "\n".join(lines), problem is None and is_whole


def _versions() -> tuple[list[str], bool]:
    """Read the versions from the packages' metadata: importing torch would take seconds."""
    from importlib import metadata  # slow, so only when it is needed

    lines, is_whole = [], True
    for name in DISTRIBUTIONS:
        try:
            lines.append(f"{name} {metadata.version(name)}")
        except metadata.PackageNotFoundError:
            lines.append(f"{name}: not installed")
            is_whole = is_whole and name == "kvloupe"
    return lines, is_whole


def stand_in_streams() -> None:
    """Replace missing standard streams: windowed programs on Windows have none, but progress bars write to them."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
