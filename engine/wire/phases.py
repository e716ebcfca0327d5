"""A step in phases: scheduled, forward layer by layer, chosen, written; what is known at each of them."""

from __future__ import annotations

import numpy as np
from msgspec import field

from engine.wire.message import EventMessage, Part, Variant
from engine.wire.records import Candidate, Floats, Phase


class ScheduledSequence(Part, frozen=True):
    """What a sequence is fed: `token_ids` from `first_position` on. `pages` are the page ids that were taken for their
    rows, `hit_tokens` how many of a prompt's tokens were served by pages that others had filled."""

    seq_id: int
    phase: Phase
    first_position: int
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    pages: tuple[int, ...] = ()
    hit_tokens: int = 0


class Scheduled(Variant, frozen=True):
    """It is decided who is fed what, and there is room for the new rows. `preempted` gave their pages up for it."""

    sequences: tuple[ScheduledSequence, ...]
    preempted: tuple[int, ...] = ()


class NewRow(Part, frozen=True, eq=False):
    """What a layer made of the newest token of a sequence: L2 norms `[H_kv]` of K and V as attention read them (empty
    where the layer keeps none), that of the layer's output, and the `position` that got most of its attention, in the
    mean of all heads, with its `weight`."""

    seq_id: int
    key_norm: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    value_norm: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    output_norm: float | None = None
    position: int | None = None
    weight: float | None = None


class LayerDone(Variant, frozen=True, eq=False):
    """The forward of these sequences has passed a layer: it and those before it have the new rows."""

    layer: int
    rows: tuple[NewRow, ...]


class ChosenToken(Part, frozen=True):
    """The token that comes next in a sequence, out of candidates with their raw and filtered probabilities. `seed` and
    `position` decide the draw; None: the most probable token, without one."""

    seq_id: int
    token_id: int
    text: str
    candidates: tuple[Candidate, ...]
    entropy: float
    position: int
    seed: int | None


class Chosen(Variant, frozen=True):
    """The logits are there, and the next tokens are chosen; nothing is coded or dropped yet."""

    tokens: tuple[ChosenToken, ...]


class WrittenRows(Part, frozen=True):
    """What a step left in the cache of a sequence, over all layers: rows written, older rows whose numbers it changed
    (by a codec that had waited, by rotating sinks, by computing them anew), rows dropped or left behind by a window;
    and how many pages it came to hold."""

    seq_id: int
    num_written: int
    num_rewritten: int
    num_dropped: int
    num_new_pages: int


class Written(Variant, frozen=True):
    """The step is done, and its record follows."""

    sequences: tuple[WrittenRows, ...]


StepPhase = Scheduled | LayerDone | Chosen | Written


class PhaseReached(EventMessage, frozen=True, eq=False):
    """A step that is taken in phases has come to one. But for the last, it waits there for `NextPhase`, for `Step` or
    `Run`, which finish it, or for whatever gives it up."""

    step: int
    num_layers: int
    phase: StepPhase


class SuspendedStep(Part, frozen=True):
    """A step that waits at one of its phases: behind `layer` of a forward of `seq_ids`, or, where that is None, before
    (not `is_chosen`) or behind all of them. `num_tokens` are those that each sequence has when it is done."""

    step: int
    num_layers: int
    seq_ids: tuple[int, ...]
    num_tokens: tuple[int, ...]
    layer: int | None = None
    is_chosen: bool = False

    @property
    def words(self) -> str:
        """Where it stands, short."""
        if self.layer is None:
            return f"step {self.step}: {'chosen' if self.is_chosen else 'scheduled'}"
        return f"step {self.step}: layer {self.layer} done, {self.layer + 1} of {self.num_layers}"
