"""What the layers of a forward spend on attention, on their cache, on dequantising and on copies, where that is asked
for. What is timed inside something else is taken out of that."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Literal

import torch

from engine.device_time import DeviceMoment, mark

LayerPart = Literal["attention", "cache", "dequantise", "copies"]


class PartTimer:
    """Notes when each part of each layer begins and ends; nothing is read before `parts_ms`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._spans: list[tuple[LayerPart, int, DeviceMoment, DeviceMoment]] = []
        self._open: list[tuple[LayerPart, int, DeviceMoment]] = []

    @contextmanager
    def timed(self, part: LayerPart, layer: int) -> Iterator[None]:
        """What passes meanwhile is that part of that layer."""
        began = mark(self._device)
        if self._open:
            self._close(*self._open[-1], began)
        self._open.append((part, layer, began))
        try:
            yield
        finally:
            ended = mark(self._device)
            self._close(*self._open.pop(), ended)
            if self._open:
                outer = self._open[-1]
                self._open[-1] = (outer[0], outer[1], ended)

    def _close(self, part: LayerPart, layer: int, began: DeviceMoment, ended: DeviceMoment) -> None:
        self._spans.append((part, layer, began, ended))

    def parts_ms(self) -> dict[tuple[LayerPart, int], float]:
        """Milliseconds by part and layer; on a GPU once it has done the forward."""
        found: dict[tuple[LayerPart, int], float] = {}
        for part, layer, began, ended in self._spans:
            found[part, layer] = found.get((part, layer), 0.0) + ended.ms_since(began)
        return found


def timed(timer: PartTimer | None, part: LayerPart, layer: int | None) -> Any:
    """`timer.timed`, or nothing where nobody asks."""
    return nullcontext() if timer is None or layer is None else timer.timed(part, layer)


@contextmanager
def timed_layers(cache: Any, timer: PartTimer | None) -> Iterator[None]:
    """Meanwhile the layers of a cache tell the timer what taking new rows costs, and reading those that they hold: what
    is decoded counts as dequantising, what has to be gathered as copies."""
    undo: list[Callable[[], None]] = []
    try:
        for index, layer in enumerate(cache.layers if timer is not None else ()):
            for name in ("update", "append_apart", "write"):
                _time(layer, name, timer, "cache", index, undo)
            for rows in rows_of(layer):
                is_exact = getattr(getattr(rows, "coding", None), "is_exact", False)
                _time(rows, "read", timer, "copies" if is_exact else "dequantise", index, undo)
        yield
    finally:
        for each in reversed(undo):
            each()


def rows_of(layer: Any) -> list[Any]:
    """What holds the keys and the values of a layer, where it keeps them apart from itself."""
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
