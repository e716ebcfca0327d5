"""What a run can be compared with: every cache mode, the model in another dtype, another model, an earlier step, or a
snapshot."""

from __future__ import annotations

from pathlib import Path
from typing import cast, get_args

from PySide6.QtWidgets import QFileDialog, QWidget

from app.kit.fields import Option, SmallBox
from app.models import Models
from engine.spec.model import Dtype, ModelSpec
from engine.spec.presets import PRESETS, preset_of
from engine.wire.opponents import Opponent, OtherFile, OtherRun, OtherStep
from engine.wire.status import ModelInfo

STEP, MODEL, FILE = "the step", "another model", "a snapshot"
_CACHE, _DTYPE = "cache ", "dtype "
_MODEL_LABEL = "another model…"


def cache_choice(name: str) -> str:
    """The value of a cache preset in the list."""
    return _CACHE + name


def _options() -> list[Option]:
    dtypes = [dtype for dtype in get_args(Dtype) if dtype != "auto"]
    return [
        *(
            (preset.label, cache_choice(preset.name), preset.summary)
            for preset in PRESETS.values()
            if preset.name != "none"
        ),
        ("no cache", cache_choice("none"), PRESETS["none"].summary),
        ("the step I look at", STEP, "The same sequence as it stood after an earlier step"),
        *(
            (f"dtype {dtype}", _DTYPE + dtype, "The same model in this dtype, in the same cache mode")
            for dtype in dtypes
        ),
        (_MODEL_LABEL, MODEL, "A folder with a model of the same vocabulary, in the same cache mode and dtype"),
        ("a snapshot…", FILE, "A file that was exported here, as it was written"),
    ]


class OpponentBox(SmallBox):
    """The list of these; `opponent` is the chosen one."""

    def __init__(self, models: Models) -> None:
        super().__init__("Compare with", "What the same tokens are fed to for comparison", _options(), characters=13)
        self._models = models

    @property
    def choice(self) -> str:
        return str(self.currentData())

    def problem(self) -> str:
        """Why nothing can be compared now; empty if it can."""
        status, step = self._models.status.now, self._models.selection.now.step
        if status is None or status.model is None:
            return "A model is needed first."
        if not len(self._models.timeline):
            return "Send a prompt first: a comparison needs its tokens."
        if status.opened is not None:
            return self._problem_of_file()
        if self.choice == STEP and step is None:
            return "Look at an earlier step first: drag the timeline, or press Shift+F10."
        if self.choice == _DTYPE + status.model.dtype:
            return f"The model is in {status.model.dtype} already: choose another dtype."
        return ""

    def _problem_of_file(self) -> str:
        """Why an opened file cannot be compared with the choice: running its tokens needs its model."""
        if self.choice == STEP:
            return "A snapshot has the rows of one moment: choose another snapshot, a cache mode or a dtype."
        if self.choice in (MODEL, FILE) or self._models.status.source_of_file:
            return ""
        return f"The model of this file is not known here: choose '{_MODEL_LABEL}' and its folder, or another snapshot."

    def opponent(self, parent: QWidget) -> Opponent | None:
        """The chosen opponent; asks for a file or folder if necessary. None if nothing is possible or the user
        cancelled."""
        status, step = self._models.status.now, self._models.selection.now.step
        if self.problem() or status is None or status.model is None:
            return None
        if self.choice == STEP:
            return None if step is None else OtherStep(step)
        if self.choice == MODEL:
            folder = QFileDialog.getExistingDirectory(parent, "Compare with a model of the same vocabulary")
            return OtherRun(status.cache, ModelSpec(folder, _dtype_of(status.model))) if folder else None
        if self.choice == FILE:
            kinds = "Snapshots (*.safetensors *.npz *.bin)"
            path, _ = QFileDialog.getOpenFileName(parent, "Compare with a snapshot", "", kinds)
            return OtherFile(Path(path)) if path else None
        if self.choice.startswith(_DTYPE):
            dtype = next(name for name in get_args(Dtype) if self.choice == _DTYPE + name)
            source = self._models.status.source_of_file or status.model.source
            return OtherRun(status.cache, ModelSpec(source, dtype))
        name = self.choice.removeprefix(_CACHE)
        is_in_use = preset_of(status.cache).name == name and status.cache.codec.is_uniform
        cache = status.cache if is_in_use else PRESETS[name].spec  # the mode in use keeps its present parameters
        if status.opened is None:
            return OtherRun(cache)
        return OtherRun(cache, ModelSpec(self._models.status.source_of_file, _dtype_of(status.model)))


def _dtype_of(model: ModelInfo) -> Dtype:
    """The dtype for another run that is compared with this model's."""
    return cast(Dtype, model.dtype if model.dtype in get_args(Dtype) else "auto")
