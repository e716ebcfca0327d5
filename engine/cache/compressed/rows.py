"""Growing buffers along the token axis, in which compressed caches keep their rows."""

from __future__ import annotations

import copy
from typing import TypeVar

import torch

from engine.predict.capacity import grown_capacity, tight_capacity


class RowBuffer:
    """Rows `[B, H, S, …]` in a buffer with spare capacity along S: appending copies the new rows and, while there is
    room, nothing else."""

    def __init__(self) -> None:
        self._data: torch.Tensor | None = None
        self.length = 0

    @property
    def is_empty(self) -> bool:
        return self._data is None or self.length == 0

    @property
    def view(self) -> torch.Tensor:
        """The rows held, `[B, H, S, …]`."""
        assert self._data is not None, "no row was ever written"
        return self._data[:, :, : self.length]

    @property
    def stored_bytes(self) -> int:
        return 0 if self._data is None else self.length * self.reserved_bytes // self._data.shape[2]

    @property
    def reserved_bytes(self) -> int:
        return 0 if self._data is None else int(self._data.nbytes)

    def reserve(self, like: torch.Tensor, num_new: int) -> None:
        """Make room for `num_new` more rows shaped like `like`; a failed allocation changes nothing."""
        needed = self.length + num_new
        if self._data is None:
            self._make(like, grown_capacity(needed))
        elif needed > self._data.shape[2]:
            old = self.view
            self._make(like, grown_capacity(needed))
            self.view[:] = old

    def _make(self, like: torch.Tensor, capacity: int) -> None:
        self._data = like.new_empty(*like.shape[:2], capacity, *like.shape[3:])

    def append(self, rows: torch.Tensor) -> None:
        self.reserve(rows, rows.shape[2])
        assert self._data is not None
        self._data[:, :, self.length : self.length + rows.shape[2]] = rows
        self.length += rows.shape[2]

    def crop(self, num_rows: int) -> None:
        """Keep the first `num_rows`; the capacity stays."""
        self.length = min(self.length, num_rows)

    def without_first(self, num_rows: int) -> RowBuffer:
        """A new buffer with all rows but the first `num_rows`."""
        made = RowBuffer()
        if self._data is not None:
            made.append(self.view[:, :, num_rows:])
        return made

    def picked(self, slots: torch.Tensor) -> torch.Tensor:
        """The rows in slots `[H, K]`, which may differ between heads: `[1, H, K, …]`."""
        heads = torch.arange(slots.shape[0], device=slots.device)[:, None]
        return self.view[0][heads, slots][None]

    @classmethod
    def of_appended(cls, rows: torch.Tensor) -> RowBuffer:
        """A buffer with these rows and the capacity that appending them gives."""
        made = cls()
        made.append(rows)
        return made

    @classmethod
    def tight(cls, rows: torch.Tensor) -> RowBuffer:
        """A buffer with these rows and little spare capacity."""
        made = cls()
        made._make(rows, tight_capacity(rows.shape[2]))
        made.append(rows)
        return made


Stored = TypeVar("Stored")


def shared_copy_of(store: Stored) -> Stored:
    """A copy of a store that shares its storage but has its own counts: cropping or reading the copy leaves the
    original unchanged."""
    made = copy.copy(store)
    for name, value in vars(store).items():
        if isinstance(value, RowBuffer):
            setattr(made, name, copy.copy(value))
        elif isinstance(value, list) and value and isinstance(value[0], RowBuffer):
            setattr(made, name, [copy.copy(buffer) for buffer in value])
    return made
