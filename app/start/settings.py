"""What is remembered between runs: typed fields stored in an INI file. A damaged file is renamed and not used."""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast, get_args

from PySide6.QtCore import QSettings

from app.control.requests import PACES, USUAL_PACE
from app.kit.theme import ThemeChoice
from engine.client import ClientChoice, check_choice
from engine.errors import InputError
from engine.spec.condition import MAX_BREAKPOINTS, Breakpoint, read_breakpoints, written_breakpoints
from engine.spec.model import AUTO_DEVICE, Dtype, ModelSpec, WeightFormat

MAX_RECENT = 8
MAX_PROMPT = 20_000
MAX_STATE = 1 << 20
MAX_DIGITS = 6  # of the number of threads
MAX_MIB_DIGITS = 7
DEFAULT_PROMPT = "Once upon a time"


@dataclass
class Settings:
    """All settings. `load` never raises, whatever the file contains."""

    theme: ThemeChoice = "dark"
    layout: str = "inspect"
    recent_models: list[str] = field(default_factory=list)
    prompt: str = DEFAULT_PROMPT
    geometry: bytes = b""
    docks: bytes = b""
    pace: str = USUAL_PACE
    engine: ClientChoice = "auto"
    set_aside: Path | None = None
    recent_snapshots: list[str] = field(default_factory=list)
    loading: ModelSpec = field(default_factory=ModelSpec)  # where and how models are loaded; its source is unused
    kept_bytes: int | None = None  # that earlier steps may take in memory; None: the engine's default
    breakpoints: list[str] = field(default_factory=list)  # conditions; a sign marks one that is switched off
    _overruled: dict[str, tuple[Any, Any]] = field(default_factory=dict)  # name: value for this run, value in the file

    @classmethod
    def load(cls, path: Path) -> Settings:
        """Read a file. Missing or invalid values become their defaults; a file that is no INI file is renamed. A device
        or a pipe is not opened."""
        if _is_strange(path):
            return cls()
        aside = _set_aside_if_damaged(path)
        store = QSettings(str(path), QSettings.Format.IniFormat)
        theme = _text(store, "window/theme", "dark")
        return cls(
            theme=theme_choice(theme),
            layout=_text(store, "window/layout", "inspect"),
            pace=pace if (pace := _text(store, "run/pace", USUAL_PACE)) in PACES else USUAL_PACE,
            engine=_engine(store),
            loading=_loading(store),
            recent_models=_texts(store, "models/recent")[:MAX_RECENT],
            recent_snapshots=_texts(store, "snapshots/recent")[:MAX_RECENT],
            breakpoints=_texts(store, "run/stops")[:MAX_BREAKPOINTS],
            kept_bytes=_kept_bytes(store),
            prompt=_text(store, "prompt/text", DEFAULT_PROMPT)[:MAX_PROMPT],
            geometry=_bytes(store, "window/geometry"),
            docks=_bytes(store, "window/docks"),
            set_aside=aside,
        )

    def overrule(self, **given: Any) -> None:
        """Use values of the command line for this run only: the file keeps its own until the user chooses another. None
        changes nothing."""
        for name, value in given.items():
            if value is not None:
                self._overruled[name] = value, getattr(self, name)
                setattr(self, name, value)

    def save(self, path: Path) -> bool:
        """Write the file, which Qt does atomically; False where it cannot be written. A device is never replaced."""
        kept = {name: ours for name, (given, ours) in self._overruled.items() if getattr(self, name) == given}
        return replace(self, _overruled={}, **kept)._write(path)

    def _write(self, path: Path) -> bool:
        if _is_strange(path):
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError:
            return False
        store = QSettings(str(path), QSettings.Format.IniFormat)
        store.setValue("window/theme", self.theme)
        store.setValue("window/layout", self.layout)
        store.setValue("run/pace", self.pace)
        store.setValue("run/engine", self.engine)
        store.setValue("run/kept_mib", "" if self.kept_bytes is None else str(self.kept_bytes >> 20))
        store.setValue("load/device", _storable(self.loading.device))
        store.setValue("load/dtype", self.loading.dtype)
        store.setValue("load/weights", self.loading.weights)
        store.setValue("load/threads", str(self.loading.num_threads or ""))
        store.setValue("models/recent", self.recent_models[:MAX_RECENT])
        store.setValue("snapshots/recent", self.recent_snapshots[:MAX_RECENT])
        store.setValue("run/stops", self.breakpoints)
        # An INI file is no place for a megabyte of text, nor for lone surrogates.
        store.setValue("prompt/text", _storable(self.prompt) if len(self.prompt) <= MAX_PROMPT else DEFAULT_PROMPT)
        store.setValue("window/geometry", base64.b64encode(self.geometry).decode("ascii"))
        store.setValue("window/docks", base64.b64encode(self.docks).decode("ascii"))
        store.sync()
        return store.status() == QSettings.Status.NoError

    def keep_breakpoints(self, breakpoints: Sequence[Breakpoint]) -> None:
        """Remember the conditions that stop a run, for the next start."""
        self.breakpoints = [_storable(text) for text in written_breakpoints(breakpoints)]

    def kept_breakpoints(self) -> tuple[Breakpoint, ...]:
        """Return the conditions of the last run; those that cannot be read are left out."""
        return read_breakpoints(self.breakpoints)[0]

    def remember_model(self, source: str) -> None:
        """Put a model first in the list of recent models."""
        self.recent_models = [source, *(known for known in self.recent_models if known != source)][:MAX_RECENT]

    def remember_snapshot(self, name: str) -> None:
        """Put a file first in the list of recent snapshots."""
        self.recent_snapshots = [name, *(known for known in self.recent_snapshots if known != name)][:MAX_RECENT]


