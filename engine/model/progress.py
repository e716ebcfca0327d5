"""Reports the progress of loading a model while other libraries load it."""

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
REPORT_EVERY_S = 0.02


class LoadProgress(TorchFunctionMode):
    """Reports how many tensors of a model folder are loaded. It is called at every torch operation in this thread,
    whichever library runs it.

    `report` may raise `Cancelled`. That is then raised at every operation until loading ends, because a library may
    catch the first one as an error of a tensor.
    """

    def __init__(self, report: ReportProgress) -> None:
        super().__init__()
        self._report = report
        self._label = ""
        self._done = 0
        self._total: int | None = None
        self._reported_at = 0.0
        self._cancelled: Cancelled | None = None

    def begin(self, label: str, total: int | None = None) -> None:
        """Start a phase named `label` of `total` tensors (None: unknown)."""
        self._label, self._done, self._total, self._reported_at = label, 0, total, 0.0
        self._report_now()

    @contextmanager
    def reporting(self) -> Iterator[LoadProgress]:
        """Report while this context is open. If `report` has raised `Cancelled`, the context ends with it, whatever a
        library made of it."""
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
        self._report_now()
        return func(*args, **(kwargs or {}))

    def _on_parameter(self, module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        """Count a parameter that gets its numbers: modules are first built on the meta device, and each parameter is
        set once loaded."""
        if parameter is not None and parameter.device.type != "meta":
            self._done += 1

    def _report_now(self) -> None:
        self._check_uncancelled()
        if self._label and time.monotonic() - self._reported_at > REPORT_EVERY_S:
            self._reported_at = time.monotonic()
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
    """Number of tensors in all weight files of a folder; None without a folder."""
    if folder is None:
        return None
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            total += len(weights.keys())
    return total
