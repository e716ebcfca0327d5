"""The status of the selected sequence (live, running, reading its prompt, full, ended), and why it cannot continue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from app.draw.format import shortened, thousands
from app.models import Models
from app.models.pictures import Pictures
from app.models.timeline import Timeline
from engine.predict.capacity import cache_capacity, context_length
from engine.spec.edit import BiasLogits
from engine.spec.sampling import TURN_ENDS
from engine.wire.records import SequenceStep, StepRecord, TokensForced
from engine.wire.status import EngineStatus, SequenceInfo

RECENT_STEPS = 32
RECENT_CHUNKS = 4


class Rates(Struct, frozen=True):
    """Tokens per second, time to the first token, and the share of time spent on looking. None: nothing was measured
    yet."""

    tokens_per_s: float | None
    first_token_ms: float | None
    looking_ratio: float | None


def rates(timeline: Timeline, pictures: Pictures, seq_id: int) -> Rates:
    """Decode speed, time to a sequence's first token, and the share of the engine's time spent on statistics and
    pictures."""
    recent = timeline.records[-RECENT_STEPS:]
    return Rates(_speed(recent), _first_token_ms(timeline, seq_id), _looking(recent, pictures))


def seconds_left(timeline: Timeline, info: SequenceInfo) -> float | None:
    """How long the rest of a prompt's prefill takes at the speed of its last chunks; None before the first chunk."""
    chunks: list[StepRecord] = []
    for record in reversed(timeline.records[-RECENT_CHUNKS:]):
        part = record.of(info.seq_id)
        if record.phase != "prefill" or part is None or part.sampled is not None:
            break
        chunks.insert(0, record)
    if not chunks:
        return None
    if len(chunks) == 1:
        took_s, num_tokens = chunks[0].timings.total_ms / 1e3, _num_computed(chunks, info.seq_id)
    else:  # wall-clock time, as it includes the time spent on pictures between two chunks
        took_s, num_tokens = chunks[-1].wall_time - chunks[0].wall_time, _num_computed(chunks[1:], info.seq_id)
    return took_s / num_tokens * max(0, info.num_prompt_tokens - info.num_tokens) if num_tokens else None


def _num_computed(records: Iterable[StepRecord], seq_id: int) -> int:
    return sum(len(part.token_ids) for record in records if (part := record.of(seq_id)) is not None)


def _speed(recent: Iterable[StepRecord]) -> float | None:
    decoded = [record for record in recent if record.phase == "decode"]
    total_ms = sum(record.timings.total_ms for record in decoded)
    num_tokens = sum(len(part.token_ids) for record in decoded for part in record.sequences)
    return num_tokens / total_ms * 1000 if total_ms > 0 else None


def _first_token_ms(timeline: Timeline, seq_id: int) -> float | None:
    """The time of a sequence's prefill, once it has chosen a token; None for a fork, which had no prefill."""
    total_ms = 0.0
    for record in timeline.since_first(seq_id):
        part = record.of(seq_id)
        if part is None:
            continue
        if record.phase == "decode":
            return None
        total_ms += record.timings.total_ms
        if part.sampled is not None:
            return total_ms or None  # steps of an opened session have no times
    return None


def _looking(recent: Sequence[StepRecord], pictures: Pictures) -> float | None:
    if not recent:
        return None
    pictures_ms = pictures.cost_ms(recent[0].wall_time, recent[-1].wall_time)
    looking = pictures_ms + sum(record.timings.observe_ms for record in recent)
    total = pictures_ms + sum(record.timings.total_ms for record in recent)
    return looking / total if total > 0 else None


FULL = ("context full", "cache full")
LONGEST_CONDITION = 24  # characters of a breakpoint's condition in the status line


class SequenceStatus(Struct, frozen=True):
    """`words` for the status line; `role`, the theme's colour of its dot; `why` the sequence cannot continue and what
    to do, empty if it can."""

    words: str
    role: str
    why: str = ""
    is_full: bool = False


def sequence_status(models: Models) -> SequenceStatus:
    """The status of the selected sequence at the step shown."""
    status = models.status.now
    if status.model is None:
        if models.status.is_loading:
            return SequenceStatus("loading a model", "accent")
        if loss := models.status.loss:
            return SequenceStatus(f"engine {loss}", "warning")
        return SequenceStatus("model unloaded" if models.status.is_unloaded else "no model yet", "faint")
    if models.timeline.is_elsewhere:
        why = "its K and V are shown where they are kept, and what was recorded; Go there makes it the live step"
        return SequenceStatus("another branch", "selected", why)
    if models.selection.now.step is not None:
        return SequenceStatus("looking back", "selected")
    if status.opened is not None and not models.status.loss:
        return SequenceStatus("opened file", "selected", "nothing is computed in an opened file: go on with its model")
    if loss := models.status.loss:
        return SequenceStatus(f"engine {loss}", "warning")
    if models.status.is_replaying:
        why = "what is shown is from before: the engine has begun again, and does its steps once more"
        return SequenceStatus("repeating steps", "accent", why)
    if status.suspended is not None:
        why = f"{status.suspended.words}: go on phase by phase, finish it with Step, or give it up with Stop"
        return SequenceStatus("between phases", "accent", why)
    if status.running:
        return SequenceStatus(reading(models) or "running", "accent")
    info = selected_info(models)
    return SequenceStatus("ready", "good") if info is None else _at_rest(info, status, models)


