"""The content of a saved session: everything needed to replay it, and what the user wrote about it, no tensors; and the
recorder that makes it of the events of an engine. No torch."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Protocol, cast, get_args

from msgspec import UNSET, Meta, Struct, UnsetType, field
from msgspec.structs import replace

from engine.saved.named import patch
from engine.spec.bookmark import MAX_BOOKMARKS, Bookmark
from engine.spec.cache import CacheSpec
from engine.spec.model import BUNDLED, Dtype, ModelSpec
from engine.spec.sampling import NEWEST_DRAWS, Chat, SamplingParams
from engine.wire.events import BranchDeleted, Event, NodeAdded, Redone, Restarted, StateChanged, Submitted, WentTo
from engine.wire.message import Count
from engine.wire.records import Change, PromptAppended, SequenceAdded, StepRecord, replacing_tokens
from engine.wire.status import EngineStatus, ModelInfo
from engine.wire.tree import Node

WRITTEN_BY = "KV Loupe"
VERSION = 1
MAX_DRAFT = 1 << 22  # characters
MAX_NAME = 200  # characters of the name of a branch
MAX_NAMES = 1 << 12
MAX_BREAKPOINTS = 200
MAX_BREAKPOINT = 2_000  # characters of a condition
MAX_TEXT = 1 << 12  # characters of a token
MAX_NODES = 1 << 20
MAX_VIEW = 1 << 17  # characters

Name = Annotated[str, Meta(max_length=MAX_NAME)]
Stop = Annotated[str, Meta(max_length=MAX_BREAKPOINT)]
Text = Annotated[str, Meta(max_length=MAX_TEXT)]


def now() -> str:
    """The present time as ISO 8601 in UTC."""
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")


class Head(Struct, frozen=True):
    """What a session file says first, and a journal in its first line."""

    format: str
    version: int
    created: str = ""
    written_by: str = ""


class SavedSession(Struct, frozen=True, kw_only=True):
    """A session: its model, and the tree of its nodes.

    `live` is the step of the live node (None: before the first), `pending` are the changes made since. `cache` is the
    live cache mode, `sampling` that of the next prompt. `draft` is the prompt that was being written, `draft_chat` the
    conversation, if there was one. `names` are those of branches, by the step that they begin with; `stops` are
    conditions as the user wrote them. `texts` has the text of every token id that occurs. `origin` is the snapshot file
    that the first step continued, empty if there was none. `view` is what the window showed, a JSON object of its own.
    """

    model: ModelInfo | None = None
    cache: CacheSpec = field(default_factory=CacheSpec)
    sampling: SamplingParams = SamplingParams(draws=NEWEST_DRAWS)
    draft: Annotated[str, Meta(max_length=MAX_DRAFT)] = ""
    draft_chat: Chat | None = None
    origin: str = ""
    names: Annotated[tuple[tuple[int, Name], ...], Meta(max_length=MAX_NAMES)] = ()
    bookmarks: tuple[Bookmark, ...] = ()
    stops: Annotated[tuple[Stop, ...], Meta(max_length=MAX_BREAKPOINTS)] = ()
    view: Annotated[str, Meta(max_length=MAX_VIEW)] = "{}"
    live: int | None = None
    pending: tuple[Change, ...] = ()
    texts: dict[Count, Text] = {}
    nodes: Annotated[tuple[Node, ...], Meta(max_length=MAX_NODES)] = ()

    @property
    def spec(self) -> ModelSpec:
        """What to load for the session's model; the user is asked before it is loaded."""
        return ModelSpec() if self.model is None else spec_of(self.model)

    @property
    def first_cache(self) -> CacheSpec:
        """The cache mode that the session began in."""
        return self.nodes[0].cache if self.nodes else self.cache

    @property
    def path(self) -> tuple[Node, ...]:
        """The nodes from the root to the live one."""
        by_step, found, at = {node.step: node for node in self.nodes}, [], self.live
        while at is not None and at in by_step:
            found.append(by_step[at])
            at = by_step[at].parent
        return tuple(reversed(found))

    @property
    def prompt_text(self) -> str:
        """The text of the first prompt without special tokens, or what its conversation begins with; the ids of its
        tokens where the model has no tokenizer."""
        changes = chain(chain.from_iterable(node.changes for node in self.nodes), self.pending)
        first = next((change for change in changes if isinstance(change, SequenceAdded)), None)
        if first is None:
            return ""
        if first.chat is not None:
            turns = first.chat.turns
            return next((turn.text for turn in turns if turn.role == "user"), turns[0].text)
        if self.model is not None and not self.model.has_tokenizer:
            return " ".join(map(str, first.token_ids))
        special = () if self.model is None else self.model.special_ids
        return joined_text(self.texts.get(each, "") for each in first.token_ids if each not in special)

    @property
    def newest_chat(self) -> Chat | None:
        """The conversation that was sent last; None if the newest prompt was none."""
        changes = [*chain.from_iterable(node.changes for node in self.path), *self.pending]
        sent = (each for each in reversed(changes) if isinstance(each, SequenceAdded | PromptAppended))
        return next((each.chat for each in sent), None)


