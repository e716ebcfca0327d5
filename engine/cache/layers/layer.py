"""The interface through which the rest of the program uses the cache of one layer, and this program's own layers: among
them preallocated buffers that double in size, in which appending a row copies that row and, while there is room,
nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import DynamicCache
from transformers.cache_utils import CacheLayerMixin

from engine.cache.by_hand import write_slots
from engine.cache.contract import HeldBytes, HeldRows, Pair, RowDelta, StateMatrix, StoredLayer, rows_from, stored_rows
from engine.cache.stacking import evenly_spaced
from engine.device import new_buffer
from engine.predict.capacity import grown_capacity
from engine.spec.codec import Part


class LayerHandle:
    """One layer of one sequence's cache. There is a subclass for each kind of layer, and callers never check which one
    it is. The defaults are right for rows that are consecutive, written once and never evicted.

    `keeps_all_rows`: the layer holds every row, in order and as computed, and nothing else, so that a cache in another
    layout can be filled from it. `takes_rows`: rows computed elsewhere may be appended to it. `has_state`: beside rows
    it keeps a recurrent state or an indexer's keys, which cannot go back.
    """

    keeps_all_rows = False
    takes_rows = False
    has_state = False

    def rows(self) -> HeldRows | None:
        """The rows held, as attention reads them; views where they are stored exactly. None where the layer has no K
        and V."""
        return None

    def rows_at(self, num_tokens: int | None = None, first_position: int | None = None) -> HeldRows | None:
        """The rows when the sequence had `num_tokens` tokens, for which `knows` must hold (None: now); rows of later
        tokens may follow them. With `first_position` only those from there on, none of which has been evicted yet; None
        where there are none."""
        return self.rows() if first_position is None else rows_from(self.rows(), first_position)

    def newest(self, part: Part, first_position: int, num_tokens: int | None = None) -> torch.Tensor:
        """K or V `[H_kv, T, D]` of `rows_at` from a position on, of which there are some; the other part is not read
        where that can be avoided."""
        rows = self.rows_at(num_tokens)
        assert rows is not None, "there are rows from that position on"
        return (rows.keys if part == "keys" else rows.values)[0, :, max(0, first_position - rows.first) :]

    def row_positions(self) -> torch.Tensor | None:
        """Positions `[H_kv, S]` of the rows held; None where they are consecutive and end with the newest token."""
        return None

    def held_bytes(self) -> HeldBytes:
        """The bytes that the layer takes."""
        raise NotImplementedError

    def states(self) -> tuple[StateMatrix, ...]:
        """The recurrent state, which every token changes and which does not grow; empty where there is none."""
        return ()

    def reserve(self, num_new: int) -> None:
        """Make room for `num_new` more rows; a failed allocation changes nothing."""

    @property
    def can_write_ahead(self) -> bool:
        """Whether there is room for one more row after the counted ones, which `uncount_row` keeps uncounted."""
        return False

    def uncount_row(self) -> None:
        """Stop counting the newest row; its numbers stay written."""
        raise NotImplementedError

    def count_row(self) -> None:
        """Count the row that was written after the counted ones."""
        raise NotImplementedError

    def commit(self, written: RowDelta) -> RowDelta:
        """Conclude a step and return what it did to the rows, where that is more than `written`."""
        return written

    def num_final(self, part: Part, num_tokens: int) -> int:
        """How many of the rows held at `num_tokens` tokens, for which `knows` must hold, no later step has overwritten
        or will: positions 0, 1, 2 … from the first on. 0 where any of them was evicted since."""
        raise NotImplementedError

    def exact_from(self, num_tokens: int, part: Part) -> int:
        """The position from which on K or V of the first `num_tokens` tokens is exact: attention reads the rows before
        it from quantised codes. 0 where every row is exact, `num_tokens` where none is."""
        return 0

    def knows(self, num_tokens: int) -> bool:
        """Whether `rows_at(num_tokens)` are, bit for bit, the rows that the layer held when there were `num_tokens`
        tokens."""
        return True

    def can_crop(self, num_tokens: int) -> bool:
        """Whether `crop(num_tokens)` is exact."""
        return not self.has_state

    def crop(self, num_tokens: int) -> int:
        """Go back to the state after `num_tokens` tokens; returns how many evicted rows were restored."""
        return 0

    def stored(self, num_tokens: int) -> StoredLayer | None:
        """The contents of the layer at `num_tokens` tokens, for which `knows` must hold; None where there are no
        rows."""
        return stored_rows(self.rows(), num_tokens)

    def restore(self, stored: StoredLayer) -> None:
        """Fill the layer, which is empty, with what `stored` returned for another layer of its kind."""
        raise NotImplementedError

    def stored_states(self) -> dict[str, torch.Tensor]:
        """Copies of the recurrent state's tensors, by name: steps overwrite the tensors themselves."""
        return {}

    def restore_states(self, states: Mapping[str, torch.Tensor]) -> None:
        """Set the recurrent state to what `stored_states` returned for another layer of its kind; this one has seen no
        token."""

    def first_position(self) -> int:
        """The position of the first row held, if rows are consecutive."""
        return 0

    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        """Overwrite K or V of some rows with numbers `[N, T, D]`: of kv heads `[N]`, in slots `[N, T]`; encoded as the
        layer encodes its own rows."""
        rows = self.rows()
        assert rows is not None, "a layer without rows is not edited"
        write_slots((rows.keys if part == "keys" else rows.values)[0], heads, slots, numbers)


