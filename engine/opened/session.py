"""A session file that is shown without its model: its tokens and its history tree, but no rows. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry, LayerGeometry
from engine.history.state import UNKNOWN, SequenceState, States, apply, step
from engine.saved.document import Unusable, read_session
from engine.saved.session import SavedSession
from engine.spec.model import ModelSpec
from engine.spec.sampling import SamplingParams
from engine.wire.events import Event, ForkMade, NodeAdded, SessionOpened, Submitted, WentTo
from engine.wire.measurements import EditMeasured
from engine.wire.records import SequenceAdded, SequenceForked, SequencePhase, SequenceStep, StepRecord, replacing_tokens
from engine.wire.status import EngineStatus, ModelInfo, OpenedFile, SequenceInfo, Work
from engine.wire.tree import Node, PlannedPart

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel

AS_IT_WAS = "as it was"
MAX_UNKNOWN = 1 << 21  # tokens that a file does not name
MAX_KEPT = 1 << 25  # tokens at nodes where branches begin
UNKNOWN_MODEL = ModelInfo(  # for files that do not name their model
    name="an unknown model",
    source="",
    architecture="",
    geometry=CacheGeometry("", "unknown", (LayerGeometry(0, "none", 0, 0, 0, 0),)),
    dtype="",
    device="file",
    num_threads=0,
    num_parameters=0,
    weight_bytes=0,
    random_weights=False,
    has_tokenizer=True,  # so that a text prompt is refused for lack of a model, like other commands
    captures_attention=False,
    fingerprint="",
    note="",
)


class OpenedSession:
    """An opened session file, shown as `name` if it is a copy of that. Raises `InputError` if the file is none."""

    def __init__(self, path: Path, name: Path | None = None) -> None:
        found = read_session(path)
        self.saved, self.path = found.session, name or path
        self.info = self.saved.model or UNKNOWN_MODEL
        self._live: States = {}
        for after in walk(self.saved.nodes):
            if after.node.step == self.saved.live:
                self._live = after.states
        self.opened = OpenedFile(
            self.path,
            path.stat().st_size,
            self.info.name,
            sum(node.work is not None for node in self.saved.nodes),
            why_not_repeatable(self.saved),
            found.problem,
            found.created,
            "",
            has_rows=False,
        )

    def status(self, sampling: SamplingParams, work: Work | None, *, running: bool = False) -> EngineStatus:
        """The status of an engine that shows this file instead of a session."""
        infos = tuple(_info(seq_id, tokens) for seq_id, tokens in self._live.items())
        cache, step = self.saved.cache, self.saved.live
        return EngineStatus(self.info, cache, sampling, infos, step, running, work, self.opened, self.saved.pending)

    def events(self, report: Callable[[InputError], None] = lambda _: None) -> Iterator[Event]:
        """The events that the engine sent during the session, as far as they are saved. All of it was read: there is
        nothing to `report`."""
        yield from history_events(self.saved, {}, {})
        yield session_opened_event(self.saved)

    def fits(self, model: LoadedModel) -> bool:
        """Whether it can be gone on from with this model."""
        return not self.why_not(model.info)

    def with_dtype_of(self, model: ModelSpec) -> ModelSpec:
        """The model to go on with."""
        return model

    def why_not(self, model: ModelInfo) -> str:
        """Why the session cannot be continued with this model; empty if it can."""
        if self.opened.why_not:
            return self.opened.why_not
        if model.fingerprint != self.info.fingerprint:
            return f"{model.name} is another model than {self.info.name}: its weights or its config differ"
        return "" if model.dtype == self.info.dtype else f"it ran in {self.info.dtype}, and this model is {model.dtype}"

    def close(self) -> None:
        """Do nothing: the file is not kept open."""


def why_not_repeatable(saved: SavedSession) -> str:
    """Why a session cannot be continued; empty if it can with its model."""
    if saved.model is None:
        return "it does not say which model it ran"
    if saved.origin:
        return f"it went on from the snapshot '{saved.origin}': open that"
    return "" if saved.nodes or saved.pending else "it has no steps"


def session_opened_event(saved: SavedSession) -> SessionOpened:
    """The event with what a person wrote and chose in the session. What was sent stands for a draft that it lacks."""
    chat = saved.draft_chat or (None if saved.draft else saved.newest_chat)
    draft = saved.draft or ("" if chat is not None else saved.prompt_text)
    return SessionOpened(draft, saved.sampling, saved.names, saved.bookmarks, saved.stops, chat, saved.view)


class StatesAfter(NamedTuple):
    """A node, the tokens that its step computed of each sequence, all sequences after it, and how many tokens each fork
    had when it was made."""

    node: Node
    token_ids: tuple[tuple[int, ...], ...]
    states: States
    forks: dict[int, int]


def walk(nodes: Iterable[Node]) -> Iterator[StatesAfter]:
    """Go through the nodes in order, and derive the sequences at each from those at its parent. O(new tokens), but for
    nodes where a branch or a fork begins. Raises `Unusable` for more tokens than any real session has."""
    nodes = tuple(nodes)
    before = (None, *(node.step for node in nodes))
    uses = {node.parent for node, last in zip(nodes, before, strict=False) if node.parent != last}
    uses.update(each.step for node in nodes for each in node.changes if isinstance(each, SequenceForked))
    kept: dict[int, States] = {}
    last: int | None = None
    now: States = {}
    num_kept = num_unknown = 0
    for node in nodes:
        now = dict(now if node.parent == last else kept.get(-1 if node.parent is None else node.parent, {}))
        forks = {}
        for change in node.changes:
            apply(now, change, node.step, kept.get)
            if isinstance(change, SequenceForked) and change.seq_id in now:
                forks[change.seq_id] = len(now[change.seq_id].token_ids)
        parts = () if node.work is None else node.work.parts
        for part in parts:
            had = len(now[part.seq_id].token_ids) if part.seq_id in now else 0
            num_unknown += max(0, part.num_tokens - had - 1)  # the newest is named
        num_kept += sum(len(state.token_ids) for state in now.values()) if node.step in uses else 0
        if num_unknown > MAX_UNKNOWN:
            raise Unusable(f"up to its step {node.step} it computes {num_unknown:,} tokens that it does not name")
        if num_kept > MAX_KEPT:
            raise Unusable(f"up to its step {node.step} it has more tokens in more branches than are read")
        if node.work is not None:
            step(now, node.work, node.step)
        last = node.step
        if last in uses:
            kept[last] = now
        yield StatesAfter(node, tuple(_computed(now[part.seq_id], part) for part in parts), now, forks)


def _computed(state: SequenceState, part: PlannedPart) -> tuple[int, ...]:
    return tuple(state.token_ids[part.first_position : part.num_tokens])


def history_events(
    saved: SavedSession, records: Mapping[int, StepRecord], measured: Mapping[int, EditMeasured]
) -> Iterator[Event]:
    """The events of all history nodes in order, as an engine sends them. A step is its record, or, if there is none,
    one with what the file says; an edit is followed by its effect, where that was `measured`. The last event goes to
    the live node, unless that is the last node."""
    at: int | None = None
    for after in walk(saved.nodes):
        node = after.node
        if node.parent != at:
            yield WentTo(node.parent, AS_IT_WAS, 0.0)
        yield from _begun(after, saved.texts)
        if node.work is None:
            texts = _texts(replacing_tokens(node.changes), saved.texts)
            yield NodeAdded(node, is_live=True, how=AS_IT_WAS, texts=texts)
            if (effect := measured.get(node.step)) is not None:
                yield effect
        else:
            yield records.get(node.step) or _bare_record(after, saved)
        at = node.step
    if at != saved.live:
        yield WentTo(saved.live, AS_IT_WAS, 0.0)


def _begun(after: StatesAfter, texts: Mapping[int, str]) -> Iterator[Event]:
    """The events of the sequences that began with a node."""
    for change in after.node.changes:
        if isinstance(change, SequenceAdded):
            yield Submitted(change.seq_id, change.token_ids, _texts(change.token_ids, texts))
        elif isinstance(change, SequenceForked):
            step = after.node.parent if change.step is None else change.step
            yield ForkMade(change.parent, change.seq_id, step, after.forks.get(change.seq_id, 0), AS_IT_WAS)


def _texts(token_ids: tuple[int, ...], texts: Mapping[int, str]) -> tuple[str, ...]:
    return tuple("?" if each == UNKNOWN else texts.get(each, f"#{each}") for each in token_ids)


def _bare_record(after: StatesAfter, saved: SavedSession) -> StepRecord:
    """The record of a step without its measurements."""
    node, work, model = after.node, after.node.work, saved.model
    assert work is not None
    parts = tuple(
        _bare_part(part, ids, after.states[part.seq_id], saved.texts)
        for part, ids in zip(work.parts, after.token_ids, strict=True)
    )
    return StepRecord(
        node.step,
        parts[0].phase,
        node.cache,
        model.dtype if model is not None else "",
        model is not None and model.random_weights,
        parts,
        preempted=work.preempted,
        parent=node.parent,
        changes=node.changes,
        checksums=node.checksums,
        runner=work.runner,
    )


def _bare_part(part: PlannedPart, ids: tuple[int, ...], state: SequenceState, texts: Mapping[int, str]) -> SequenceStep:
    is_prompt = part.token_id is None
    return SequenceStep(
        seq_id=part.seq_id,
        phase="prefill" if is_prompt else "decode",
        token_ids=ids,
        texts=_texts(ids, texts),
        first_position=part.first_position,
        num_tokens=part.num_tokens,
        num_prompt_tokens=state.num_prompt_tokens,
        surprisal=(None,) * len(ids),
        sampled=part.sampled,
        sampled_text="" if part.sampled is None else texts.get(part.sampled, f"#{part.sampled}"),
        forced=part.forced,
        stop=part.stop,
    )


def _info(seq_id: int, state: SequenceState) -> SequenceInfo:
    phase: SequencePhase = "prefill" if state.phase == "waiting" else state.phase
    counts = state.num_tokens, state.num_prompt_tokens
    return SequenceInfo(seq_id, phase, *counts, state.sampled, state.stop, sampling=state.sampling)
