"""Everything that is known of one page at the step that is looked at."""

from __future__ import annotations

from dataclasses import dataclass

from app.draw.format import thousands, token_label
from app.kit.page_words import short_hash, state_name
from app.models import Models
from app.models.page_places import place_of
from engine.wire.page_map import NOBODY, PageCell
from engine.wire.records import StepRecord

_SHOWN_TOKENS = 24


@dataclass(frozen=True)
class PageInfo:
    """One page after one step. `first_position` None: its place in the selected sequence is not known."""

    pool: int
    page_id: int
    page_size: int
    state: PageCell
    owners: tuple[int, ...]
    ref_count: int
    fill: int
    age: int | None
    on_host: bool
    tokens: tuple[str, ...]
    page_hash: bytes | None
    first_position: int | None

    @property
    def is_held(self) -> bool:
        return self.state in (PageCell.USED, PageCell.SHARED)

    def line(self) -> str:
        """The read-out: the most telling first, because the end may not fit."""
        return "   ".join(text for label, text in self.lines() if label != "hash")

    def lines(self) -> list[tuple[str, str]]:
        """`(what, text)` pairs."""
        first_slot = self.page_id * self.page_size
        found = [("page", f"page {thousands(self.page_id)} {state_name(self.state)}")]
        if self.owners:
            found.append(("owner", "seq {}".format(", ".join(map(str, self.owners)))))
        if self.state not in (PageCell.FREE, PageCell.NULL):
            found.append(("fill", f"{self.fill}/{self.page_size} tokens"))
        if self.first_position is not None:
            last = self.first_position + self.fill - 1
            found.append(("positions", f"at {self.first_position}–{last}"))
        if self.tokens:
            found.append(("tokens", " ".join(self.tokens)))
        found.append(("slots", f"slots {first_slot}–{first_slot + self.page_size - 1}"))
        if self.is_held:
            found.append(("refs", f"ref count {self.ref_count}"))
        if self.age is not None:
            found.append(("age", "touched this step" if self.age == 0 else f"age {self.age} steps"))
        if self.on_host:
            found.append(("host", "copy on host"))
        if self.page_hash is not None:
            found.append(("hash", f"found as {short_hash(self.page_hash)}"))
        return found


def page_info(models: Models, record: StepRecord, pool: int, page_id: int) -> PageInfo:
    """Ask the record, and the log of pages where one pool is all there is: its events name no pool."""
    page_map = record.page_maps[pool]
    cell = page_map.cell(page_id)
    state = PageCell(int(cell["state"]))
    is_only = len(record.page_maps) == 1
    facts = models.pages.facts(page_id, record.step) if is_only else None
    owners = tuple(dict.fromkeys(facts.owners)) if facts is not None else ()
    if not owners and int(cell["owner"]) != NOBODY:
        owners = (int(cell["owner"]),)
    committed = facts.committed if facts is not None else None
    first = place_of(models, record, pool, page_id)
    fill = int(cell["fill"])
    if committed is not None:
        texts = tuple(token_label(models.pages.text(i)) for i in committed.token_ids[:_SHOWN_TOKENS])
    else:
        texts = _texts_at(models, record, first, fill)
    return PageInfo(
        pool=pool,
        page_id=page_id,
        page_size=page_map.page_size,
        state=state,
        owners=owners if state in (PageCell.USED, PageCell.SHARED) else (),
        ref_count=int(cell["ref_count"]),
        fill=fill,
        age=None if state in (PageCell.FREE, PageCell.NULL) else record.step - int(cell["step"]),
        on_host=bool(cell["on_host"]),
        tokens=texts if state not in (PageCell.FREE, PageCell.NULL) else (),
        page_hash=committed.page_hash if committed is not None else None,
        first_position=first,
    )


def _texts_at(models: Models, record: StepRecord, first: int | None, fill: int) -> tuple[str, ...]:
    if first is None:
        return ()
    tokens = models.timeline.tokens(models.selection.now.seq_id, record.step)
    return tuple(token_label(token.text) for token in tokens[first : first + min(fill, _SHOWN_TOKENS)])
