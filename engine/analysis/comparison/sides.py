"""The two sides of a comparison: a sequence of a session, a step of its history, or a snapshot file."""

from __future__ import annotations

from itertools import takewhile
from typing import TYPE_CHECKING

import torch
from msgspec.structs import replace

from engine.analysis.tolerance import TOLERANCES
from engine.cache.contract import Pair
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.look.source import PARTS, LiveSource, Source, row_at
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_label
from engine.wire.comparison import ComparedSide
from engine.wire.pictures import Picture, PictureRequest

if TYPE_CHECKING:
    from engine.opened.file import OpenedSnapshot


class LiveRun:
    """A sequence of a session: as it is now, or as it was with `until` tokens. Requests for more than `num_tokens`, the
    number of tokens with rows, are answered for that many. `is_own`: the session was made for the comparison and is
    closed with it."""

    def __init__(
        self, session: Session, seq_id: int, name: str, until: int | None = None, *, is_own: bool = False
    ) -> None:
        self.session, self.seq_id, self._name, self._until, self._is_own = session, seq_id, name, until, is_own
        self._costs: dict[int, tuple[float, int]] = {}
        self._steps: dict[int, int] = {}  # steps by number of tokens, since searching the history is slow

    @property
    def geometry(self) -> CacheGeometry:
        return self.session.model.info.geometry

    @property
    def num_tokens(self) -> int:
        count = self.session.sequence(self.seq_id).num_tokens
        return count if self._until is None else min(count, self._until)

    @property
    def token_ids(self) -> list[int]:
        """The ids of all tokens with rows."""
        return self.session.sequence(self.seq_id).token_ids[: self.num_tokens]

    def side(self) -> ComparedSide:
        info, spec = self.session.model.info, self.session.cache
        edited_from = self.session.cache_of(self.seq_id).by_hand.back_to(self.num_tokens).first_position
        is_lossy, moves = not spec.is_exact, self._until is None
        return ComparedSide(self._name, info.name, cache_label(spec), info.dtype, is_lossy, moves, edited_from)

    def source(self, num_tokens: int) -> LiveSource:
        return self.session.rows_at(self.seq_id, min(num_tokens, self.num_tokens))

    def newest(self, num_tokens: int) -> dict[int, Pair]:
        """K and V `[H_kv, D]` by layer of the row that was added when the run reached `num_tokens`, for layers in which
        every head holds it."""
        sequence = self.session.sequence(self.seq_id)
        if num_tokens == sequence.num_tokens:  # avoids dequantising all rows
            found = self.session.cache_of(self.seq_id).all_newest_rows(num_tokens - 1)
            return {layer: (keys[:, -1], values[:, -1]) for layer, (keys, values) in found.items() if keys.shape[1]}
        return newest_of(self.source(num_tokens), self.geometry, num_tokens - 1)

    def logits(self, num_tokens: int) -> torch.Tensor | None:
        """Logits `[V]` of the forward pass with which the run reached `num_tokens`; None if they are not kept."""
        step = self.step_with(num_tokens)
        return None if step is None else self.session.history.logits_at(self.seq_id, step)

    def attention(self, num_tokens: int) -> dict[int, torch.Tensor]:
        """Attention weights `[H, S]` by layer of the newest query at `num_tokens`; empty if they are not kept."""
        step = self.step_with(num_tokens)
        return {} if step is None else self.session.history.attention_at(self.seq_id, step)

    def picture(self, request: PictureRequest) -> Picture:
        """A picture of this run, whatever sequence the request names."""
        return self.session.take_picture(replace(request, seq_id=self.seq_id))

    @property
    def mode(self) -> CacheSpec:
        """The cache mode of its rows now."""
        return self.session.cache

    def lengths(self, above: int) -> list[int]:
        """The numbers of tokens above `above`, ascending, after its steps in the present mode whose logits are kept."""
        logged = self.session.history.logged_logits(self.seq_id, above)
        found = {each.num_tokens: each.step for each in logged if each.cache == self.mode}
        self._steps.update(found)
        return [count for count in found if count <= self.num_tokens]

    @property
    def is_before_first_step(self) -> bool:
        """Whether no step was taken in the present mode since the run was changed into it."""
        newest = self.session.history.logged_logits(self.seq_id, self.num_tokens - 1)
        return any(each.num_tokens == self.num_tokens and each.cache != self.mode for each in newest)

    def step_with(self, num_tokens: int) -> int | None:
        """The step after which the run had `num_tokens`."""
        step = self._steps.get(num_tokens)
        state = None if step is None else self.session.history.journal.state(self.seq_id, step)
        if state is not None and state.num_tokens == num_tokens:
            return step
        return self.session.history.step_at(self.seq_id, num_tokens)

    def note(self, num_tokens: int, took_ms: float, num_bytes: int) -> None:
        """Store the cost of the step with which the run reached `num_tokens`."""
        self._costs[num_tokens] = took_ms, num_bytes

    def cost(self, num_tokens: int) -> tuple[float | None, int | None]:
        """Milliseconds of the step with which the run reached `num_tokens`, and bytes of its K and V after it; None if
        unknown."""
        return self._costs.get(num_tokens, (None, None))

    def close(self) -> None:
        if self._is_own:
            self.session.close()


