"""A step phase by phase: scheduled, forward pass layer by layer, token chosen, rows written; and what is known in each
phase."""

from __future__ import annotations

import numpy as np
from msgspec import field

from engine.wire.message import EventMessage, Part, Variant
from engine.wire.records import Candidate, Floats, Phase


class ScheduledSequence(Part, frozen=True):
    """What a sequence is fed: `token_ids` from `first_position` on. `pages` are the page ids allocated for their rows,
    `hit_tokens` how many tokens of a prompt were found in cached pages."""

    seq_id: int
    phase: Phase
    first_position: int
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    pages: tuple[int, ...] = ()
    hit_tokens: int = 0


class Scheduled(Variant, frozen=True):
    """The step's sequences and tokens are decided, and there is room for the new rows. `preempted` sequences gave up
    their pages for it."""

    sequences: tuple[ScheduledSequence, ...]
    preempted: tuple[int, ...] = ()


class NewRow(Part, frozen=True, eq=False):
    """What a layer computed for the newest token of a sequence: the L2 norms `[H_kv]` of K and V as attention read them
    (empty if the layer keeps none), the norm of the layer's output, and the `position` with the most attention in the
    mean over heads, with its `weight`."""

    seq_id: int
    key_norm: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    value_norm: Floats = field(default_factory=lambda: np.zeros(0, np.float32))
    output_norm: float | None = None
    position: int | None = None
    weight: float | None = None


class LayerDone(Variant, frozen=True, eq=False):
    """The forward pass of these sequences has finished a layer: this layer and those before it have the new rows."""

    layer: int
    rows: tuple[NewRow, ...]


class ChosenToken(Part, frozen=True):
    """The chosen next token of a sequence, and the candidates with their raw and filtered probabilities. The random
    draw depends on `seed` and `position`; `seed` None means that the most probable token was taken without a draw."""

    seq_id: int
    token_id: int
    text: str
    candidates: tuple[Candidate, ...]
    entropy: float
    position: int
    seed: int | None


class Chosen(Variant, frozen=True):
    """The logits are computed and the next tokens chosen; no rows have been coded or dropped yet."""

    tokens: tuple[ChosenToken, ...]


class WrittenRows(Part, frozen=True):
    """What a step changed in the cache of a sequence, over all layers: rows written; older rows whose numbers changed
    (coded late, sinks rotated, computed again); rows dropped by a rule or a window; and pages added."""

    seq_id: int
    num_written: int
    num_rewritten: int
    num_dropped: int
    num_new_pages: int


class Written(Variant, frozen=True):
    """The step is complete, and its record follows."""

    sequences: tuple[WrittenRows, ...]


StepPhase = Scheduled | LayerDone | Chosen | Written


class PhaseReached(EventMessage, frozen=True, eq=False):
    """A step taken phase by phase has reached a phase. Except in the last one, it waits there until `NextPhase`
    continues it, `Step` or `Run` finishes it, or another command discards it."""

    step: int
    num_layers: int
    phase: StepPhase


class SuspendedStep(Part, frozen=True):
    """A step that waits in one of its phases: after `layer` in the forward pass of `seq_ids`, or, if `layer` is None,
    before the first layer or (`is_chosen`) after the last. `num_tokens` are the tokens of each sequence when the step
    is complete."""

    step: int
    num_layers: int
    seq_ids: tuple[int, ...]
    num_tokens: tuple[int, ...]
    layer: int | None = None
    is_chosen: bool = False

    @property
    def words(self) -> str:
        """The phase it waits in, in a few words."""
        if self.layer is None:
            return f"step {self.step}: {'chosen' if self.is_chosen else 'scheduled'}"
        return f"step {self.step}: layer {self.layer} done, {self.layer + 1} of {self.num_layers}"
