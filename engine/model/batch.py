"""What a forward is given, and what it gives: among it the surprisal of the tokens of a chunk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch.nn.functional import cross_entropy

from engine.cache.attention_probe import Probe
from engine.errors import Check
from engine.look.measures import PackedMeasures, WantedMeasures

if TYPE_CHECKING:
    from engine.model.runners.decoder import DeferredOutputs
    from engine.model.runners.pages import PageReader


HiddenRows = Mapping[int, torch.Tensor]
# called after each layer with its index and its output [B, T, hidden]
LayerCallback = Callable[[int, torch.Tensor], None]


class AttentionArguments(NamedTuple):
    """How a layer attends: scale of the scores, soft cap, sink logits, and rows hidden from it `[H_kv, R]`."""

    scale: float
    softcap: float | None = None
    s_aux: torch.Tensor | None = None
    hidden: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Batch:
    """The tokens of one forward, and what is asked of it.

    `ids` `[B, T]` follow the tokens in `cache`, the object that the model is called with (None: nothing is cached); the
    host may not have read them yet. For several sequences in pages, `lengths` are their numbers of tokens so far, and T
    is 1. In any other batch of several, `padding` `[B, S + T]` is 0 at rows that are not read, and `positions` `[B, T]`
    are those of the tokens.

    `probe` records attention weights, `surprisal` reads the last layer's output of a chunk of one sequence, and a
    recorded step measures itself what is `wanted`. No query reads the rows `hidden` `[H_kv, S]` by layer. `check` is
    called in every layer whose attention is ours and raises to end the forward, `on_layer` is called after every layer;
    what has been written to the cache by then stays there. With `pages`, rows are read in place.
    """

    ids: torch.Tensor
    cache: Any
    probe: Probe | None = None
    surprisal: Surprisal | None = None
    wanted: WantedMeasures | None = None
    lengths: tuple[int, ...] | None = None
    padding: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    hidden: HiddenRows = field(default_factory=dict)
    check: Check | None = None
    on_layer: LayerCallback | None = None
    pages: PageReader | None = None

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of tokens of each sequence before this forward."""
        return (self.cache.get_seq_length(),) if self.lengths is None else self.lengths

    @property
    def is_plain_step(self) -> bool:
        """Whether it is one more token for each sequence, and nothing is asked that happens between the layers: such a
        step can be recorded or compiled."""
        probe = self.probe
        return (
            self.ids.shape[1] == 1
            and self.padding is None
            and self.on_layer is None
            and self.surprisal is None
            and not self.hidden
            and not (probe is not None and (probe.wants_more or probe.timer))
        )


class Result(NamedTuple):
    """The newest logits `[B, 1, V]` of a batch, valid until the next forward, the names of the `runners` that computed
    it, what a recorded step `measured`, and the seconds that torch.compile took meanwhile."""

    logits: torch.Tensor
    runners: tuple[str, ...]
    measured: PackedMeasures | None = None
    compile_s: float = 0.0


# ---- surprisal (-log p) of the tokens of a chunk, computed from a few rows of logits at a time ----------------------


OutputHead = Callable[[torch.Tensor], torch.Tensor]
# the last layer's output for a chunk, `[1, T, hidden]`: a tensor, or an object that computes the requested part
Outputs: TypeAlias = "torch.Tensor | DeferredOutputs"
# numbers in the logits held at once: those of a whole prompt would take gigabytes, and leave the CPU's caches
SLICE_LOGITS = 1 << 23
SLICE_PRODUCTS = 2 * 10**9  # multiplications of a slice, about 50 ms of two cores: the longest that a command waits
LEAST_ROWS = 8  # of a slice: reading the head's weights takes as long for one row as for a few
PRODUCTS_IN_STEP = 2 * 10**8  # most multiplications inside a step, about 5 ms of two cores, by which the token is later