BYTES = re.compile(r"(?:<[0-9A-F]{2}>)+")  # how a token is written that is a part of a character


def joined_text(texts: Iterable[str]) -> str:
    """The text of tokens in a row; characters that several tokens make are put together."""
    parts = (
        bytes.fromhex(re.sub("[<>]", " ", text)) if BYTES.fullmatch(text) else text.encode("utf-8", "surrogatepass")
        for text in texts
    )
    return b"".join(parts).decode("utf-8", "replace")


def spec_of(model: ModelInfo) -> ModelSpec:
    """The `ModelSpec` that loads a model as it was: same source, dtype, weights and number of threads."""
    dtype = cast(Dtype, model.dtype if model.dtype in get_args(Dtype) else "auto")
    return ModelSpec(model.source or BUNDLED, dtype, num_threads=model.num_threads or None, weights=model.weights)


@patch
class JournalEntry(Struct, frozen=True, kw_only=True):
    """One line of a journal: what has changed in the session. A `node` becomes the live one and clears the pending
    changes, unless the entry sets these itself; `forgotten` nodes are removed; `texts` are added to the known ones. All
    other fields, if set, replace those of the session."""

    node: Node | UnsetType = UNSET
    forgotten: tuple[int, ...] = ()
    texts: dict[int, str] = {}
    live: int | UnsetType | None = UNSET
    pending: tuple[Change, ...] | UnsetType = UNSET
    model: ModelInfo | UnsetType | None = UNSET
    cache: CacheSpec | UnsetType = UNSET
    sampling: SamplingParams | UnsetType = UNSET
    draft: str | UnsetType = UNSET
    draft_chat: Chat | UnsetType | None = UNSET
    origin: str | UnsetType = UNSET
    names: tuple[tuple[int, str], ...] | UnsetType = UNSET
    bookmarks: tuple[Bookmark, ...] | UnsetType = UNSET
    stops: tuple[str, ...] | UnsetType = UNSET
    view: str | UnsetType = UNSET


REPLACED = tuple(name for name in JournalEntry.__struct_fields__ if name not in ("node", "forgotten", "texts"))


class SessionBuilder:
    """Builds a session from journal entries, in O(1) for each."""

    def __init__(self) -> None:
        empty = SavedSession()
        self._nodes: dict[int, Node] = {}
        self._texts: dict[int, str] = {}
        self._fields = {name: getattr(empty, name) for name in REPLACED}

    def __len__(self) -> int:
        return len(self._nodes)

    def value(self, name: str) -> object:
        """The present value of a field."""
        return self._fields[name]

    def lacks_text(self, token_id: int) -> bool:
        return token_id not in self._texts

    def add(self, entry: JournalEntry) -> None:
        """Apply an entry."""
        for step in entry.forgotten:
            self._nodes.pop(step, None)
        if isinstance(entry.node, Node):
            self._nodes[entry.node.step] = entry.node
            self._fields["live"], self._fields["pending"] = entry.node.step, ()
        self._texts.update(entry.texts)
        for name in REPLACED:
            if (value := getattr(entry, name)) is not UNSET:
                self._fields[name] = value

    def session(self) -> SavedSession:
        """The session built so far."""
        return SavedSession(nodes=tuple(self._nodes.values()), texts=dict(self._texts), **self._fields)


def entries_of(session: SavedSession) -> Iterable[JournalEntry]:
    """Entries that build this session, for a journal that begins with an existing one."""
    for node in session.nodes:
        yield JournalEntry(node=node)
    yield JournalEntry(texts=session.texts, **{name: getattr(session, name) for name in REPLACED})


LIMITED: dict[str, Callable[[Any], object]] = {
    "draft": lambda draft: draft[:MAX_DRAFT],
    "names": lambda names: tuple((step, name[:MAX_NAME]) for step, name in names[:MAX_NAMES]),
    "stops": lambda stops: tuple(text for text in stops if len(text) <= MAX_BREAKPOINT)[:MAX_BREAKPOINTS],
    "view": lambda view: view if len(view) <= MAX_VIEW else "{}",
    "bookmarks": lambda bookmarks: bookmarks[:MAX_BOOKMARKS],
    "texts": lambda texts: {token_id: text[:MAX_TEXT] for token_id, text in texts.items()},
}


def within_limits(entry: JournalEntry) -> JournalEntry:
    """The entry with texts that are too long cut short, and items beyond the limits left out."""
    fields = {name: getattr(entry, name) for name in LIMITED}
    return replace(entry, **{name: LIMITED[name](value) for name, value in fields.items() if value is not UNSET})


# ---- the recorder: events of an engine as entries --------------------------------------------------------------------

# fields that the next session begins with
KEPT = ("model", "cache", "sampling", "draft", "draft_chat", "stops", "view")


class EntrySink(Protocol):
    """Where journal entries are written."""

    def begin(self) -> None:
        """Begin another session: later entries do not belong to the one before."""

    def append(self, *entries: JournalEntry) -> None:
        """Write entries."""


