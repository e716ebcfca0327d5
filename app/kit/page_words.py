"""Describes page events, and why a prefix was not reused, in words."""

from __future__ import annotations

from msgspec.structs import replace

from app.draw.format import byte_size, milliseconds, shortened, thousands, token_label, visible
from app.kit.labels import prose
from app.models import Models
from engine.counted import counted
from engine.wire import pages
from engine.wire.pages import ContinuedFrom, Converted, Forked, PageCell, PrefixEnd
from engine.wire.records import StepRecord
from engine.wire.status import SequenceInfo

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
            return "Not admitted yet: it waits for room in the pool." if info.state == "waiting" else ""
        case Forked(parent):
            told = _pages_shared(info.num_shared_pages, info.num_pages)
            if parent < 0:  # a kept step, whose sequences have no numbers of their own
                return f"{told[:1].upper()}{told[1:]}."
            return f"Forked from seq {parent}: {told}."
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