def run_at(session: Session, seq_id: int, step: int) -> LiveRun:
    """A sequence as it was after a step of any branch, in a session of its own."""
    then = session.session_at(step)
    if seq_id not in then.live.ids:
        then.close()
        raise InputError(f"Sequence {seq_id} was not there after step {step}: choose one that both branches have.")
    is_elsewhere = not session.history.tree.is_on_path(step, session.last_step)
    name = f"step {step} of another branch" if is_elsewhere else f"step {step}"
    return LiveRun(then, seq_id, name, then.sequence(seq_id).num_tokens, is_own=True)


class FileRun:
    """The sequence of a snapshot file, read as `LiveRun` is. `is_own`: the file was opened for the comparison and is
    closed with it."""

    seq_id = 0  # a file has one sequence, whatever its id was when it was written

    def __init__(self, opened: OpenedSnapshot, *, is_own: bool = False) -> None:
        self._opened, self._is_own = opened, is_own

    @property
    def geometry(self) -> CacheGeometry:
        return self._opened.info.geometry

    @property
    def num_tokens(self) -> int:
        return self._opened.num_tokens

    @property
    def token_ids(self) -> list[int]:
        """The ids of the tokens, up to the first unknown one."""
        return list(takewhile(lambda token_id: token_id >= 0, self._opened.token_ids))

    def side(self) -> ComparedSide:
        info, rows = self._opened.info, self._opened.rows
        if info.dtype not in TOLERANCES:
            raise InputError(f"{self._opened.file.path.name} is in {info.dtype}, which no table of rounding knows.")
        is_lossy = not rows.spec.is_exact or rows.spec.layout == "quantized"
        file = self._opened.file
        cache = self._opened.opened.foreign_cache or cache_label(rows.spec)
        edited_from = file.manifest.edited_from
        return ComparedSide(
            file.path.name, info.name, cache, info.dtype, is_lossy, moves=False, edited_from=edited_from
        )

    def source(self, num_tokens: int) -> Source:
        return self._opened.at(num_tokens)

    def newest(self, num_tokens: int) -> dict[int, Pair]:
        return newest_of(self._opened.at(num_tokens), self.geometry, num_tokens - 1)

    def logits(self, num_tokens: int) -> torch.Tensor | None:
        return self._opened.logits() if num_tokens == self.num_tokens else None

    def attention(self, num_tokens: int) -> dict[int, torch.Tensor]:
        if num_tokens != self.num_tokens:
            return {}
        rows = ((layer.index, self._opened.attention(layer.index)) for layer in self.geometry.attention_layers)
        return {index: row for index, row in rows if row is not None}

    def picture(self, request: PictureRequest) -> Picture:
        return self._opened.take(request)

    @property
    def mode(self) -> CacheSpec:
        return self._opened.rows.spec

    @property
    def is_before_first_step(self) -> bool:
        return False

    def lengths(self, above: int) -> list[int]:
        return [self.num_tokens] if self.num_tokens > above else []

    def step_with(self, num_tokens: int) -> int | None:
        return self._opened.last_step if num_tokens == self.num_tokens else None

    def cost(self, num_tokens: int) -> tuple[float | None, int | None]:
        return None, None

    def close(self) -> None:
        if self._is_own:
            self._opened.close()


ComparedRun = LiveRun | FileRun


def newest_of(source: Source, geometry: CacheGeometry, position: int) -> dict[int, Pair]:
    """K and V `[H_kv, D]` of a position, for layers in which every head holds it."""
    found: dict[int, Pair] = {}
    for layer in geometry.attention_layers:
        rows = [source.rows(layer.index, part, range(position, position + 1)) for part in PARTS]
        pair = [None if each is None else row_at(each, position) for each in rows]
        is_whole = rows[0] is not None and (
            rows[0].positions is None or bool((rows[0].positions == position).any(1).all())
        )
        if is_whole and pair[0] is not None and pair[1] is not None:
            found[layer.index] = pair[0], pair[1]
    return found


def check_comparable(a: ComparedRun, b: ComparedRun) -> str:
    """Raise `InputError` if the vocabularies differ in size. Returns a sentence that says why K and V cannot be
    compared; empty if they can."""
    one, other = a.geometry, b.geometry
    check_vocabularies(one, other)
    shapes = [[(x.index, x.num_kv_heads, x.key_dim, x.value_dim) for x in g.attention_layers] for g in (one, other)]
    if shapes[0] != shapes[1]:
        return "The two models have other layers or heads: their logits are compared, their K and V cannot be."
    return ""


def check_vocabularies(one: CacheGeometry, other: CacheGeometry) -> None:
    """Raise `InputError` if the models have vocabularies of different sizes."""
    if None not in (one.vocab_size, other.vocab_size) and one.vocab_size != other.vocab_size:
        raise InputError(
            f"The two models have vocabularies of {one.vocab_size:,} and {other.vocab_size:,} tokens: compare models "
            "that share one."
        )
