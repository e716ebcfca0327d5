"""What the engine says: its state, answers to commands, and what failed."""

from __future__ import annotations

from engine.spec.bookmark import Bookmark
from engine.spec.cache import CacheSpec
from engine.spec.chat import Chat
from engine.spec.sampling import SamplingParams
from engine.wire.devices import DevicesFound, LoadForecast, Unloaded
from engine.wire.duel import DuelEnded, DuelScanned, DuelStarted, DuelStep
from engine.wire.edits import EditMeasured
from engine.wire.exporting import ExportCancelled, Exported, ExportEstimate
from engine.wire.measurements import Benched, DamageMap, ParityReport, Regret, Swept, WhatIfAnswer
from engine.wire.message import EventMessage, Part
from engine.wire.page_events import PageEvent
from engine.wire.page_map import PoolStep
from engine.wire.phases import PhaseReached
from engine.wire.prefix_match import ContinuedFrom
from engine.wire.records import CacheBytes, StepRecord
from engine.wire.slices import (
    AttentionSlice,
    CellUpdate,
    HeadSlice,
    OutliersSlice,
    RowSlice,
    TableSlice,
    Unchanged,
    WallSlice,
)
from engine.wire.status import EngineStatus
from engine.wire.stopping import AttentionMeasured, StopHit
from engine.wire.tree import Node


class StateChanged(EventMessage, frozen=True):
    status: EngineStatus


class Restarted(EventMessage, frozen=True):
    """History begins anew: a new run or another model."""


class SessionOpened(EventMessage, frozen=True):
    """What a person wrote and chose in the session that was opened: the prompt that was being written, how the next is
    sampled, names of branches by their first moment, bookmarks, conditions to stop at, and what the window looked at, a
    JSON object."""

    draft: str
    sampling: SamplingParams
    names: tuple[tuple[int, str], ...] = ()
    bookmarks: tuple[Bookmark, ...] = ()
    stops: tuple[str, ...] = ()
    draft_chat: Chat | None = None
    view: str = "{}"


class Submitted(EventMessage, frozen=True):
    """A prompt was taken as a sequence of these tokens. The status that has it was told before. `note` is what one
    might not expect of how they were made."""

    seq_id: int
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    note: str = ""


class Previewed(EventMessage, frozen=True):
    """A prompt as it would be taken: its tokens, and the `text` that they are of. `note` says what one might not expect
    of it; `answer` is what the sequence that it would follow has generated, without special tokens, and `reuse` how
    much of its cache would be kept."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    text: str = ""
    note: str = ""
    answer: str = ""
    reuse: ContinuedFrom | None = None


class ForkMade(EventMessage, frozen=True):
    """Sequence `child` begins with the `num_tokens` tokens that `parent` had after `step` (None: nothing was stepped
    yet), those included that have no rows in the cache: it may wait for room, or its prompt not be read to its end.
    What the records up to that step, their attention and their logits say of the parent, they say of the child. The
    status that has it was told before; `how` says how its cache was made."""

    parent: int
    child: int
    step: int | None
    num_tokens: int
    how: str


class WentTo(EventMessage, frozen=True):
    """The moment after `step` (None: before the first) is the live one; `how` says how the cache came there."""

    step: int | None
    how: str
    took_ms: float


class NodeAdded(EventMessage, frozen=True):
    """The history tree has a node that no step made: an edit, or what was done since a step and left for another
    moment. It is the live one if `is_live`; `kl` is the divergence in nats of the next token's distribution after the
    edit from that before, where both are known. `texts` are those of the tokens that an edit put into the text."""

    node: Node
    is_live: bool
    how: str = ""
    kl: float | None = None
    texts: tuple[str, ...] = ()


class BranchDeleted(EventMessage, frozen=True):
    """These nodes of the history tree are forgotten."""

    steps: tuple[int, ...]


class PromptSurprisal(EventMessage, frozen=True):
    """Surprisals in nats of a long prompt's tokens from `first_position` on, which the record of a step left open: they
    are computed when the engine rests. Forks of the sequence have the same tokens."""

    step: int
    seq_id: int
    first_position: int
    values: tuple[float, ...]


class StepRedone(EventMessage, frozen=True):
    """A step of an engine that is gone was done once more: what it did to the pages of this one."""

    step: int
    page_events: tuple[PageEvent, ...]
    pools: tuple[PoolStep, ...]


class Redone(EventMessage, frozen=True):
    """The nodes of an engine that is gone were done once more, and the one after `step` (None: none) is the live one.
    `why_not_all` says why those after it were not, whose tokens come next then; `why_not_exact` where another token
    would have been chosen, or K and V are others. `num_computed_anew` tokens were in pages of an earlier run: their
    rows are exact but for rounding."""

    step: int | None
    num_steps: int
    took_ms: float
    why_not_all: str = ""
    num_computed_anew: int = 0
    why_not_exact: str = ""


class CacheChanged(EventMessage, frozen=True):
    """The live sequences now live in another cache: how they came there, in how long, with how many bytes."""

    cache: CacheSpec
    how: str
    took_ms: float
    num_bytes: CacheBytes


class Tokenized(EventMessage, frozen=True):
    """The tokens of a text."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]


class LocalModel(Part, frozen=True):
    """A model that is on this computer. `bytes_per_token` is what one token of K and V costs in its own dtype."""

    name: str
    source: str
    architecture: str
    size_bytes: int
    bytes_per_token: int | None


class ModelsFound(EventMessage, frozen=True):
    models: tuple[LocalModel, ...]


class Failed(EventMessage, frozen=True):
    """Something that was asked could not be done; everything is as it was before. `can_rebuild`: asked with `rebuild`,
    the question can be answered."""

    message: str
    can_rebuild: bool = False


class Stopped(EventMessage, frozen=True):
    """The engine has ended, as it was asked to."""


class EngineLost(EventMessage, frozen=True):
    """The engine is gone or does not get on: `cause` in a sentence without its full stop. `has_ended` False: it may
    come back, and then goes on as before."""

    cause: str
    has_ended: bool = True


class EngineBusy(EventMessage, frozen=True):
    """The engine lives and has not got on for so many seconds: `what` it is busy with, empty when it got on."""

    what: str
    seconds: int


class EngineBack(EventMessage, frozen=True):
    """An engine that did not answer for a while does again, and goes on as before."""


Event = (
    StepRecord
    | WallSlice
    | HeadSlice
    | AttentionSlice
    | RowSlice
    | TableSlice
    | OutliersSlice
    | CellUpdate
    | Unchanged
    | StateChanged
    | StopHit
    | AttentionMeasured
    | Restarted
    | SessionOpened
    | Submitted
    | Previewed
    | ForkMade
    | WentTo
    | NodeAdded
    | EditMeasured
    | BranchDeleted
    | PhaseReached
    | PromptSurprisal
    | StepRedone
    | Redone
    | CacheChanged
    | Tokenized
    | Exported
    | ExportCancelled
    | ExportEstimate
    | ModelsFound
    | DevicesFound
    | LoadForecast
    | Unloaded
    | WhatIfAnswer
    | ParityReport
    | DamageMap
    | Regret
    | Swept
    | Benched
    | DuelStarted
    | DuelStep
    | DuelScanned
    | DuelEnded
    | Failed
    | Stopped
    | EngineLost
    | EngineBusy
    | EngineBack
)