class OwnLayer(LayerHandle, CacheLayerMixin):  # type: ignore[misc]
    """A cache layer of this program: it implements transformers' layer interface and is its own handle."""

    takes_rows = True

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Called before the first rows are appended."""
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: object, **kwargs: object) -> Pair:
        """Called by the forward: append rows, after `lazy_initialization` if these are the first."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        return self.append(key_states, value_states)

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        """Append rows `[B, H_kv, T, D]`; returns what attention reads, `[B, H_kv, S + T, D]`."""
        raise NotImplementedError

    def get_max_length(self) -> int:
        return -1  # transformers' word for "no maximum"

    def num_final(self, part: Part, num_tokens: int) -> int:
        return min(int(self.get_seq_length()), num_tokens)

    def restore(self, stored: StoredLayer) -> None:
        self.update(stored.keys.tensors["rows"], stored.values.tensors["rows"])


# ---- a layer that a forward reads without changing it ---------------------------------------------------------------


class ReadOnlyLayer(OwnLayer):
    """Rows `[1, H_kv, S, D]` that a forward reads. If `keeps`, the rows of its new tokens are appended to a copy; else
    they are ignored, because the rows given already contain them."""

    def __init__(self, held: HeldRows, seen: int, is_sliding: bool, keeps: bool) -> None:
        super().__init__()
        self.keys, self.values, self.seen, self.keeps, self.is_sliding = held.keys, held.values, seen, keeps, is_sliding
        self.dtype, self.device, self.is_initialized = held.keys.dtype, held.keys.device, True

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        if self.keeps:
            self.keys, self.values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
            self.seen += keys.shape[2]
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        columns = self.keys.shape[2] + (query_length if self.keeps else 0)
        return columns, self.seen + query_length - columns


def read_only_cache(config: Any, layers: list[Any]) -> DynamicCache:
    """transformers' DynamicCache with these layers."""
    made = DynamicCache(config=config)
    made.layers = layers
    return made


# ---- growing buffers ------------------------------------------------------------------------------------------------


SHARED_CAPACITY = 512  # rows; larger buffers are allocated for each layer separately


