"""Records the events of an engine as journal entries, so that the session can be saved and restored. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from engine.saved.session import JournalEntry, SavedSession, SessionBuilder, within_limits
from engine.wire.events import BranchDeleted, Event, NodeAdded, Redone, Restarted, StateChanged, Submitted, WentTo
from engine.wire.records import StepRecord, replacing_tokens
from engine.wire.status import EngineStatus
from engine.wire.tree import Node

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