def num_typed_ahead(models: Models) -> int:
    """How many tokens of a forced text are still to be computed for the selected sequence, the next one included."""
    history, timeline, now = models.history, models.timeline, models.selection.now
    node = history.live if now.step is None else None
    while node is not None:
        branch = history.branch_of(node)
        for step in reversed(history.changed_of(branch.first)):
            for change in history.changes(step) if step <= node else ():
                if isinstance(change, TokensForced) and change.seq_id == now.seq_id:
                    before = history.parent_of(step)
                    had = timeline.num_tokens(now.seq_id, before) if before is not None else 0
                    return max(0, len(change.token_ids) - (timeline.num_tokens(now.seq_id) - had))
        node = branch.parent
    return 0


def fitting_sequence(models: Models) -> int:
    """The selected sequence, or if it does not exist at the step shown, the newest one that does."""
    status, chosen, timeline = models.status.now, models.selection.now.seq_id, models.timeline
    if timeline.is_elsewhere:
        record = timeline.at(models.selection.now.step)
        there = timeline.sequence_ids()
        ids = [part.seq_id for part in record.sequences] if record is not None else []
    else:
        ids = [info.seq_id for info in status.sequences]
        there = tuple(ids)
    return chosen if chosen in there or not ids else ids[-1]


def can_go_on(models: Models) -> bool:
    """Whether a step can be taken from the live one."""
    status = models.status.now
    if status.opened is not None or models.status.loss == "gone":
        return False
    return any(map(_goes_on, status.sequences))


def _goes_on(info: SequenceInfo) -> bool:
    """Whether a step can compute it: it has not ended, or only since it had as many tokens as were asked for."""
    return info.phase != "finished" or info.stop == "length"


def selected_info(models: Models) -> SequenceInfo | None:
    """The engine's report on the selected sequence; None if it has none."""
    seq_id = models.selection.now.seq_id
    return next((info for info in models.status.now.sequences if info.seq_id == seq_id), None)


def reading(models: Models) -> str:
    """How far the prompt that is being read is, and how long the rest takes; empty if none is."""
    status = models.status.now
    if not status.running:
        return ""
    phases = [info.phase for info in status.sequences]
    # if others decode, a waiting sequence waits for room and nothing of it is read
    wanted = "prefill" if "prefill" in phases or "decode" in phases else "waiting"
    info = next((info for info in status.sequences if info.phase == wanted), None)
    if info is None:
        return ""
    total = _num_to_read(models, info)
    far = f"reading {thousands(info.num_tokens)} of {thousands(total)}"
    left = seconds_left(models.timeline, replace(info, num_prompt_tokens=total))
    return far if left is None else f"{far} · {_duration(left)}"


def _num_to_read(models: Models, info: SequenceInfo) -> int:
    """How many tokens are to be read: the prompt's, or all that a preempted sequence had."""
    return max(info.num_prompt_tokens, models.timeline.num_tokens(info.seq_id))


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s left"
    return f"{round(seconds / 60)} min left"


def _at_rest(info: SequenceInfo, status: EngineStatus, models: Models) -> SequenceStatus:
    has_lost = info.num_preemptions > 0 and not info.num_tokens
    if info.stop is not None and has_lost:
        words = f"{info.stop} · {'pages given up'}"
        why = f"{why_ended(info)}; its pages went to another sequence"
        return SequenceStatus(words, "warning" if info.stop in FULL else "muted", why, is_full=info.stop in FULL)
    if info.stop in FULL:
        limit = _limit(info, status)
        words = f"{info.stop} · {thousands(info.num_tokens)}"
        words += f" of {thousands(limit)}" if limit >= info.num_tokens else ""
        return SequenceStatus(words, "warning", why_ended(info), is_full=True)
    if info.stop is not None:
        role = "warning" if info.stop == "non-finite logits" else "muted"
        return SequenceStatus("end of the turn" if _has_ended_turn(info) else info.stop, role, why_ended(info))
    if info.phase == "prefill":
        far = f"{thousands(info.num_tokens)} of {thousands(_num_to_read(models, info))}"
        return SequenceStatus(f"read {far}", "muted", "the prompt is not read to its end: step to go on")
    if has_lost:
        why = "it gave its pages up to another sequence and is read again when there is room: step, or remove one"
        return SequenceStatus("waiting for pages", "warning", why)
    latest = models.timeline.latest
    if info.phase == "waiting" and latest is not None and info.seq_id in latest.waiting:
        why = "the page pool has no room for it yet: it begins when there is, or remove a sequence"
        return SequenceStatus("waiting for pages", "warning", why)
    if info.phase != "waiting" and (hit := status.halted_by) is not None:
        words = f"halted · {shortened(hit.condition, LONGEST_CONDITION)}"
        return SequenceStatus(words, "good", f"{hit.condition} held: {hit.value}, sequence {hit.seq_id}")
    return SequenceStatus("waiting" if info.phase == "waiting" else "live", "good")


