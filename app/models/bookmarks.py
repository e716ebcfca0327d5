"""Bookmarks and notes on steps, tokens, pages and heads: by a person, for a person."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject, Signal

from engine.spec.bookmark import Bookmark, BookmarkTarget, OnHead, OnPage, OnToken, check_bookmarks


class Bookmarks(QObject):
    """One at most for a place, in the order of their steps. They name steps of the history tree, so that going back and
    other branches leave them where they are; `changed`: one came, went, or says something else."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._all: dict[BookmarkTarget, Bookmark] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def all(self) -> tuple[Bookmark, ...]:
        """Every bookmark, by step and then as they were made."""
        return tuple(sorted(self._all.values(), key=_step_of))

    def at(self, target: BookmarkTarget) -> Bookmark | None:
        """The bookmark of a place; None where it has none."""
        return self._all.get(target)

    def put(self, bookmark: Bookmark) -> None:
        """Set it, in place of one that the place has; an `InputError` where there are too many."""
        together = {**self._all, bookmark.target: bookmark}
        check_bookmarks(tuple(together.values()))
        self._take(together)

    def remove(self, target: BookmarkTarget) -> None:
        """The place has none any more."""
        self._take({place: one for place, one in self._all.items() if place != target})

    def set_all(self, bookmarks: Iterable[Bookmark]) -> None:
        """Those of another session, or none."""
        self._take({bookmark.target: bookmark for bookmark in bookmarks})

    def _take(self, bookmarks: dict[BookmarkTarget, Bookmark]) -> None:
        if bookmarks != self._all:
            self._all = bookmarks
            self.changed.emit()

    # ---- where they are shown ------------------------------------------------------------------------------------

    def on_steps(self) -> dict[int, tuple[Bookmark, ...]]:
        """Whatever they are on, by the step that they name."""
        found: dict[int, tuple[Bookmark, ...]] = {}
        for one in self.all:
            found[one.target.step] = (*found.get(one.target.step, ()), one)
        return found

    def on_tokens(self, seq_id: int) -> dict[tuple[int, int], Bookmark]:
        """Of a sequence, by the step that fed the token and its position."""
        tokens = ((one.target, one) for one in self._all.values() if isinstance(one.target, OnToken))
        return {(target.step, target.position): one for target, one in tokens if target.seq_id == seq_id}

    def on_pages(self, pool: int) -> dict[int, Bookmark]:
        """Of a pool, by page; of several steps the newest."""
        pages = [one for one in self.all if isinstance(one.target, OnPage) and one.target.pool == pool]
        return {one.target.page_id: one for one in pages if isinstance(one.target, OnPage)}

    def on_heads(self, seq_id: int) -> dict[tuple[int, int], Bookmark]:
        """Of a sequence, by layer and kv head; of several steps the newest."""
        heads = [one for one in self.all if isinstance(one.target, OnHead) and one.target.seq_id == seq_id]
        return {(one.target.layer, one.target.kv_head): one for one in heads if isinstance(one.target, OnHead)}


def _step_of(bookmark: Bookmark) -> int:
    return bookmark.target.step


def place_of(target: BookmarkTarget) -> dict[str, int]:
    """What is selected to look at a place."""
    match target:
        case OnToken(seq_id=seq_id, position=position):
            return {"seq_id": seq_id, "position": position}
        case OnPage(pool=pool, page_id=page_id):
            return {"pool": pool, "page": page_id}
        case OnHead(seq_id=seq_id, layer=layer, kv_head=kv_head):
            return {"seq_id": seq_id, "layer": layer, "kv_head": kv_head}
        case _:
            return {}
