"""The status of an engine: its model, its sequences, its work in progress."""

from __future__ import annotations

from pathlib import Path

from msgspec import field

from engine.geometry.dimensions import CacheGeometry
from engine.spec.cache import CacheSpec
from engine.spec.capture import DEFAULT_CAPTURE, CaptureLevel
from engine.spec.model import WeightFormat
from engine.spec.runners import PagedAttentionName, RunnerName
from engine.spec.sampling import SamplingParams
from engine.wire.changes import Change
from engine.wire.message import Part
from engine.wire.phases import SuspendedStep
from engine.wire.prefix_match import WhyNotReused
from engine.wire.records import SequencePhase, StopReason
from engine.wire.stopping import StopHit, StopState
from engine.wire.tree import BranchBytes


class ModelInfo(Part, frozen=True):
    """The loaded model. `fingerprint` identifies its weights and config. `goes_beyond_context`: with a cache that keeps
    a window, it can be fed more tokens than its context length. `templates` are the names of its chat templates, the
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


class RunnerState(Part, frozen=True):
    """The chosen runner, by its name in `engine.spec.runners`, and those that the model cannot use, with the reasons.
    `note` says why another runner is used than the chosen one, empty if not. `pages` is the chosen way of reading
    pages."""

    chosen: RunnerName = "auto"
    refused: tuple[tuple[RunnerName, str], ...] = ()
    note: str = ""
    pages: PagedAttentionName = "auto"
    refused_pages: tuple[tuple[PagedAttentionName, str], ...] = ()


class CaptureState(Part, frozen=True):
    """How much is measured in every step, and what that cost per decode step, in milliseconds, at each level used so
    far. `note` says why measurements leave the device in a slower way than possible; empty if they do not."""

    level: CaptureLevel = DEFAULT_CAPTURE
    by_layer: bool = False
    costs_ms: tuple[tuple[CaptureLevel, float], ...] = ()
    note: str = ""


class SequenceInfo(Part, frozen=True):
    """The state of a sequence. The numbers of pages are 0 outside paged layouts. `why_not_reused` explains why tokens
    of its prompt were computed that cached pages might have served: a reason found at admission, or a text. `sampling`
    is how its tokens are chosen."""

    seq_id: int
    state: SequencePhase
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


class Work(Part, frozen=True):
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


class OpenedFile(Part, frozen=True):
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


class EngineStatus(Part, frozen=True):
    """All state of the engine that is not history.

    `step` is the newest step, None before the first; `sampling` is the default for prompts that bring none. With
    `opened`, a file is shown instead of a live session, and `model` is what the file says of its model. `pending` are
    changes since the live moment, which will be part of the next node. `halted_by` is the stop that ended the last run,
    None if none did; `suspended` is a step that waits in one of its phases. `kept` are the moments, besides the live
    one, that can be restored without computing; they take `kept_bytes` of their own, and beyond `kept_limit` the least
    recently used one is dropped.
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
    stops: tuple[StopState, ...] = ()
    halted_by: StopHit | None = None
    suspended: SuspendedStep | None = None
    kept: tuple[BranchBytes, ...] = ()
    kept_bytes: int = 0
    kept_limit: int = 0
    runner: RunnerState = RunnerState()
    capture: CaptureState = CaptureState()
