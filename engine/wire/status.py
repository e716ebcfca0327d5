"""The status of an engine: its model, its sequences, its work in progress, and the phases of a suspended step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec import field

from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec
from engine.spec.model import DEFAULT_CAPTURE, CaptureLevel, PagedAttentionName, RunnerName, WeightFormat
from engine.spec.sampling import SamplingParams
from engine.wire.breakpoints import BreakpointHit, BreakpointState
from engine.wire.message import Event, Nested, Variant
from engine.wire.pages import WhyNotReused
from engine.wire.records import Candidate, Change, Floats, Phase, SequencePhase, StopReason
from engine.wire.tree import KeptStateBytes


class ScheduledSequence(Nested, frozen=True):
    """What a sequence computes: `token_ids` from `first_position` on. `pages` are the page ids allocated for their
    rows, `hit_tokens` how many tokens of a prompt were found in cached pages."""

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


class NewRow(Nested, frozen=True, eq=False):
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


class ChosenToken(Nested, frozen=True):
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
    """The logits are computed and the next tokens chosen; no rows have been coded or evicted yet."""

    tokens: tuple[ChosenToken, ...]


class WrittenRows(Nested, frozen=True):
    """What a step changed in the cache of a sequence, summed over its layers: rows written, in `num_layers` of them;
    older rows whose numbers changed (coded late, sinks rotated, computed again); rows evicted by a rule or a window;
    and pages added. `num_in_each`: the rows written in each of these layers; None if not all write equally many."""

    seq_id: int
    num_written: int
    num_rewritten: int
    num_evicted: int
    num_new_pages: int
    num_layers: int
    num_in_each: int | None = None


class Written(Variant, frozen=True):
    """The step is complete, and its record follows."""

    sequences: tuple[WrittenRows, ...]


StepPhase = Scheduled | LayerDone | Chosen | Written


class PhaseReached(Event, frozen=True, eq=False):
    """A step taken phase by phase has reached a phase. Except in the last one, it waits there until `NextPhase`
    continues it, `Step` or `Run` finishes it, or another command discards it."""

    step: int
    num_layers: int
    phase: StepPhase


class SuspendedStep(Nested, frozen=True):
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


class ModelInfo(Nested, frozen=True):
    """The loaded model. `fingerprint` identifies its weights and config. `goes_beyond_context`: with a cache that keeps
    a window, it can be given more tokens than its context length. `templates` are the names of its chat templates, the
    default first; `special_ids` are tokens that are markers and not text, up to a limit. `why_device` gives the reason
    for an automatic choice of the device; `layer_devices` has one device per layer, empty if all are on `device`."""

    name: str
    source: str
    architecture: str
    geometry: CacheGeometry
    dtype: str
    device: str
    num_threads: int
    num_parameters: int
    weight_bytes: int
    random_weights: bool
    has_tokenizer: bool
    captures_attention: bool
    fingerprint: str
    note: str
    goes_beyond_context: bool = False
    templates: tuple[str, ...] = ()
    special_ids: tuple[int, ...] = ()
    weights: WeightFormat = "stored"
    why_device: str = ""
    layer_devices: tuple[str, ...] = ()
    text_fingerprint: str = ""


class RunnerState(Nested, frozen=True):
    """The chosen runner, by its name in `engine.spec.model`, and those that the model cannot use, with the reasons.
    `note` says why another runner is used than the chosen one, empty if not. `pages` is the chosen way of reading
    pages."""

    chosen: RunnerName = "auto"
    refused: tuple[tuple[RunnerName, str], ...] = ()
    note: str = ""
    pages: PagedAttentionName = "auto"
    refused_pages: tuple[tuple[PagedAttentionName, str], ...] = ()


class CaptureState(Nested, frozen=True):
    """How much is measured in every step, and what that cost per decode step, in milliseconds, at each level used so
    far. `note` says why measurements leave the device in a slower way than possible; empty if they do not."""

    level: CaptureLevel = DEFAULT_CAPTURE
    by_layer: bool = False
    costs_ms: tuple[tuple[CaptureLevel, float], ...] = ()
    note: str = ""


class SequenceInfo(Nested, frozen=True):
    """The state of a sequence. The numbers of pages are 0 outside paged layouts. `why_not_reused` explains why tokens
    of its prompt were computed that cached pages might have served: a reason found at admission, or a text. `sampling`
    is how its tokens are chosen."""

    seq_id: int
    phase: SequencePhase
    num_tokens: int
    num_prompt_tokens: int
    sampled: int | None
    stop: StopReason | None
    num_pages: int = 0
    num_shared_pages: int = 0
    hit_tokens: int = 0
    num_preemptions: int = 0
    why_not_reused: WhyNotReused | str | None = None
    sampling: SamplingParams = field(default_factory=SamplingParams)


class Work(Nested, frozen=True):
    """A lengthy task in progress: its label, progress (`total` None: unknown), and whether it can be cancelled.
    `reply_to` is the id of its command; `left_s` the estimated seconds left, None if unknown; `bytes_per_s` the speed
    if bytes are counted, else None. `is_loading`: a model with a new session is being loaded, which commands sent
    meanwhile would reach."""

    label: str
    done: int
    total: int | None
    can_cancel: bool = True
    reply_to: int | None = None
    left_s: float | None = None
    bytes_per_s: float | None = None
    is_loading: bool = False


class OpenedFile(Nested, frozen=True):
    """A snapshot that is shown without its model. `model` is the name of its model, `num_steps` the number of recorded
    steps. `why_not` says why decoding cannot continue from it; empty if it can with the model. `foreign_cache` is the
    name of its cache if that is not one of our modes, else None. `has_rows` False: a recorded session, whose steps are
    known but whose K and V need the model."""

    path: Path
    num_bytes: int
    model: str
    num_steps: int
    why_not: str
    notes: str
    created: str
    written_by: str
    foreign_cache: str | None = None
    has_rows: bool = True


class EngineStatus(Nested, frozen=True):
    """All state of the engine that is not history.

    `step` is the newest step, None before the first; `sampling` is the default for prompts that bring none. With
    `opened`, a file is shown instead of a live session, and `model` is what the file says of its model. `pending` are
    changes since the live step, which will be part of the next node. `halted_by` is the breakpoint that ended the
    last run, None if none did; `suspended` is a step that waits in one of its phases. `kept` are the steps, besides the
    live one, that can be restored without computing; they take `kept_bytes` of their own, and beyond `kept_limit` the
    least recently used one is dropped.
    """

    model: ModelInfo | None
    cache: CacheSpec
    sampling: SamplingParams
    sequences: tuple[SequenceInfo, ...]
    step: int | None
    running: bool
    work: Work | None
    opened: OpenedFile | None = None
    pending: tuple[Change, ...] = ()
    breakpoints: tuple[BreakpointState, ...] = ()
    halted_by: BreakpointHit | None = None
    suspended: SuspendedStep | None = None
    kept: tuple[KeptStateBytes, ...] = ()
    kept_bytes: int = 0
    kept_limit: int = 0
    runner: RunnerState = RunnerState()
    capture: CaptureState = CaptureState()
