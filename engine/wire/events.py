"""The events of the engine: its status, answers to commands, and failures."""

from __future__ import annotations

from engine.spec.bookmark import Bookmark
from engine.spec.cache import CacheSpec
from engine.spec.sampling import Chat, SamplingParams
from engine.wire import breakpoints, comparison, devices, exporting, measurements, pictures, serving  # noqa: F401  # EVENTS has theirs too
from engine.wire.message import Answer, Command, Nested
from engine.wire.message import Event as Event
from engine.wire.pages import ContinuedFrom, PageEvent, PoolStep
from engine.wire.records import CacheBytes
from engine.wire.status import EngineStatus
from engine.wire.tree import Node


class StateChanged(Event, frozen=True):
    """The status of the engine has changed."""

    status: EngineStatus


class Restarted(Event, frozen=True):
    """A new history begins: a new run or another model."""


class SessionOpened(Event, frozen=True):
    """What a person had written and chosen in the session that was opened: the draft of a prompt, the sampling of the
    next prompt, names of branches by their first step, bookmarks, the texts of breakpoints, and the state of the window
    as a JSON object."""

    draft: str
    sampling: SamplingParams
    names: tuple[tuple[int, str], ...] = ()
    bookmarks: tuple[Bookmark, ...] = ()
    stops: tuple[str, ...] = ()
    draft_chat: Chat | None = None
    view: str = "{}"


class Submitted(Event, frozen=True):
    """A prompt was accepted as a sequence with these tokens. The status that lists it was sent before. `note` says what
    may be unexpected about the tokens."""

    seq_id: int
    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    note: str = ""


class Previewed(Answer, frozen=True):
    """The tokens a prompt would have, and the `text` they are made from. `note` says what may be unexpected about them;
    `answer` is the text that the sequence it would follow has generated, without special tokens; `reuse` says how much
    of its cache would be kept."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]
    text: str = ""
    note: str = ""
    answer: str = ""
    reuse: ContinuedFrom | None = None


class ForkMade(Event, frozen=True):
    """Sequence `child` was forked from `parent` and begins with the `num_tokens` tokens that it had after `step` (None:
    before the first step). Some may have no rows in the cache yet: the parent may wait for room, or its prompt may not
    be read to its end. Whatever the records up to that step say about the parent is true of the child as well. The
    status that lists it was sent before; `how` says how its cache was made."""

    parent: int
    child: int
    step: int | None
    num_tokens: int
    how: str


class WentTo(Event, frozen=True):
    """The state after `step` (None: before the first) is now the live one; `how` says how the cache was restored, and
    `num_bytes` what it holds now, None where nothing is computed."""

    step: int | None
    how: str
    took_ms: float
    num_bytes: CacheBytes | None = None


class NodeAdded(Event, frozen=True):
    """A node was added to the history tree without a step: an edit, or the changes made since a step when another
    step was visited. `is_live`: it is the live step. `kl` is the divergence, in nats, of the next token's
    distribution after an edit from that before, None if one is unknown. `texts` are those of the tokens that an edit
    put into a sequence."""

    node: Node
    is_live: bool
    how: str = ""
    kl: float | None = None
    texts: tuple[str, ...] = ()


class BranchDeleted(Event, frozen=True):
    """These nodes of the history tree were deleted."""

    steps: tuple[int, ...]


class PromptSurprisal(Event, frozen=True):
    """Surprisals, in nats, of a long prompt's tokens from `first_position` on. The record of the step leaves them open;
    they are computed when the engine is idle. They hold for forks of the sequence too."""

    step: int
    seq_id: int
    first_position: int
    values: tuple[float, ...]


class StepRedone(Event, frozen=True):
    """A step of a lost engine was repeated; this is what it did to the pages of the new engine."""

    step: int
    page_events: tuple[PageEvent, ...]
    pools: tuple[PoolStep, ...]


class Redone(Event, frozen=True):
    """The nodes of a lost engine were repeated, and the one after `step` (None: none) is the live one. `why_not_all`
    says why the later ones were not; their tokens are computed next instead. `why_not_exact` says that another token
    would have been chosen, or that K and V differ. `num_computed_anew` tokens had been in cached pages of an earlier
    run; their recomputed rows are equal within rounding."""

    step: int | None
    num_steps: int
    took_ms: float
    why_not_all: str = ""
    num_computed_anew: int = 0
    why_not_exact: str = ""


class CacheChanged(Event, frozen=True):
    """The live sequences were moved into another cache mode: how, in which time, and with how many bytes."""

    cache: CacheSpec
    how: str
    took_ms: float
    num_bytes: CacheBytes


class Tokenized(Answer, frozen=True):
    """The tokens of a text."""

    token_ids: tuple[int, ...]
    texts: tuple[str, ...]


class LocalModel(Nested, frozen=True):
    """A model that is on this computer. `bytes_per_token` are those of K and V of one token in the model's own
    dtype."""

    name: str
    source: str
    architecture: str
    size_bytes: int
    bytes_per_token: int | None


class ModelsFound(Answer, frozen=True):
    """The models on this computer, as asked for by `FindModels`."""

    models: tuple[LocalModel, ...]


class FolderListed(Answer, frozen=True):
    """A folder on the engine's machine, as asked for by `ListFolder`: its whole path, and the names in it but for
    hidden ones."""

    path: str
    folders: tuple[str, ...]
    files: tuple[str, ...]


class Done(Answer, frozen=True):
    """The last word of a command that was carried out and whose answers, if any, were sent. For one that asks for steps
    it comes after the last of them, or when a later command takes over."""


class Cancelled(Answer, frozen=True):
    """The last word of a command that was cancelled, or replaced by a newer one before it was begun."""


class Failed(Event, frozen=True):
    """A command could not be carried out; nothing has changed."""

    message: str


def word_of_cancelled(command: Command) -> Cancelled | Failed:
    """The last word of a command that was cancelled."""
    return Failed(command.facts.when_cancelled) if command.facts.when_cancelled else Cancelled()


class Stopped(Answer, frozen=True):
    """The engine has ended on request."""


class EngineLost(Event, frozen=True):
    """The engine has died or does not respond; `cause` is a sentence without its full stop. `has_ended` False: it may
    respond again and go on."""

    cause: str
    has_ended: bool = True


class EngineBusy(Event, frozen=True):
    """The engine lives but has made no progress for `seconds`; `what` is the work it is busy with, empty once it makes
    progress again."""

    what: str
    seconds: int


class EngineBack(Event, frozen=True):
    """An engine that had not responded for a while responds again."""


class EngineLine(Event, frozen=True):
    """The engine is on another machine, which has these versions of packages, and an answer from there takes so long.
    The client says so every few seconds."""

    machine: str
    delay_ms: float
    versions: str = ""


EVENTS: tuple[type[Event], ...] = (
    *(each for each in Event.__subclasses__() if each is not Answer),
    *Answer.__subclasses__(),
)
