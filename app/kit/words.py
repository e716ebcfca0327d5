"""Words for places of a run: branches and steps, pages, and what can be bookmarked, with the ribbon that marks it."""

from __future__ import annotations

from msgspec.structs import replace
from PySide6.QtCore import QPointF, Qt
from PySide6.QtGui import QPainter, QPen, QPolygonF

from app.draw.format import byte_size, divergence_words, milliseconds, shortened, thousands, token_label, visible
from app.kit.theme import current_theme
from app.kit.widgets import prose
from app.models import Models
from app.models.places import geometry_of
from app.models.timeline import branch_text, origin_of
from engine.counted import counted
from engine.spec.bookmark import Bookmark, BookmarkTarget, OnHead, OnPage, OnStep, OnToken
from engine.spec.cache import cache_label
from engine.wire import pages
from engine.wire.pages import ContinuedFrom, Converted, Forked, PageCell, PrefixEnd
from engine.wire.records import (
    Change,
    EditMade,
    ModeChanged,
    PromptAppended,
    SamplingChanged,
    SequenceAdded,
    SequenceForked,
    SequenceRemoved,
    SequenceStopped,
    StepRecord,
    TokensForced,
    has_chosen,
)
from engine.wire.status import SequenceInfo


def branch_name(models: Models, first: int) -> str:
    """A branch's name, or the beginning of its text if it has none."""
    return models.history.name(first) or f"“{text_line(models, first, 24)}”"


def text_line(models: Models, first: int, max_chars: int) -> str:
    """The beginning of a branch's text, on one line."""
    text = branch_text(models.history, first, models.selection.now.seq_id, max_chars + 1)
    return shortened(" ".join(map(visible, text.split(" "))).lstrip(), max_chars)


def origin_words(models: Models, seq_id: int) -> str:
    """`branch “a dragon” · step 6`: where a sequence was forked from; empty if it was not."""
    origin = origin_of(models.timeline, seq_id)
    if origin is None:
        return ""
    where = f"sequence {origin.parent}" if origin.branch is None else f"branch {branch_name(models, origin.branch)}"
    return f"{where} · step {thousands(origin.step)}"


MOST_CHANGES = 4


def change_words(change: Change) -> str:
    """Describe a change: `cache: KIVI-2`, `sequence 1 forked from 0 after step 5`."""
    match change:
        case EditMade(edit):
            return f"edit: {edit.describe()}"
        case ModeChanged(cache):
            return f"cache: {cache_label(cache)}"
        case TokensForced(seq_id, token_ids):
            return f"{counted(len(token_ids), 'token')} forced on sequence {seq_id}"
        case SamplingChanged(seq_id, sampling):
            how = "greedy" if sampling.is_greedy else f"temperature {sampling.temperature:g}, seed {sampling.seed}"
            return f"sampling of sequence {seq_id}: {how}"
        case SequenceAdded(seq_id, token_ids):
            return f"prompt of {counted(len(token_ids), 'token')} as sequence {seq_id}"
        case SequenceForked(seq_id, parent, _, int(num_tokens)):
            return f"sequence {seq_id} goes on from {parent}: {counted(num_tokens, 'token')} kept"
        case SequenceForked(seq_id, parent, step):
            where = "" if step is None else f" after step {thousands(step)}"
            return f"sequence {seq_id} forked from {parent}{where}"
        case PromptAppended(seq_id, token_ids):
            return f"{counted(len(token_ids), 'token')} more of the prompt of sequence {seq_id}"
        case SequenceRemoved(seq_id):
            return f"sequence {seq_id} removed"
        case SequenceStopped(seq_id):
            return f"sequence {seq_id} stopped"


def node_lines(models: Models, step: int) -> list[str]:
    """Describe a node: its step with token and time, the changes before it, and an edit's effect."""
    history = models.history
    record, added = history.record(step), history.added(step)
    lines = []
    if record is not None:
        part = record.of(models.selection.now.seq_id) or next(iter(record.sequences), None)
        computed = "" if part is None else f" · computed “{shortened(visible(''.join(part.texts[-8:])), 24)}”"
        next_one = f", chose “{shortened(visible(part.sampled_text), 16)}”" if part and has_chosen(part) else ""
        took = f" · {milliseconds(ms)}" if (ms := record.timings.total_ms) else ""  # 0: not measured
        lines.append(f"step {thousands(step)} · {record.phase}{computed}{next_one}{took}")
    changes = history.changes(step)
    if record is None:
        lines.append(_unstepped(models, step, changes))
        changes = tuple(change for change in changes if not isinstance(change, EditMade))
    lines += [change_words(change) for change in changes[:MOST_CHANGES]]
    if len(changes) > MOST_CHANGES:
        lines.append(f"and {thousands(len(changes) - MOST_CHANGES)} changes more")
    if added is not None and added.kl is not None:
        lines.append(f"next token moved by {divergence_words(added.kl)}")
    return lines