def why_all_ended(models: Models) -> str:
    """Why no step is possible, and what to do; empty if a sequence can go on or there is none."""
    status = models.status.now
    if not status.sequences or any(map(_goes_on, status.sequences)):
        return ""
    return why_ended(selected_info(models) or status.sequences[-1])


def why_ended(info: SequenceInfo) -> str:
    """Why a sequence has ended, and what to do; empty if it has not."""
    match info.stop:
        case "context full":
            return "the model's context is full: go back, take a cache that keeps a window, or send a new prompt"
        case "cache full":
            return "the cache is full: take one that grows, go back, or send a new prompt"
        case "end of text":
            return "the text has ended: choose another next token, go back, or send a new prompt"
        case "stop string" if _has_ended_turn(info):
            return "the answer has ended: write the next turn, choose another next token, or go back"
        case "stop string":
            return "a stop string ended the text: choose another next token, go back, or send a new prompt"
        case "length":
            return "as many tokens as were asked for: step or run on for more, go back, or send a new prompt"
        case "non-finite logits":
            return (
                "NaN or Inf among the logits, so no token could be chosen: undo the edit that made them, go back, "
                "or choose the next token"
            )
        case "stopped":
            return "the sequence was stopped: choose its next token, go back, or send a new prompt"
        case None:
            return ""


def _has_ended_turn(info: SequenceInfo) -> bool:
    """Whether a sequence ended with a text that ends a turn, which its conversation has added to its stop strings."""
    return info.stop == "stop string" and info.sampling is not None and bool(set(TURN_ENDS) & set(info.sampling.stop))


def _limit(info: SequenceInfo, status: EngineStatus) -> int:
    assert status.model is not None
    geometry = status.model.geometry
    context = context_length(geometry)
    return context if info.stop == "context full" else cache_capacity(status.cache, context, geometry) or context


def after_edit(models: Models, part: SequenceStep, computed: int) -> tuple[int, SequenceStep] | None:
    """The newest edit on the selected sequence since the step `computed`, which computed it last, as the number of its
    node; and that step's part with the candidates, entropy and sampled token measured after the edit. None if nothing
    was edited since or it was not measured."""
    now = models.selection.now
    edits = [made for made in models.edits.on_path(now.step) if made.step > computed and made.edit.seq_id == now.seq_id]
    measured = models.edits.measured(edits[-1].step) if edits else None
    if measured is None or not measured.after:
        return None
    info = selected_info(models)
    sampled = info.sampled if info is not None and now.step is None else measured.after[0].token_id
    texts = {one.token_id: one.text for one in (*part.candidates, *measured.after)}
    text = part.sampled_text if sampled == part.sampled else texts.get(sampled or 0, f"#{sampled}")
    told = replace(part, candidates=measured.after, entropy=measured.entropy, sampled=sampled, sampled_text=text)
    return measured.step, told


def current_bias(models: Models, seq_id: int) -> BiasLogits:
    """The logit bias that is in force at the live step for a sequence; an empty one if there is none."""
    found = [made.edit for made in models.edits.on_path() if isinstance(made.edit, BiasLogits)]
    return next((edit for edit in reversed(found) if edit.seq_id == seq_id), BiasLogits(seq_id))


def with_bias(now: BiasLogits, token_ids: Iterable[int], amount: float) -> BiasLogits:
    """`now` with `amount` added to the logits of these tokens, in place of any earlier bias on them."""
    biases = {**dict(now.biases), **dict.fromkeys(token_ids, amount)}
    return replace(now, biases=tuple(biases.items()))


def with_ban(now: BiasLogits, token_ids: Iterable[int]) -> BiasLogits:
    """`now` with these tokens banned as well."""
    return replace(now, banned=tuple(dict.fromkeys((*now.banned, *token_ids))))


def with_only(now: BiasLogits, token_ids: Iterable[int]) -> BiasLogits:
    """`now` with the choice restricted to these tokens."""
    return replace(now, only=tuple(dict.fromkeys(token_ids)))


def without(now: BiasLogits, token_id: int) -> BiasLogits:
    """`now` without any bias, ban or restriction on one token."""
    biases = tuple(pair for pair in now.biases if pair[0] != token_id)
    banned = tuple(other for other in now.banned if other != token_id)
    only = tuple(other for other in now.only if other != token_id)
    return replace(now, biases=biases, banned=banned, only=only)
