"""The time that each layer of a forward spends on attention, on its cache, on dequantising and on copies, measured only
on request. The time of a nested part is not counted in the part around it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch

from engine.device import DeviceTime, device_now

LayerPart = Literal["attention", "cache", "dequantise", "copies"]


class PartTimer:
    """Notes when each part of each layer begins and ends; the times are read only in `parts_ms`, so that a GPU is not
    waited for."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[LayerPart, int, DeviceTime, DeviceTime]] = []
        self._open: list[tuple[LayerPart, int, DeviceTime]] = []

    @contextmanager
    def timed(self, part: LayerPart, layer: int) -> Iterator[None]:
        """Count the time spent inside this context as `part` of `layer`."""
        began = device_now(self._device)
        if self._open:
            self._close(*self._open[-1], began)
        self._open.append((part, layer, began))
        try:
            yield
        finally:
            ended = device_now(self._device)
            self._close(*self._open.pop(), ended)
            if self._open:
                outer = self._open[-1]
                self._open[-1] = (outer[0], outer[1], ended)

    def _close(self, part: LayerPart, layer: int, began: DeviceTime, ended: DeviceTime) -> None:
        self._spans.append((part, layer, began, ended))

    def parts_ms(self) -> dict[tuple[LayerPart, int], float]:
        """Milliseconds by part and layer; on a GPU, to be read after the forward has finished there."""
        found: dict[tuple[LayerPart, int], float] = {}
        for part, layer, began, ended in self._spans:
            found[part, layer] = found.get((part, layer), 0.0) + ended.ms_since(began)
        return found


def timed(timer: PartTimer | None, part: LayerPart, layer: int | None) -> Any:
    """`timer.timed`, or an empty context without a timer."""
    return nullcontext() if timer is None or layer is None else timer.timed(part, layer)


@contextmanager
def timed_layers(cache: Any, timer: PartTimer | None) -> Iterator[None]:
    """While this context is open, measure what the layers of a cache spend on taking new rows ("cache") and on reading
    held ones: decoding codes counts as "dequantise", gathering exact rows as "copies"."""
    undo: list[Callable[[], None]] = []
    try:
        for index, layer in enumerate(cache.layers if timer is not None else ()):
            for name in ("update", "append_by_sequence", "write"):
                _time(layer, name, timer, "cache", index, undo)
            for rows in rows_of(layer):
                is_exact = getattr(getattr(rows, "coding", None), "is_exact", False)
                _time(rows, "read", timer, "copies" if is_exact else "dequantise", index, undo)
        yield
    finally:
        for each in reversed(undo):
            each()


def rows_of(layer: Any) -> list[Any]:
    """The objects that store the keys and the values of a layer, if the layer does not do so itself."""
    stores = [getattr(layer, name, None) for name in ("key_store", "value_store")]
    paged = getattr(getattr(layer, "store", None), "rows_of", None)
    if paged is not None:
        stores += paged.get(layer.layer_index, ())
    return [store for store in stores if store is not None]


def _time(
    owner: Any, name: str, timer: PartTimer | None, part: LayerPart, layer: int, undo: list[Callable[[], None]]
) -> None:
    method = getattr(owner, name, None)
    if method is None or timer is None or name in vars(owner):
        return

    def with_time(*args: Any, **kwargs: Any) -> Any:
        with timer.timed(part, layer):
            return method(*args, **kwargs)

    setattr(owner, name, with_time)
    undo.append(lambda: delattr(owner, name))