class Surprisal:
    """-log p of every token of a chunk but its first, each under the logits of the token before it.

    It is passed to a forward, which has it `read` the last layer's output. If the computation takes long, the output is
    only kept, so that the first token is not delayed; the caller then calls `advance` when it has time, while
    `is_waiting`. With `may_wait` False everything is computed inside the forward. The numbers are the same.
    """

    def __init__(self, token_ids: Sequence[int], vocab_size: int, *, may_wait: bool = False) -> None:
        self._targets = torch.tensor(token_ids[1:], dtype=torch.long)
        self._vocab_size, self._may_wait = vocab_size, may_wait
        self._hidden: Outputs | None = None  # the last layer's output, until all of it is read
        self._first = 0  # index in it of the chunk's first token
        self._head: OutputHead | None = None
        self._parts: list[torch.Tensor] = []
        self._num_read = 0

    def read(self, hidden: Outputs, head: OutputHead, check: Check | None = None) -> None:
        """Take the last layer's output `[1, T, hidden]`, which ends with the chunk, or an object that computes it.
        `head` computes logits `[1, t, V]` of some rows of it; `check` is called before each call of `head`, and raises
        to end the computation."""
        count, length = len(self._targets), hidden.shape[1]
        waits = self._may_wait and count * hidden.shape[-1] * self._vocab_size > PRODUCTS_IN_STEP
        if isinstance(hidden, torch.Tensor):
            rows = hidden.narrow(1, length - count - 1, count)
            self._hidden = rows.clone() if waits and length > count + 1 else rows
        else:
            self._hidden, self._first = hidden.clone() if waits else hidden, length - count - 1
        self._head = head
        if waits:
            return
        while self.is_waiting:
            if check is not None:
                check()
            self.advance()

    def read_logits(self, logits: torch.Tensor) -> None:
        """Take all logits `[1, T, V]` of the chunk, of a model whose head cannot be called alone."""
        self._may_wait = False
        self.read(logits, lambda rows: rows)

    @property
    def is_waiting(self) -> bool:
        """Whether some values are still to be computed."""
        return self._hidden is not None

    @property
    def num_bytes(self) -> int:
        """Bytes kept until all values are computed."""
        return 0 if self._hidden is None else self._hidden.nbytes

    @torch.inference_mode()
    def advance(self) -> torch.Tensor:
        """Compute and return the next slice of values. After the last one, the kept output is freed."""
        assert self._hidden is not None
        assert self._head is not None
        begin, size = self._num_read, self._slice_rows(self._hidden.shape[-1])
        targets = self._targets[begin : begin + size]
        logits = self._head(self._hidden.narrow(1, self._first + begin, len(targets)))[0].float()
        part = cross_entropy(logits, targets.to(logits.device), reduction="none")
        self._parts.append(part)
        self._num_read += len(targets)
        if self._num_read == len(self._targets):
            self._hidden = self._head = None
        return part

    def _slice_rows(self, width: int) -> int:
        by_time = max(LEAST_ROWS, SLICE_PRODUCTS // (width * self._vocab_size))
        return max(1, min(SLICE_LOGITS // self._vocab_size, by_time))

    @property
    def values(self) -> list[float | None]:
        """One value for each token but the first, None where it is not computed yet."""
        known: list[float] = torch.cat(self._parts).tolist() if self._parts else []
        return [*known, *[None] * (len(self._targets) - len(known))]


def head_of(model: Any, body_output: Any) -> OutputHead:
    """The head of a transformers model, with all that its architecture does to logits. It calls the model itself, with
    a body that returns the given rows in an output of the same class as `body_output`."""
    body, kind = model.get_decoder(), type(body_output)  # keep no reference to the output: it holds the cache

    def head(rows: torch.Tensor) -> torch.Tensor:
        body.forward = lambda *arguments, **named: kind(last_hidden_state=rows)
        try:
            ids = torch.zeros(rows.shape[:2], dtype=torch.long, device=rows.device)
            logits: torch.Tensor = model(ids, use_cache=False).logits
        finally:
            del body.forward
        return logits

    return head