def _unstepped(models: Models, step: int, changes: tuple[Change, ...]) -> str:
    """Describe a node that no step made: `step 17, edit after step 16: zero position 4`."""
    path = models.history.path(step)
    before = next((node for node in reversed(path) if models.history.record(node) is not None), None)
    where = "" if before is None else f" after step {thousands(before)}"
    edits = [change.edit.describe() for change in changes if isinstance(change, EditMade)]
    if not edits:
        return f"step {thousands(step)}, what was done{where}"
    return f"step {thousands(step)}, edit{where}: {', '.join(edits)}"


# A long prompt's prefill allocates thousands of pages: after this many lines the rest is only counted.
MAX_LINES = 400


def state_name(state: int) -> str:
    """The name of a page's state."""
    names = {
        PageCell.FREE: "free",
        PageCell.USED: "used",
        PageCell.SHARED: "shared",
        PageCell.CACHED: "cached",
        PageCell.NULL: "null page",
        PageCell.KEPT: "kept for another branch",
    }
    return names[PageCell(state)]


def record_lines(record: StepRecord) -> list[str]:
    """What a step did to pages and to waiting sequences, one line each."""
    lines = [f"preempted seq {s}: its pages went to others, its tokens stay" for s in record.preempted]
    lines += [f"seq {seq_id} waits for room" for seq_id in record.waiting]
    lines += [event_line(event) for event in record.page_events[:MAX_LINES]]
    if len(record.page_events) > MAX_LINES:
        lines.append(f"… and {thousands(len(record.page_events) - MAX_LINES)} more")
    return lines


def event_line(event: pages.PageEvent) -> str:
    """An event as one line."""
    match event:
        case pages.PageAllocated():
            return f"{_holder(event.seq_id)} took page {event.page_id}"
        case pages.PageShared():
            return f"{_holder(event.seq_id)} shares page {event.page_id} (ref count {event.ref_count})"
        case pages.PageFreed():
            return _freed(event)
        case pages.PageCopied():
            text = "copy on write: {0} writes to page {1}, {2} copied from page {3}"
            copied = counted(event.num_tokens, "token")
            return text.format(_holder(event.seq_id), event.dst_page_id, copied, event.src_page_id)
        case pages.PageMoved():
            return _moved(event)
        case pages.PrefixHit():
            text = "prefix hit: seq {0} starts with {1} of {2} served"
            return text.format(event.seq_id, thousands(event.num_hit_tokens), counted(event.num_tokens, "token"))
        case pages.PrefixMiss():
            return f"prefix miss: seq {event.seq_id} computes all {counted(event.num_tokens, 'token')}"
        case pages.PageCommitted():
            where = "page {0}" if event.tier is pages.Tier.DEVICE else "host page {0}"
            text = "{0} is full and can be found as {1}"
            return text.format(where.format(event.page_id), short_hash(event.page_hash))
        case pages.PageEvicted():
            return _evicted(event)


def _holder(seq_id: int) -> str:
    """Who holds a page: a sequence, or a kept step of another branch."""
    return "a checkpoint" if seq_id == pages.KEPT else f"seq {seq_id}"


def _freed(event: pages.PageFreed) -> str:
    if event.ref_count:
        return f"{_holder(event.seq_id)} let go of page {event.page_id} (ref count {event.ref_count})"
    where = "kept for reuse" if event.is_findable else "free again"
    return f"{_holder(event.seq_id)} let go of page {event.page_id}: {where}"


def _moved(event: pages.PageMoved) -> str:
    cost = f"{byte_size(event.num_bytes)} in {milliseconds(event.duration_ms)}"
    if event.direction is pages.MoveDirection.TO_HOST:
        return f"copied page {event.page_id} to the host, {cost}"
    return f"read page {event.page_id} back from the host, {cost}"


def _evicted(event: pages.PageEvicted) -> str:
    reasons = {
        pages.EvictReason.ROOM: "its room was needed",
        pages.EvictReason.REQUEST: "it was asked for",
        pages.EvictReason.OVERWRITE: "it holds other tokens now",
    }
    where = "page {0}" if event.committed.tier is pages.Tier.DEVICE else "host page {0}"
    return f"evicted {where.format(event.committed.page_id)}: {reasons[event.reason]}"


def short_hash(page_hash: bytes) -> str:
    """The beginning of a page's hash, enough to tell pages apart."""
    return page_hash[:4].hex()


def quoted(text: str) -> str:
    """A token in quotation marks, shortened, invisible characters escaped."""
    return f"“{token_label(text, 16)}”"


def quoted_whole(text: str) -> str:
    """A text in quotation marks, not shortened, invisible characters escaped."""
    return f"“{visible(text)}”"