def _engine(store: QSettings) -> ClientChoice:
    try:
        return check_choice(_text(store, "run/engine", "auto"))
    except InputError:
        return "auto"


def _kept_bytes(store: QSettings) -> int | None:
    """Return what earlier steps may take in memory; None for an invalid value, so that the engine decides."""
    mib = _text(store, "run/kept_mib", "")
    return int(mib) << 20 if mib.isdecimal() and len(mib) <= MAX_MIB_DIGITS else None


def theme_choice(name: str) -> ThemeChoice:
    """Return the theme of that name; dark for any other name."""
    return cast(ThemeChoice, name) if name in get_args(ThemeChoice) else "dark"


def _loading(store: QSettings) -> ModelSpec:
    """Return where and how models are loaded; one invalid value resets all of them to their defaults."""
    threads = _text(store, "load/threads", "")
    try:
        return ModelSpec(
            device=_text(store, "load/device", AUTO_DEVICE) or AUTO_DEVICE,
            dtype=cast(Dtype, _text(store, "load/dtype", "auto")),
            weights=cast(WeightFormat, _text(store, "load/weights", "stored")),
            num_threads=int(threads) if threads.isdecimal() and len(threads) < MAX_DIGITS else None,
        )
    except InputError:
        return ModelSpec()


def _storable(text: str) -> str:
    return text.encode("utf-8", "replace").decode("utf-8").replace("\x00", "")


def _is_strange(path: Path) -> bool:
    """Whether the path is there but no file: Qt would wait on a pipe, or put a file in a device's place."""
    return os.path.exists(path) and not os.path.isfile(path)


def _set_aside_if_damaged(path: Path) -> Path | None:
    """Rename a settings file that Qt cannot parse, so that the user can still look at it."""
    try:
        if not path.is_file():
            return None
        is_damaged = _is_damaged(path)
    except OSError:
        return None
    if not is_damaged:
        return None
    aside = path.with_suffix(".damaged.ini")
    try:
        path.replace(aside)
    except OSError:
        return None
    return aside


def _is_damaged(path: Path) -> bool:
    raw = path.read_bytes()
    # We store only texts: a serialised object is not ours, and decoding one could do anything.
    if len(raw) > 8 * MAX_STATE or b"\x00" in raw or b"@Variant" in raw:
        return True
    store = QSettings(str(path), QSettings.Format.IniFormat)
    keys = store.allKeys()
    return store.status() != QSettings.Status.NoError or (bool(raw.strip()) and not keys)


def _text(store: QSettings, key: str, default: str) -> str:
    value = store.value(key, default)
    return value if isinstance(value, str) else default


def _texts(store: QSettings, key: str) -> list[str]:
    value = store.value(key, [])
    items = value if isinstance(value, list) else [value]
    return [item for item in items if isinstance(item, str) and item.strip() and len(item) < 4096]


def _bytes(store: QSettings, key: str) -> bytes:
    try:
        raw = base64.b64decode(_text(store, key, ""), validate=True)
    except ValueError:
        return b""
    return raw if len(raw) <= MAX_STATE else b""
