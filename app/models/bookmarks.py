"""Bookmarks and notes that the user set on steps, tokens, pages and heads."""

from __future__ import annotations

from collections.abc import Iterable

from PySide6.QtCore import QObject, Signal

from engine.spec.bookmark import Bookmark, BookmarkTarget, OnHead, OnPage, OnToken, check_bookmarks


class Bookmarks(QObject):
    """At most one bookmark per place, in the order of their steps. A place names a step of the history tree, so that
    going back and other branches do not affect it. Signal: `changed()`, a bookmark was set, removed or edited."""

    changed = Signal()

    def __init__(self) -> None:
        super().__init__()
        self._all: dict[BookmarkTarget, Bookmark] = {}

    def __len__(self) -> int:
        return len(self._all)

    @property
    def all(self) -> tuple[Bookmark, ...]:
        """Every bookmark, sorted by step and then by when it was set."""
        return tuple(sorted(self._all.values(), key=_step_of))

    def at(self, target: BookmarkTarget) -> Bookmark | None:
        """The bookmark at a place; None if there is none."""
        return self._all.get(target)

    def put(self, bookmark: Bookmark) -> None:
        """Set a bookmark, in place of the one at the same place. Raises `InputError` if there are too many."""
        together = {**self._all, bookmark.target: bookmark}
        check_bookmarks(tuple(together.values()))
        self._take(together)

    def remove(self, target: BookmarkTarget) -> None:
        """Remove the bookmark at a place, if there is one."""
        self._take({place: one for place, one in self._all.items() if place != target})

    def set_all(self, bookmarks: Iterable[Bookmark]) -> None:
        """Replace all bookmarks, by those of an opened session or by none."""
        self._take({bookmark.target: bookmark for bookmark in bookmarks})

    def _take(self, bookmarks: dict[BookmarkTarget, Bookmark]) -> None:
        if bookmarks != self._all:
            self._all = bookmarks
            self.changed.emit()

    # ---- by what they are set on ---------------------------------------------------------------------------------

    def on_steps(self) -> dict[int, tuple[Bookmark, ...]]:
        """All bookmarks, whatever they are set on, by step."""
        found: dict[int, tuple[Bookmark, ...]] = {}
        for one in self.all:
            found[one.target.step] = (*found.get(one.target.step, ()), one)
        return found

    def on_tokens(self, seq_id: int) -> dict[tuple[int, int], Bookmark]:
        """Bookmarks on tokens of a sequence, by (step that computed the token, position)."""
        tokens = ((one.target, one) for one in self._all.values() if isinstance(one.target, OnToken))
        return {(target.step, target.position): one for target, one in tokens if target.seq_id == seq_id}

    def on_pages(self, pool: int) -> dict[int, Bookmark]:
        """Bookmarks on pages of a pool, by page id; the newest step's where a page has several."""
        pages = [one for one in self.all if isinstance(one.target, OnPage) and one.target.pool == pool]
        return {one.target.page_id: one for one in pages if isinstance(one.target, OnPage)}

    def on_heads(self, seq_id: int) -> dict[tuple[int, int], Bookmark]:
        """Bookmarks on heads of a sequence, by (layer, kv head); the newest step's where a head has several."""
        heads = [one for one in self.all if isinstance(one.target, OnHead) and one.target.seq_id == seq_id]
        return {(one.target.layer, one.target.kv_head): one for one in heads if isinstance(one.target, OnHead)}


def _step_of(bookmark: Bookmark) -> int:
    return bookmark.target.step


def selected_fields(target: BookmarkTarget) -> dict[str, int]:
    """The fields of the selection that show a place."""
    match target:
        case OnToken(seq_id=seq_id, position=position):
            return {"seq_id": seq_id, "position": position}
        case OnPage(pool=pool, page_id=page_id):
            return {"pool": pool, "page": page_id}
        case OnHead(seq_id=seq_id, layer=layer, kv_head=kv_head):
            return {"seq_id": seq_id, "layer": layer, "kv_head": kv_head}
        case _:
            return {}