class SessionRecorder:
    """Builds the session from an engine's events, and writes it to a journal if there is one. Events that only show an
    opened file are ignored, and so are those of a restart (`is_repeating`), which repeat what is recorded."""

    def __init__(self, journal: EntrySink | None = None) -> None:
        self._journal = journal
        self._builder = SessionBuilder()
        self._file: Path | None = None  # the file that is open in place of a session
        self.is_repeating = False  # a restarted engine repeats steps that are recorded already

    def __len__(self) -> int:
        """The number of nodes."""
        return len(self._builder)

    @property
    def has_content(self) -> bool:
        """Whether the session holds anything that would be lost without it."""
        return bool(len(self._builder) or any(self._builder.value(name) for name in ("pending", "bookmarks", "stops")))

    def session(self) -> SavedSession:
        return self._builder.session()

    def begin(self) -> None:
        """Begin another session with the model and the settings of the one before."""
        if self._journal is not None:
            self._journal.begin()
        kept = JournalEntry(**{name: self._builder.value(name) for name in KEPT})  # type: ignore[arg-type]
        self._builder = SessionBuilder()
        self._builder.add(kept)
        if kept.draft or kept.draft_chat or kept.stops:
            # at once, not with the next node: the journal before has ended, and a kill now would lose the draft
            self._write([kept])

    def put(self, **fields: object) -> None:
        """Record what the user wrote or chose: the fields of the session that have changed."""
        entry = within_limits(JournalEntry(**fields))  # type: ignore[arg-type]
        other = {name: getattr(entry, name) for name in fields if self._builder.value(name) != getattr(entry, name)}
        if other:
            entry = JournalEntry(**other)
            self._builder.add(entry)
            self._write([entry])

    # ---- events of the engine ------------------------------------------------------------------------------------

    def take(self, events: Sequence[Event]) -> None:
        """Record those of the events that belong to the session, in one write."""
        entries: list[JournalEntry] = []
        for event in events:
            if isinstance(event, Restarted):
                self._write(entries)
                entries.clear()
                self.is_repeating = (
                    self.is_repeating and not event.reply_to
                )  # an answered restart was asked for by the user
                self._restart()
            elif (entry := self._entry(event)) is not None:
                entry = within_limits(entry) if entry.texts else entry
                self._builder.add(entry)
                entries.append(entry)
        self._write(entries)

    def _write(self, entries: Sequence[JournalEntry]) -> None:
        if entries and self._journal is not None:
            self._journal.append(*entries)

    def _restart(self) -> None:
        self._file = None
        if self.is_repeating:
            return
        if len(self._builder):
            self.begin()
        else:
            self.put(pending=(), live=None, origin="")

    def _entry(self, event: Event) -> JournalEntry | None:
        if isinstance(event, StateChanged):
            return self._of_status(event.status)
        if self._file is not None:
            return None
        if isinstance(event, Redone):
            return self._of_redone(event)
        if self.is_repeating:
            return None
        match event:
            case StepRecord():
                return JournalEntry(node=Node.of(event), texts=self._texts_of(event))
            case NodeAdded(node=node):
                texts = self._unknown(zip(replacing_tokens(node.changes), event.texts, strict=False))
                entry = JournalEntry(node=node, texts=texts)
                return entry if event.is_live else replace(entry, live=self._builder.value("live"), pending=())
            case WentTo(step=step):
                return JournalEntry(live=step, pending=())
            case BranchDeleted(steps=steps):
                return JournalEntry(forgotten=steps)
            case Submitted():
                texts = self._unknown(zip(event.token_ids, event.texts, strict=True))
                return JournalEntry(texts=texts) if texts else None
        return None

    def _of_status(self, status: EngineStatus) -> JournalEntry | None:
        """The entry for what only a status says: model, cache mode, sampling of the next prompt, pending changes; None
        if none of it has changed."""
        if status.opened is not None:
            self._file = status.opened.path
            return None
        found: dict[str, object] = {}
        if self._file is not None:  # the file was closed: a model continues it
            found["origin"], self._file = str(self._file), None
        if not self.is_repeating:
            # after an unload the session keeps its model
            reported = ("model", "cache", "sampling", "pending") if status.model is not None else ("cache", "sampling")
            found |= {name: getattr(status, name) for name in reported}
        other = {name: value for name, value in found.items() if self._builder.value(name) != value}
        return JournalEntry(**other) if other else None  # type: ignore[arg-type]

    def _of_redone(self, event: Redone) -> JournalEntry | None:
        """The entry for the end of a restart: how far it came. The nodes that it could not repeat follow as deleted
        branches."""
        self.is_repeating = False
        return JournalEntry(live=event.step) if event.why_not_all else None

    def _texts_of(self, record: StepRecord) -> dict[int, str]:
        pairs: list[tuple[int, str]] = []
        for part in record.sequences:
            pairs += zip(part.token_ids, part.texts, strict=True)
            if part.sampled is not None:
                pairs.append((part.sampled, part.sampled_text))
        return self._unknown(pairs)

    def _unknown(self, pairs: Iterable[tuple[int, str]]) -> dict[int, str]:
        """The texts of tokens that are not recorded yet."""
        return {token_id: text for token_id, text in pairs if self._builder.lacks_text(token_id)}