class GrowingLayer(OwnLayer):
    """K and V of one layer in buffers `[B, H_kv, capacity, D]`, of which the first `length` rows hold tokens.

    transformers' DynamicLayer concatenates, so every step copies the whole cache; here a step copies its new rows, and
    each row is copied once more, on average, over all the doublings. Sliding layers keep their whole history too: the
    mask restricts what is read, and every past step stays a prefix of the present.
    """

    is_sliding = False
    keeps_all_rows = True

    def __init__(self, buffers: LayerBuffers | None = None, index: int = 0) -> None:
        super().__init__()
        self._buffers, self._index = buffers or LayerBuffers(1), index
        self.length = 0
        self.reserved_bytes = 0  # bytes of both buffers, used or not

    # ---- transformers' contract ----------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        capacity = grown_capacity(key_states.shape[2])
        self.keys = self._buffers.buffer("keys", self._index, key_states, capacity)
        self.values = self._buffers.buffer("values", self._index, value_states, capacity)
        self.reserved_bytes = int(self.keys.nbytes + self.values.nbytes)
        self.is_initialized = True

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        first, num_new = self.length, keys.shape[2]
        if first + num_new > self.keys.shape[2]:
            self.reserve(num_new)
        held_keys, held_values = self.keys, self.values
        held_keys.narrow(2, first, num_new).copy_(keys)
        held_values.narrow(2, first, num_new).copy_(values)
        self.length = first + num_new
        return held_keys.narrow(2, 0, self.length), held_values.narrow(2, 0, self.length)

    def count_row(self) -> None:
        self.length += 1

    def uncount_row(self) -> None:
        self.length -= 1

    @property
    def can_write_ahead(self) -> bool:
        return self.is_initialized and self.length < self.keys.shape[2]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.length + query_length, 0

    def get_seq_length(self) -> int:
        return self.length

    # ---- LayerHandle ---------------------------------------------------------------------------------------------

    @property
    def held_keys(self) -> torch.Tensor:
        return self.keys.narrow(2, 0, self.length)

    @property
    def held_values(self) -> torch.Tensor:
        return self.values.narrow(2, 0, self.length)

    def rows(self) -> HeldRows | None:
        return HeldRows(self.held_keys, self.held_values, 0) if self.is_initialized else None

    def num_final(self, part: Part, num_tokens: int) -> int:
        return min(self.length, num_tokens)

    def newest(self, part: Part, first_position: int, num_tokens: int | None = None) -> torch.Tensor:
        buffer = self.keys if part == "keys" else self.values
        return buffer[0].narrow(1, first_position, self.length - first_position)

    def held_bytes(self) -> HeldBytes:
        stored = self.length * self.reserved_bytes // self.keys.shape[2] if self.is_initialized else 0
        return HeldBytes(stored, self.reserved_bytes)

    def reserve(self, num_new: int) -> None:
        """Make room for `num_new` more rows. Both buffers are allocated before either replaces the old one, so a
        failure changes nothing."""
        if not self.is_initialized or self.length + num_new <= self.keys.shape[2]:
            return
        capacity = grown_capacity(self.length + num_new)
        keys = grown(self.keys, self.length, self._buffers.buffer("keys", self._index, self.keys, capacity))
        values = grown(self.values, self.length, self._buffers.buffer("values", self._index, self.values, capacity))
        self.keys, self.values = keys, values
        self.reserved_bytes = int(keys.nbytes + values.nbytes)

    def crop(self, num_tokens: int) -> int:
        """Keep the first `num_tokens` rows and zero the others: a replayed step reads the whole buffer with a weight of
        zero, and zero times NaN is NaN."""
        if num_tokens < self.length:
            for held in (self.held_keys, self.held_values):
                held[:, :, num_tokens:].zero_()
            self.length = num_tokens
        return 0


class LayerBuffers:
    """Buffers of all layers of a small cache, side by side in one storage `[L, B, H_kv, capacity, D]`.

    What is computed for every layer at every step can then be computed for all layers in one operation.
    """

    def __init__(self, num_layers: int) -> None:
        self._num_layers = num_layers
        self._blocks: dict[str, torch.Tensor] = {}

    def buffer(self, name: str, layer: int, like: torch.Tensor, capacity: int) -> torch.Tensor:
        """An uninitialised buffer `[B, H_kv, capacity, D]` for one layer: a part of the shared storage, or a separate
        tensor where it is large or has another shape, dtype or device."""
        shape = (*like.shape[:2], capacity, like.shape[3])
        if capacity > SHARED_CAPACITY:
            self._blocks.pop(name, None)
            return new_buffer(like, shape)
        block = self._blocks.get(name)
        is_alike = block is not None and (*block.shape[1:3], block.shape[4], block.dtype, block.device) == (
            *like.shape[:2], like.shape[3], like.dtype, like.device,
        )  # fmt: skip
        if block is not None and not is_alike:
            return new_buffer(like, shape)
        if block is None or block.shape[3] != capacity:
            block = self._blocks[name] = new_buffer(like, (self._num_layers, *shape))
        return block[layer]


def grown(buffer: torch.Tensor, length: int, larger: torch.Tensor) -> torch.Tensor:
    """Copy the first `length` rows of a buffer into a larger one, and return that."""
    larger[:, :, :length] = buffer[:, :, :length]
    return larger


def stacked_rows(layers: Sequence[LayerHandle], part: Part, first_position: int) -> torch.Tensor | None:
    """A view `[L, H_kv, T, D]` of K or V of the rows from `first_position` on, of layers that share one storage. None
    where they do not, some layer is not a `GrowingLayer`, or has no such rows."""
    growing = [layer for layer in layers if isinstance(layer, GrowingLayer) and layer.is_initialized]
    count = min([layer.length for layer in growing], default=0) - first_position
    if len(growing) < len(layers) or count <= 0:
        return None
    buffers = evenly_spaced([getattr(layer, part) for layer in growing])
    return None if buffers is None else buffers[:, 0].narrow(2, first_position, count)
