"""Which pages of the prefix cache a prompt can reuse, and why not more of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from engine.wire.message import Variant
from engine.wire.page_events import ROOT_HASH


def num_hashable_pages(num_tokens: int, page_size: int) -> int:
    """How many pages of a prompt can be served from the prefix cache: full ones that do not hold its last token.

    The last token is always computed, because its logits are needed (vLLM `get_computed_blocks`, MAX's block manager):
    128 tokens at page size 128 give 0, 129 give 1.
    """
    return max(0, num_tokens - 1) // page_size


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The cached pages that a prompt can start from, at the time of the lookup.

    `page_hashes` are the hashes of `page_ids`. `token_bytes` is the whole prompt as little-endian int32.
    """

    page_size: int
    page_ids: tuple[int, ...]
    page_hashes: tuple[bytes, ...]
    token_bytes: bytes = field(repr=False)

    @property
    def num_tokens(self) -> int:
        """Tokens in the prompt."""
        return len(self.token_bytes) // 4

    @property
    def num_hit_tokens(self) -> int:
        """Leading tokens whose K and V need not be computed again."""
        return len(self.page_ids) * self.page_size

    @property
    def num_hashable_pages(self) -> int:
        """The most pages that a hit could have: full ones without the last token."""
        return num_hashable_pages(self.num_tokens, self.page_size)

    def cut(self, num_pages: int) -> PrefixMatch:
        """The same match with at most `num_pages` pages."""
        return replace(self, page_ids=self.page_ids[:num_pages], page_hashes=self.page_hashes[:num_pages])

    @property
    def last_hash(self) -> bytes:
        """The hash of the last matched page, or the common root of all chains."""
        return self.page_hashes[-1] if self.page_hashes else ROOT_HASH

    def page_tokens(self, page: int) -> bytes:
        """The encoded tokens of the prompt's logical page `page`."""
        width = 4 * self.page_size
        return self.token_bytes[page * width : (page + 1) * width]


class AllFullPagesHit(Variant, frozen=True):
    """All full pages were found. The last `num_tail_tokens` tokens are computed because only whole pages are shared and
    the last token is always computed; a tail of exactly one page was not reused for the second reason alone."""

    num_tail_tokens: int


class TokensDiffer(Variant, frozen=True):
    """The most similar cached page differs first at `position`. The `num_floor_tokens` equal tokens before it cannot be
    reused because only whole pages are shared. `is_exact` False: there were more candidates than were compared."""

    position: int
    num_floor_tokens: int
    is_exact: bool


class NothingFollows(Variant, frozen=True):
    """No cached page continues this prefix, so from `position` on there is nothing to compare with."""

    position: int


class Forked(Variant, frozen=True):
    """There was no prefix lookup: the sequence was forked from sequence `parent`."""

    parent: int


class Converted(Variant, frozen=True):
    """There was no prefix lookup: the sequence was older than the pool and was moved into it by a change of the
    mode."""


class ContinuedFrom(Variant, frozen=True):
    """The prompt replaced sequence `parent`, which had rows of `num_cached` tokens; `num_reused` of them were kept.

    `position` is that of the first differing token, None if none differs; `token` is the prompt's token there, by id
    and text, and `cached` the cached one (None: there is none). `line` and `line_text` are the line of the chat
    template that wrote the token, 0 if unknown. `why` says why rows of equal tokens were not kept.
    """

    parent: int
    num_cached: int
    num_reused: int
    position: int | None = None
    token: tuple[int, str] | None = None
    cached: tuple[int, str] | None = None
    line: int = 0
    line_text: str = ""
    why: str = ""

    def words(self, quoted: Callable[[str], str]) -> str:
        """The result in sentences; `quoted` puts a text of the model between quotation marks and makes all its
        characters visible."""
        kept = f"{self.num_reused:,} of {self.num_cached:,} rows of seq {self.parent} kept"
        differs = self._difference(quoted)
        if self.why:
            return f"{kept}: {self.why}. {differs}".rstrip()
        return f"{kept}. {differs or 'Every token in its cache agrees.'}"

    def _difference(self, quoted: Callable[[str], str]) -> str:
        """A sentence about the first differing token, with the line of the template that wrote it; empty if none
        differs."""
        if self.position is None or self.cached is None:
            return ""
        had = f"{quoted(self.cached[1])} (id {self.cached[0]}) in the cache"
        if self.token is None:
            return f"The prompt ends at token {self.position:,}, where there is {had}."
        line = f" Line {self.line} of the chat template wrote it: {self.line_text}" if self.line else ""
        return f"Token {self.position:,} differs: {quoted(self.token[1])} (id {self.token[0]}) here, {had}.{line}"


WhyNotReused = ContinuedFrom | AllFullPagesHit | TokensDiffer | NothingFollows | Forked | Converted
