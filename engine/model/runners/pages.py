"""Attention over the pages of a pool in place, without gathering the rows of a sequence first.

On a GPU one compiled kernel, FlexAttention, reads all pages of all sequences of a forward; elsewhere, and where the
kernel cannot be used, each sequence is read page by page. Both sum page after page, in the order of the sequence: this
rounds differently than gathered rows, but the same wherever in the pool the pages are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from engine.cache.attention_probe import NewestQuery, Probe
from engine.cache.paged.cache import PagedLayer
from engine.cache.paged.rows import QUERIES, GroupPlan, PageBlocks
from engine.cache.paged.store import PageStore
from engine.errors import InputError, check_known, first_line, is_of_machine
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.model.attention import record_pieces, weighted_values, weights_in_pieces, without_hidden
from engine.model.batch import AttentionArguments
from engine.model.runners.compiler import Compiling, allow_shapes, at_once, in_any_thread
from engine.spec.model import PAGED_ATTENTION, PagedAttentionName

# queries [B, H, T, D], keys and values [1, H_kv, slots, D], which pages are read, scale -> [B, H, T, D_v]
Kernel = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, PageBlocks, float], torch.Tensor]

CPU = torch.device("cpu")
SMALLEST = 16  # least tokens in a page, and numbers in a row, for the kernel
ALL = slice(None)
# failures after which no more shapes are tried: without Triton every shape fails, and a trial may take a minute. Not
# after the first, because a single shape may fail alone (a long chunk needs more shared memory than a token)
MOST_FAILURES = 2
PAGES = "pages"  # appended to the name of a runner that read pages in place


class Flex:
    """FlexAttention, compiled at its first call, or another `function` with the same arguments."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        self._function = function

    def __call__(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, blocks: PageBlocks, scale: float
    ) -> torch.Tensor:
        if self._function is None:
            # beyond its limit of shapes torch would run uncompiled code, which holds the scores of all slots
            allow_shapes()
            self._function = torch.compile(flex_attention, dynamic=False, fullgraph=True)
        batch, _, count, _ = query.shape
        more, longer = len(blocks.places) - batch, blocks.places.shape[1] - count
        read: torch.Tensor = self._function(
            torch.nn.functional.pad(query, (0, 0, 0, longer, 0, 0, 0, more)),
            keys,
            values,
            block_mask=mask_of(blocks, keys.shape[2]),
            scale=scale,
            enable_gqa=query.shape[1] != keys.shape[1],
            kernel_options={"BLOCK_N": min(64, blocks.page_size)} if query.device.type == "cuda" else None,
        )
        return read[:batch, :, :count]


