"""How an engine stands: its model, its sequences, what it is at."""

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
from engine.wire.records import SequenceState, StopReason
from engine.wire.stopping import StopHit, StopState
from engine.wire.tree import BranchBytes


class ModelInfo(Part, frozen=True):
    """The loaded model. `fingerprint` identifies its weights and config. `goes_beyond_context`: with a cache that keeps
    a window, it can be fed more tokens than its context has. `templates` are the names of its chat templates, the
    default first; `special_ids` the tokens that mark a place and are no text, as many of them as are told.
    `why_device` says why it is there, where nobody chose; `layer_devices` is one for each layer, empty where all are on
    `device`."""

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
    """Which runner is to compute the forwards, by its name in `engine.spec.runners`, and those that the model cannot
    have, each with the reason. `note` says why another one is used, empty where that is not so. `pages` is how
    attention is to read pages."""

    chosen: RunnerName = "auto"
    refused: tuple[tuple[RunnerName, str], ...] = ()
    note: str = ""
    pages: PagedAttentionName = "auto"
    refused_pages: tuple[tuple[PagedAttentionName, str], ...] = ()


class CaptureState(Part, frozen=True):
    """How much is measured of every step, and what that has cost a decode step at each level that was used so far, in
    milliseconds. `note` says why what is measured leaves the device in a slower way than it could."""

    level: CaptureLevel = DEFAULT_CAPTURE
    by_layer: bool = False
    costs_ms: tuple[tuple[CaptureLevel, float], ...] = ()
    note: str = ""


class SequenceInfo(Part, frozen=True):
    """Where a sequence stands. The page numbers are 0 outside paged layouts; `why_not_reused` explains the part of its
    prompt that was computed although others may have had it before: a reason found at admission, or in words.
    `sampling` is how its tokens are chosen."""

    seq_id: int
    state: SequenceState
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
    """Something that takes a while: what, how far (None: unknown), and whether it can be cancelled. `reply_to` is
    the id of the command that is being worked on, `left_s` what is left at the pace so far, where that can be told.
    `bytes_per_s` is the pace of what is counted in bytes, None where something else is. Where it `is_loading`, a model
    comes with a session of its own: what is asked for meanwhile would reach that one."""

    label: str
    done: int
    total: int | None
    can_cancel: bool = True
    reply_to: int | None = None
    left_s: float | None = None
    bytes_per_s: float | None = None
    is_loading: bool = False


class OpenedFile(Part, frozen=True):
    """A snapshot that is looked at without its model: `model` is the name of that, `num_steps` how many steps were
    recorded; `why_not` says why decoding cannot go on from it, empty where it can with the model. `foreign_cache`:
    what the file calls a cache of which it says no mode, None where it says one. A session that was written down
    `has_rows` no: its steps are known, and its K and V only with the model."""

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
    """All of the engine's state that is not history. `step` is the newest step done, None before the first; `sampling`
    is what the next prompt takes that brings none of its own. `opened`: there is no live session but a file, and the
    `model` is what that says of its own. `pending` is what was done since the live moment: the next node takes it.
    `halted_by` is what ended the last run, None where no stop did; `suspended` is a step that waits between two of its
    phases. `kept` are the moments that can be gone to as they stand, besides the live one: they take `kept_bytes` of
    their own, and beyond `kept_limit` the one that rested longest is let go."""

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
