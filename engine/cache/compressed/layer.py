"""One layer of a cache that quantises or evicts rows, and its exact way back."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from engine.cache.compressed.kivi_store import KiviStore
from engine.cache.compressed.rows import shared_copy_of
from engine.cache.compressed.stores import RowStore, store_of
from engine.cache.contract import HeldBytes, HeldRows, Pair
from engine.cache.layers.own import OwnLayer
from engine.cache.lost_rows import Lost, LostRows
from engine.cache.rotation import KeyRotation
from engine.cache.row_delta import NO_ROWS, RowDelta
from engine.cache.stored import StoredLayer
from engine.spec.codec import CodedBytes, Coding, Part


class CompressedLayer(OwnLayer):
    """K and V of one layer, quantised or partly evicted; attention reads the dequantised numbers.

    `positions` `[H_kv, S]` are those of the rows held, None while none was evicted. `seen` counts all tokens, held or
    not: position ids and masks follow it. `memory` is the eviction rule's state. `lost` is the log of the whole cache,
    in which this layer is `index`. `rotation` is given when sinks are to be rotated.
    """

    def __init__(
        self,
        keys: Coding,
        values: Coding,
        lost: LostRows,
        index: int = 0,
        is_sliding: bool = False,
        rotation: KeyRotation | None = None,
    ) -> None:
        super().__init__()
        self.lost, self.index, self._rotation = lost, index, rotation
        self.is_sliding = is_sliding  # read by transformers when it sizes masks; a sliding layer too keeps all its rows
        self.key_store = store_of(keys, "keys")
        self.value_store = store_of(values, "values")
        self.seen = 0
        self.held = 0  # number of rows, equal in every head; counted when both K and V are written
        self.num_heads = 0
        self.positions: torch.Tensor | None = None
        self.memory: torch.Tensor | None = None
        self.sinks: torch.Tensor | None = None  # keys of the sinks before rotation

    # ---- transformers' contract ----------------------------------------------------------------------------------

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device, self.num_heads = key_states.dtype, key_states.device, key_states.shape[1]
        self.is_initialized = True

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> Pair:
        num_new = keys.shape[2]
        keys, values = self.key_store.append(keys), self.value_store.append(values)
        if self.positions is not None:
            new = torch.arange(self.seen, self.seen + num_new, device=self.positions.device)
            self.positions = torch.cat([self.positions, new.expand(len(self.positions), -1)], 1)
        self.seen += num_new
        self.held += num_new
        return keys, values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.held + query_length, self.seen - self.held

    def get_seq_length(self) -> int:
        return self.seen

    # ---- LayerHandle ---------------------------------------------------------------------------------------------

    def all_positions(self) -> torch.Tensor:
        """Positions of the rows held, `[H_kv, S]`."""
        if self.positions is not None:
            return self.positions
        return torch.arange(self.held, device=self.device).expand(self.num_heads, -1)

    @property
    def coded_bytes(self) -> CodedBytes:
        return self.key_store.stored + self.value_store.stored

    @torch.inference_mode()
    def rows(self) -> HeldRows | None:
        if not self.held:
            return None
        return HeldRows(self.key_store.read(), self.value_store.read(), 0, self.positions)

    @torch.inference_mode()
    def rows_at(self, num_tokens: int | None = None, first_position: int | None = None) -> HeldRows | None:
        if num_tokens is not None and num_tokens < self.seen:
            return self._past(num_tokens).rows_at(first_position=first_position)
        if first_position is None:
            return self.rows()
        if self.seen <= first_position:
            return None
        slot = self._slot(first_position)
        return HeldRows(self.key_store.read(slot), self.value_store.read(slot), first_position)

    @torch.inference_mode()
    def newest(self, part: Part, first_position: int, num_tokens: int | None = None) -> torch.Tensor:
        if num_tokens is not None and num_tokens < self.seen:
            return self._past(num_tokens).newest(part, first_position)
        return self._store(part).read(self._slot(first_position))[0]

    def _slot(self, position: int) -> int:
        """The first slot whose row is at a position or after it, of positions of which none was evicted."""
        return max(0, self.held - (self.seen - position))

    def row_positions(self) -> torch.Tensor | None:
        return self.positions

    def held_bytes(self) -> HeldBytes:
        stores, stored = (self.key_store, self.value_store), self.coded_bytes
        is_coded = not all(store.coding.is_exact for store in stores)
        positions = 0 if self.positions is None else int(self.positions.nbytes)
        return HeldBytes(
            stored=stored.total,
            reserved=self.key_store.reserved_bytes + self.value_store.reserved_bytes + positions,
            scales=stored.scales,
            residual=stored.exact if is_coded else 0,
            positions=positions,
            dequantised=sum(self.held * store.row_bytes for store in stores if store.num_coded(self.held)),
            lost=self.lost.bytes_of(self.index) + self.key_store.spare_bytes + self.value_store.spare_bytes,
            scores=0 if self.memory is None else int(self.memory.nbytes),
        )

    def commit(self, written: RowDelta) -> RowDelta:
        """What the step did. Rewritten slots are reported as positions: a codec that rewrites rows evicts none, and
        rotated sinks have the first positions."""
        before, now = written.written.start, written.written.stop
        keys, values = (within(store.rewritten, before) for store in (self.key_store, self.value_store))
        self.key_store.rewritten = self.value_store.rewritten = NO_ROWS
        step = self.lost.at(now)
        lost = None if step is None else step.layers.get(self.index)
        evicted = () if lost is None or lost.positions is None else (lost.positions,)
        return RowDelta(written.written, keys, values, evicted=evicted) if keys or values or evicted else written

    def num_final(self, part: Part, num_tokens: int) -> int:
        if self.held < self.seen or (part == "keys" and self._rotation is not None) or self._waited(part, num_tokens):
            return 0
        return self._store(part).num_final(num_tokens)

    def _waited(self, part: Part, num_tokens: int) -> bool:
        """Whether rows that are coded now still waited for the prompt's end at `num_tokens` tokens."""
        return self.held == self.seen and num_tokens < (self._store(part).quantised_at or 0)

    def exact_from(self, num_tokens: int, part: Part) -> int:
        """Where rows were evicted, all others are coded or none is: a codec that keeps its latest rows exact takes no
        rule that evicts."""
        if self._waited(part, num_tokens):
            return 0
        num_rows = max(1, self.held - max(0, self.seen - num_tokens))  # at least one: evicted rows may be missing here
        num_coded = self._store(part).num_coded(num_rows) if num_tokens else 0
        return num_tokens if num_coded >= num_rows else num_coded

    def _store(self, part: Part) -> RowStore | KiviStore:
        return self.key_store if part == "keys" else self.value_store

    # ---- going back ----------------------------------------------------------------------------------------------

    def can_crop(self, num_tokens: int) -> bool:
        return num_tokens == self.seen or (self.lost.knows_state(num_tokens) and self.knows(num_tokens))

    def knows(self, num_tokens: int) -> bool:
        return num_tokens == self.seen or num_tokens >= self.lost.floor

    def crop(self, num_tokens: int) -> int:
        """Back to the state after `num_tokens` tokens, bit for bit; returns how many rows were restored. The log is
        only read."""
        later = [] if num_tokens >= self.seen else self.lost.since(num_tokens)
        if num_tokens == 0:
            self.memory = None
        elif later and later[0].state_at == num_tokens:
            self.memory = later[0].layers[self.index].state
        mine = [step.layers[self.index] for step in later if self.index in step.layers]
        undone = [(lost.positions, lost) for lost in mine if lost.positions is not None]
        if undone:
            self._restore(undone, num_tokens)
            self._restore_sinks()
        else:
            self.key_store, self.value_store = (
                store.with_exact(exact) if (exact := [rows for lost in mine for rows in getattr(lost, part)]) else store
                for part, store in (("keys", self.key_store), ("values", self.value_store))
            )
            self._crop_rows(self.held - (self.seen - num_tokens))
            self.seen = min(self.seen, num_tokens)
        if self.held == self.seen:
            self.positions = None
        return sum(positions.numel() for positions, _ in undone)

    def _restore_sinks(self) -> None:
        """Rotate the sinks again from their original keys, for the gap that there was then; this gives the same
        bits."""
        if self.sinks is None or self._rotation is None:
            return
        assert isinstance(self.key_store, RowStore)
        gap = self.seen - self.held
        count = min(self.held, self.sinks.shape[2])
        if count:
            self.key_store.overwrite(0, self._rotation.rotate(self.sinks[:, :, :count], gap))
        if gap == 0:
            self.sinks = None

    def _past(self, num_tokens: int) -> CompressedLayer:
        """The layer after going back to `num_tokens`: a copy of it, which shares the rows' storage but has its own
        counts, goes back; this one is unchanged."""
        made = copy.copy(self)
        made.key_store, made.value_store = shared_copy_of(self.key_store), shared_copy_of(self.value_store)
        made.crop(num_tokens)
        return made

    def _restore(self, undone: list[tuple[torch.Tensor, Lost]], num_tokens: int) -> None:
        """Undo several evictions at once: keep, of the rows held and those evicted since, those before `num_tokens`, in
        order of position."""
        assert self.positions is not None
        assert isinstance(self.key_store, RowStore)
        assert isinstance(self.value_store, RowStore)
        positions = torch.cat([self.positions[:, : self.held], *(positions for positions, _ in undone)], 1)
        count = int((positions[0] < num_tokens).sum())  # the same in every head
        ordered = positions.sort(1)
        slots = ordered.indices[:, :count]
        keys = self.key_store.rebuilt(self.held, [lost.keys for _, lost in undone], slots)
        values = self.value_store.rebuilt(self.held, [lost.values for _, lost in undone], slots)
        self.key_store, self.value_store = keys, values
        self.positions = ordered.values[:, :count]
        self.seen, self.held = num_tokens, count

    # ---- storing and restoring -----------------------------------------------------------------------------------

    @torch.inference_mode()
    def stored(self, num_tokens: int) -> StoredLayer | None:
        if num_tokens < self.seen:
            forgot = "" if self.can_crop(num_tokens) else "what its rule remembered then is not known any more"
            return replace(found, why_not=forgot) if (found := self._past(num_tokens).stored(num_tokens)) else None
        if not self.held:
            return None
        keys, values = self.key_store.written(), self.value_store.written()
        return StoredLayer(
            keys,
            values,
            self.seen,
            self.held,
            self.dtype,
            positions=self.positions,
            memory=self.memory,
            sinks=self.sinks,
        )

    def restore(self, stored: StoredLayer) -> None:
        some = next(iter(stored.keys.tensors.values()))
        self.dtype, self.device, self.num_heads = stored.dtype, some.device, some.shape[1]
        self.is_initialized = True
        self.key_store.refill(stored.keys, stored.dtype)
        self.value_store.refill(stored.values, stored.dtype)
        self.seen, self.held = stored.num_tokens, stored.num_rows
        self.positions, self.memory, self.sinks = stored.positions, stored.memory, stored.sinks
        if self.positions is not None or self.held < self.seen:
            self.lost.forget(self.seen)
        else:
            self.lost.floor = max(self.lost.floor, self.key_store.first_known, self.value_store.first_known)

    @torch.inference_mode()
    def write_rows(self, part: Part, heads: torch.Tensor, slots: torch.Tensor, numbers: torch.Tensor) -> None:
        before = None if part == "values" or self.sinks is None else self._sinks_now().clone()
        (self.key_store if part == "keys" else self.value_store).write(heads, slots, numbers)
        if before is not None:
            self._rewrite_sinks(before)

    def _sinks_now(self) -> torch.Tensor:
        """Keys `[1, H_kv, sinks, D]` of the sinks as attention reads them, rotated."""
        assert self.sinks is not None
        return self.key_store.read()[:, :, : self.sinks.shape[2]]

    def _rewrite_sinks(self, before: torch.Tensor) -> None:
        """Update the original keys of sinks that were overwritten by hand, because sinks are rotated from the originals
        at each eviction. Rotating back and forth rounds twice, so the rows are then set to what the originals give:
        going back will give the same."""
        assert self.sinks is not None
        assert self._rotation is not None
        assert isinstance(self.key_store, RowStore)
        now, gap = self._sinks_now(), self.seen - self.held
        is_written = (now != before).any(-1, keepdim=True)
        self.sinks = torch.where(is_written, self._rotation.rotate(now, -gap), self.sinks)
        self.key_store.overwrite(0, self._rotation.rotate(self.sinks, gap))

    def _crop_rows(self, num_rows: int) -> None:
        self.key_store.crop(num_rows)
        self.value_store.crop(num_rows)
        self.held = num_rows
        if self.positions is not None:
            self.positions = self.positions[:, :num_rows]


def within(slots: range, stop: int) -> range:
    """The slots below `stop`."""
    return range(slots.start, min(slots.stop, stop))