def mask_of(blocks: PageBlocks, num_slots: int) -> BlockMask:
    """The FlexAttention mask for these blocks. Its tensors are inputs of the compiled kernel, and it has no changing
    constants."""
    numbers, places, size, window = blocks.numbers, blocks.places, blocks.page_size, blocks.window

    def allows(sequence: torch.Tensor, _head: torch.Tensor, query: torch.Tensor, slot: torch.Tensor) -> torch.Tensor:
        number, place = numbers[sequence, slot // size], places[sequence, query]
        position = number * size + slot % size
        is_read = (number >= 0) & (position <= place)
        return is_read if window is None else is_read & (position > place - window)

    return BlockMask.from_kv_blocks(
        *blocks.partly, *blocks.wholly, BLOCK_SIZE=(QUERIES, size), mask_mod=allows,
        seq_lengths=(places.shape[1], num_slots), compute_q_blocks=False,
    )  # fmt: skip


class PagedAttention:
    """Decides how the forwards of a model read pages: as `chosen`, as far as possible. With a `kernel`, all pages are
    read at once.

    `refused`: why the kernel could not be compiled for the latest forward. `hindrance`: another reason why its pages
    were not read in place. `announce` announces a compilation, and `compiling` runs it.
    """

    def __init__(self, why_not: str = "", device: torch.device = CPU, chosen: PagedAttentionName = "auto") -> None:
        self.why_not, self.chosen = why_not, chosen
        self.kernel: Kernel | None = Flex() if device.type == "cuda" else None
        self.announce: Callable[[str], AbstractContextManager[None]] = lambda label: nullcontext()
        self.compiling: Compiling = at_once
        self.refused = self.hindrance = ""
        self._tried: dict[object, str] = {}  # by shape, why the kernel cannot be compiled; empty if it can

    @property
    def note(self) -> str:
        """Why pages are gathered although they were to be read in place; empty otherwise."""
        why = self.refused if self._is_wanted else ""
        if self.chosen == "pages":
            why = why or self.why_not or self.hindrance
        return f"pages are gathered before they are read: {why}" if why else ""

    @property
    def _is_wanted(self) -> bool:
        return self.chosen == "pages" or (self.chosen == "auto" and self.kernel is not None)

    def choose(self, name: str) -> None:
        """Set how pages are read from now on; raises `InputError` where that is impossible."""
        check_known("paged attention", name, PAGED_ATTENTION)
        row = PAGED_ATTENTION[name]  # type: ignore[index]
        if row.name == "pages" and self.why_not:
            raise InputError(f"This model cannot read pages in place: {self.why_not}. Use auto.")
        self.chosen, self.refused = row.name, ""
        self._tried = {shape: why for shape, why in self._tried.items() if not why}

    def reader(self, cache: Any) -> PageReader | None:
        """The reader for the planned forward, so that the layers of the cache return only the new rows; None where rows
        are to be gathered, or are not in pages."""
        self.hindrance = ""
        if cache is None or not self._is_wanted or self.why_not:
            return None
        if len(self._tried) >= MOST_FAILURES and all(self._tried.values()):
            return None  # several shapes have failed and none has succeeded: no more are tried until the user chooses
        self.refused = ""
        if type(cache.layers[0]) is not PagedLayer:
            return None
        store: PageStore = cache.layers[0].store
        own = (layer.index for layer in store.geometry.layers if layer.kind != "shared")
        if not all(type(cache.layers[index]) is PagedLayer for index in own):
            return None
        if self.kernel is None and store.plans[0].num_new > 1:
            return None  # on a CPU the kernel for prompt chunks needs consecutive rows
        if not all(rows.coding.is_exact for pair in store.rows_of.values() for rows in pair):
            self.hindrance = "coded rows have to be decoded first"
            return None
        if self.kernel is not None and not all(self._takes(self.kernel, store, la) for la in store.geometry.layers):
            return None
        return PageReader(store, self.kernel)

    def _takes(self, kernel: Kernel, store: PageStore, layer: LayerGeometry) -> bool:
        """Whether the kernel can compute a layer of the planned forward. A new shape is tried on empty queries before
        the forward, so that no layer has been computed if it cannot be compiled."""
        source = source_of(layer)
        plan, pair = store.plan_of(source), store.rows_of[source]
        if min(store.page_size, layer.key_dim, layer.value_dim) < SMALLEST:
            self.hindrance = f"the kernel takes pages of {SMALLEST} tokens or more, and rows as wide"
            return False
        blocks, (keys, values) = plan.blocks(store.num_pages), (part.codes(ALL)[0][None] for part in pair)
        shape = (keys.shape, values.shape, keys.dtype, layer.num_heads, blocks.places.shape, plan.window)
        if shape not in self._tried:
            query = keys.new_zeros(len(plan.tables), layer.num_heads, plan.num_new, layer.key_dim)
            why_not = ""
            try:
                with self.announce("Compiling attention over pages"):
                    self.compiling(in_any_thread(partial(kernel, query, keys, values, blocks, 1.0)))
            except (RuntimeError, FailOnRecompileLimitHit) as error:
                if is_of_machine(error):
                    raise
                why_not = first_line(error)
            self._tried[shape] = why_not
        self.refused = self._tried[shape]
        return not self.refused


def source_of(layer: LayerGeometry) -> int:
    """The layer whose pages a layer reads: itself, or the one with which it shares K and V."""
    return layer.index if layer.shares_with is None else layer.shares_with


def why_not_in_place(geometry: CacheGeometry, captures_attention: bool, layer_devices: Sequence[str]) -> str:
    """The reason why a model cannot read pages in place, empty where it can.

    Models with latent layers (MLA) cannot: their pages hold a compressed latent instead of keys. The model computes
    keys from it for every head; a kernel would have to multiply queries with weights, which the model's own code does.
    """
    if not captures_attention or geometry.has_encoder:
        return "its attention is code of its own"
    if others := sorted({layer.kind for layer in geometry.layers} - {"full", "sliding", "shared"}):
        return f"it has layers of another kind ({', '.join(others)})"
    return "its layers are on several devices" if len(set(layer_devices)) > 1 else ""


class PageReader:
    """Computes attention over the pages of one forward, layer by layer, once their new rows are written. The layers of
    the cache then return only the new rows."""

    def __init__(self, store: PageStore, kernel: Kernel | None) -> None:
        self._store, self.kernel = store, kernel
        self._sources = {layer.index: source_of(layer) for layer in store.geometry.layers}
        for plan in store.plans.values():
            plan.is_in_place = True

    def read(
        self, layer: int, query: torch.Tensor, new_keys: torch.Tensor, asked: AttentionArguments, probe: Probe | None
    ) -> torch.Tensor:
        """Attention output `[B, T, H, D_v]` for queries `[B, H, T, D]` of a layer. Raises `InputError` where the model
        attends to other keys than it has cached."""
        source = self._sources[layer]
        plan, (keys, values) = self._store.plan_of(source), self._store.rows_of[source]
        if new_keys.shape != (len(plan.tables), keys.num_heads, plan.num_new, keys.width):
            raise InputError("This model attends to other keys than it caches: let pages be gathered.")
        probes = self._probes(probe, len(plan.tables))
        is_plain = asked[1:] == (None, None, None) and not (probe is not None and probe.wants_more)
        if self.kernel is None or not is_plain:
            parts = [self._pages(layer, plan, n, query[n : n + 1], asked, own) for n, own in enumerate(probes)]
            return parts[0] if len(parts) == 1 else torch.cat(parts)
        all_keys, all_values = (rows.codes(ALL)[0][None] for rows in (keys, values))
        read = self.kernel(query, all_keys, all_values, plan.blocks(self._store.num_pages), asked.scale)
        for number, own in enumerate(probes):
            if own is not None:  # the kernel returns no weights, so they are computed from the gathered keys
                held = keys.read(plan.reads_of[number])[None]
                newest = plan.mask_of(number, 1)
                mask = None if newest is None else newest[:, :, 0]
                own.seen[layer] = NewestQuery(query[number : number + 1, :, -1], held, mask, asked.scale)
        return read.transpose(1, 2)

    def _probes(self, probe: Probe | None, count: int) -> Sequence[Probe | None]:
        """A probe for each sequence."""
        if probe is None or count == 1:
            return [probe] * count
        return probe.parts or probe.split(count)

    def _pages(
        self,
        layer: int,
        plan: GroupPlan,
        number: int,
        query: torch.Tensor,
        asked: AttentionArguments,
        probe: Probe | None,
    ) -> torch.Tensor:
        """Attention output of one sequence, page by page; each page is read as a view."""
        keys, values = (
            [rows.codes(page)[0][None] for page in plan.pages_of[number]]
            for rows in self._store.rows_of[self._sources[layer]]
        )
        mask = plan.mask_of(number, plan.num_new)
        if asked.hidden is not None:
            mask = without_hidden(mask, asked.hidden, query, plan.tables[number].num_held_tokens, plan.num_new)
        pieces = weights_in_pieces(query, keys, mask, asked.scale, asked.softcap, asked.s_aux)
        read = [weighted_values(weights, values) for weights in record_pieces(pieces, probe, layer)]
        return read[0] if len(read) == 1 else torch.cat(read, 1)
