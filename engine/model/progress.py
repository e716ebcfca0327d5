"""How far the loading of a model is, told while other libraries do it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode

from engine.errors import Cancelled

ReportProgress = Callable[[str, int, int | None], None]
TOLD_EVERY_S = 0.02


class LoadProgress(TorchFunctionMode):
    """Tells at every operation of torch in this thread, of whatever library, how many of the tensors of a folder are
    in their places.

    `report` may raise `Cancelled`. It goes on being raised until the end, for who loads may take it for an error of a
    tensor.
    """

    def __init__(self, report: ReportProgress) -> None:
        super().__init__()
        self._report = report
        self._label = ""
        self._done = 0
        self._total: int | None = None
        self._told_at = 0.0
        self._cancelled: Cancelled | None = None

    def begin(self, label: str, total: int | None = None) -> None:
        """Say what is done from now on, of so many tensors (None: nobody knows how many)."""
        self._label, self._done, self._total, self._told_at = label, 0, total, 0.0
        self._tell()

    @contextmanager
    def told(self) -> Iterator[LoadProgress]:
        """Meanwhile it is told; what was cancelled ends as cancelled, whatever was made of it on the way."""
        hook = register_module_parameter_registration_hook(self._on_parameter)
        try:
            with self:
                yield self
        except Exception:
            self._check_uncancelled()
            raise
        finally:
            hook.remove()
        self._check_uncancelled()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._tell()
        return func(*args, **(kwargs or {}))

    def _on_parameter(self, module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        """Modules are made first without numbers, and each parameter is put in its place once it has them."""
        if parameter is not None and parameter.device.type != "meta":
            self._done += 1

    def _tell(self) -> None:
        self._check_uncancelled()
        if self._label and time.monotonic() - self._told_at > TOLD_EVERY_S:
            self._told_at = time.monotonic()
            done = self._done if self._total is None else min(self._done, self._total)
            try:
                self._report(self._label, done, self._total)
            except Cancelled as cancelled:
                self._cancelled = cancelled
                raise

    def _check_uncancelled(self) -> None:
        if self._cancelled is not None:
            raise Cancelled from None


def num_tensors(folder: Path | None) -> int | None:
    """Of all weight files of a folder; None without one."""
    if folder is None:
        return None
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            total += len(weights.keys())
    return total