def why_not_reused(info: SequenceInfo, models: Models, page_size: int | None, *, is_brief: bool = False) -> str:
    """Why part of a prompt was computed although its prefix might have been cached; empty if it was not. `is_brief`
    shortens a long line of a chat template."""
    why = info.why_not_reused
    if is_brief and isinstance(why, ContinuedFrom):
        why = replace(why, line_text=shortened(why.line_text, 80))
    if isinstance(why, ContinuedFrom):
        return prose(why.words(quoted_whole))
    if page_size is None:
        return "This cache mode shares no prefixes: choose Paged to reuse them."
    match why:
        case None:
            return "Not admitted yet: it waits for room in the pool." if info.phase == "waiting" else ""
        case Forked(parent):
            pages = _pages_shared(info.num_shared_pages, info.num_pages)
            if parent < 0:  # a kept step, whose sequences have no numbers of their own
                return f"{pages[:1].upper()}{pages[1:]}."
            return f"Forked from seq {parent}: {pages}."
        case Converted():
            return "Its rows are older than this pool: they came with the change of the cache mode."
        case str():
            return f"No prefix can be shared: {why}."
        case PrefixEnd():
            here = models.timeline.token(info.seq_id, why.position)
            there = models.pages.text(why.stored) if why.stored is not None else ""
            cached = f"the cache {quoted(there)}" if there else ""
            return why.words(info.hit_tokens, quoted(here.text) if here is not None else "", cached)


def _pages_shared(num_shared: int, num_pages: int) -> str:
    """How many of a fork's pages are still shared with its parent."""
    if not num_shared:
        return "it shares no page any more"
    if num_shared == num_pages == 1:
        return "its page is shared, until one of them writes to it"
    verb = "is" if num_shared == 1 else "are"
    return f"{thousands(num_shared)} of its {counted(num_pages, 'page')} {verb} shared, until one of them writes to it"


STEP, TOKEN, PAGE, HEAD = "step", "token", "page", "head"
MARK_WIDTH, MARK_HEIGHT = 6.0, 9.0
_MOST_CHARS, _TIP_CHARS = 16, 300


def places(models: Models) -> dict[str, BookmarkTarget]:
    """The step shown, and the token, page and head that are selected in it, by kind."""
    now, record = models.selection.now, models.timeline.at(models.selection.now.step)
    if record is None:
        return {}
    found: dict[str, BookmarkTarget] = {STEP: OnStep(record.step)}
    token = models.timeline.token(now.seq_id, now.position) if now.position is not None else None
    if token is not None:
        found[TOKEN] = OnToken(token.step, now.seq_id, token.position)
    if now.page is not None and record.page_maps:
        found[PAGE] = OnPage(record.step, now.pool, now.page)
    geometry = geometry_of(models)
    layers = geometry.layers if geometry is not None else ()
    if now.layer < len(layers) and now.kv_head < layers[now.layer].num_kv_heads:
        found[HEAD] = OnHead(record.step, now.seq_id, now.layer, now.kv_head)
    return found


def place_words(models: Models, target: BookmarkTarget) -> str:
    """Describe a place, without its step."""
    match target:
        case OnToken(seq_id=seq_id, position=position):
            token = models.timeline.token(seq_id, position)
            name = f" {token_label(token.text, _MOST_CHARS)}" if token is not None and token.step == target.step else ""
            return f"token {thousands(position)}{name}" + (f", sequence {seq_id}" if seq_id else "")
        case OnPage(pool=pool, page_id=page_id):
            return f"page {thousands(page_id)}" + (f" of pool {pool}" if pool else "")
        case OnHead(seq_id=seq_id, layer=layer, kv_head=kv_head):
            return f"layer {layer}, kv head {kv_head}" + (f", sequence {seq_id}" if seq_id else "")
        case _:
            return "the step itself"


def note_line(text: str, max_chars: int = _TIP_CHARS) -> str:
    """A note on one line, with invisible characters escaped."""
    return shortened(" ".join(visible_words(line) for line in text.split("\n") if line.strip()), max_chars)


def visible_words(text: str) -> str:
    """Escape invisible characters, but keep spaces."""
    return " ".join(visible(word) if word else "" for word in text.split(" "))


def tip_lines(*found: Bookmark | None) -> tuple[str, ...]:
    """The lines of a tool tip about the bookmarks of a place."""
    return tuple(
        f"bookmark of step {thousands(one.target.step)}" + (f": {note_line(one.text)}" if one.text.strip() else "")
        for one in found
        if one is not None
    )


def paint_ribbon(painter: QPainter, right: float, top: float, scale: float = 1.0) -> None:
    """Paint a bookmark's ribbon with its upper right corner at (right, top). It has the text colour in every picture:
    the other colours have meanings."""
    width, height = MARK_WIDTH * scale, MARK_HEIGHT * scale
    left, foot = right - width, top + height
    corners = ((left, top), (right, top), (right, foot), ((left + right) / 2, foot - 0.35 * height), (left, foot))
    theme = current_theme()
    painter.save()
    painter.setPen(QPen(theme.color("panel"), 1))
    painter.setBrush(theme.color("text"))
    painter.setOpacity(1.0)
    painter.drawPolygon(QPolygonF([QPointF(x, y) for x, y in corners]), Qt.FillRule.OddEvenFill)
    painter.restore()
