"""What a forward is given, and what it gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from engine.cache.attention_probe import Probe
from engine.look.measures import Measured, Wanted
from engine.model.surprisal import Surprisal

if TYPE_CHECKING:
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
    wanted: Wanted | None = None
    lengths: tuple[int, ...] | None = None
    padding: torch.Tensor | None = None
    positions: torch.Tensor | None = None
    hidden: HiddenRows = field(default_factory=dict)
    check: Callable[[], None] | None = None
    on_layer: LayerCallback | None = None
    pages: PageReader | None = None

    @property
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
    measured: Measured | None = None
    compile_s: float = 0.0
