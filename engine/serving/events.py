"""KV events: what a batch of them says, recordings of batches (`.kvevents`), and a session's own page events as such.

A batch is msgpack `[time, events, rank]` or a map of these, an event a list (fields by place) or a map (fields by
name). Field names and framing are vLLM's, which SGLang and TensorRT-LLM follow. Of SGLang alone: its lists end with a
map of what is rare (a salt, a session), in the place of vLLM's `lora_name`; with EAGLE its blocks are keyed by pairs of
neighbouring tokens, and list those. Of a cache group that keeps only some blocks (sliding windows, recurrent states)
vLLM names those, and the tokens of all that it computed.

A recording has for each batch u32 length of the topic, topic, sequence number (8 bytes, big-endian), u32 length of the
payload, payload; lengths little-endian. Nothing before, between or after.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import msgspec

from engine.cache.paged.prefix import encode_token_ids
from engine.errors import InputError
from engine.files.text import open_regular
from engine.wire.pages import ROOT_HASH, PageCommitted, PageEvent, PageEvicted, Tier

Hash = int | bytes | str
# The fields of an event as a list, after its type. Later servers append to them: what is behind is passed over.
STORED = (
    "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name", "extra_keys",
    "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
)  # fmt: skip
FIELDS = {"BlockStored": STORED, "BlockRemoved": ("block_hashes", "medium", "group_idx"), "AllBlocksCleared": ()}
GPU = "GPU"
# What one batch may be at most; servers send a few kilobytes.
MAX_BYTES = 32 << 20
MAX_TIME = 1e15  # seconds; what is no number is not below it
_decode = msgspec.msgpack.Decoder().decode


class Stored(msgspec.Struct, frozen=True):
    """A chain of blocks became findable after `parent`. `tokens` are int32 bytes of each block, with the token behind
    it where its hash covers that too, and None where it is not said which they are; `extras` what else each block's
    hash covers: a salt (of the first one), media."""

    hashes: tuple[Hash, ...]
    parent: Hash | None
    tokens: tuple[bytes | None, ...]
    extras: tuple[tuple[str, ...], ...]
    block_size: int
    lora: str = ""
    medium: str = GPU
    group: int = 0
    window: int = 0


class Removed(msgspec.Struct, frozen=True):
    hashes: tuple[Hash, ...]
    medium: str = GPU
    group: int = 0


class Cleared(msgspec.Struct, frozen=True):
    """Every block is gone; of one medium, where it is named."""

    medium: str = ""


class Batch(msgspec.Struct, frozen=True):
    """`unknown` are the types of events that were passed over."""

    time: float
    rank: int
    events: tuple[Stored | Removed | Cleared, ...]
    encoding: str
    unknown: tuple[str, ...] = ()


def decode(payload: bytes) -> Batch:
    """A batch; raises InputError, with the reason in a few words, for anything else."""
    if len(payload) > MAX_BYTES:
        raise InputError(f"{len(payload):,} bytes, more than {MAX_BYTES:,}")
    try:
        body = _decode(payload)
        if isinstance(body, dict):
            time, events, rest = body["ts"], body["events"], [body.get("data_parallel_rank", body.get("attn_dp_rank"))]
        else:
            time, events, *rest = body
        if not isinstance(time, int | float) or not abs(time) < MAX_TIME or not isinstance(events, list):
            raise InputError("no batch of KV events")
        known: list[Stored | Removed | Cleared] = []
        unknown: list[str] = []
        encoding = ""
        for event in events:
            encoding = "maps" if isinstance(event, dict) else "arrays"
            name, fields = _fields(event)
            if name == "BlockStored":
                known.append(_stored(fields))
            elif name == "BlockRemoved":
                hashes = _hashes(fields["block_hashes"])
                known.append(Removed(hashes, _medium(fields), _whole(fields.get("group_idx"))))
            elif name == "AllBlocksCleared":
                known.append(Cleared(str(fields.get("medium") or "").upper()))
            else:
                unknown.append(name[:40])
        rank = rest[0] if rest and isinstance(rest[0], int) else 0
        return Batch(float(time), rank, tuple(known), encoding, tuple(unknown))
    except InputError:
        raise
    except (TypeError, ValueError, LookupError, ArithmeticError, AttributeError, RecursionError) as why:
        raise InputError(f"no batch of KV events ({type(why).__name__})") from None


def _fields(event: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(event, dict):
        return str(event["type"]), event
    name = str(event[0])
    fields = dict(zip(FIELDS.get(name, ()), event[1:], strict=False))
    if isinstance(fields.get("lora_name"), dict):
        fields |= {"lora_name": None, **fields["lora_name"]}
    return name, fields


def _stored(fields: dict[str, Any]) -> Stored:
    hashes = _hashes(fields["block_hashes"])
    size, ids, parent = _whole(fields.get("block_size")), fields.get("token_ids") or (), fields.get("parent_block_hash")
    lora = fields.get("lora_name") or fields.get("lora_id")
    lora = "" if lora is None else str(lora)
    tokens: tuple[bytes | None, ...] = (None,) * len(hashes)
    if ids:
        count, ahead = len(ids), isinstance(ids[0], list)
        if ahead:
            ids = [*(pair[0] for pair in ids), ids[-1][1]]
        are_more = size and count > size * len(hashes) and count % size == 0
        size = size or count // max(1, len(hashes))
        if count == size * len(hashes):
            data, width = encode_token_ids(ids), 4 * size
            tokens = tuple(data[at : at + width + 4 * ahead] for at in range(0, 4 * count, width))
        elif not are_more:
            raise InputError(f"{count} tokens for {len(hashes)} blocks of {size}")
    extra_keys = fields.get("extra_keys")
    extra_keys = extra_keys[: len(hashes)] if isinstance(extra_keys, list) else ()
    extras = [_extra(keys, lora) if keys else () for keys in extra_keys]
    extras += [()] * (len(hashes) - len(extras))
    salt = fields.get("cache_salt")
    if salt and extras and parent is None and str(salt) not in extras[0]:
        extras[0] = (*extras[0], str(salt))
    return Stored(
        hashes, None if parent is None else _hash(parent), tokens, tuple(extras), size, lora, _medium(fields),
        _whole(fields.get("group_idx")), _window(fields),
    )  # fmt: skip


def _hashes(values: Any) -> tuple[Hash, ...]:
    return tuple(values) if set(map(type, values)) <= {int} else tuple(map(_hash, values))


def _hash(value: Any) -> Hash:
    if isinstance(value, bool) or not isinstance(value, int | bytes | str) or value == "":
        raise InputError("a block hash that is no number, bytes or text")
    return value if isinstance(value, int) else value[:64]


def _whole(value: Any) -> int:
    """A whole number of at least 0, or 0 where none is given."""
    if value is None:
        return 0
    if not isinstance(value, int) or value < 0:
        raise InputError("a size or group that is no whole number")
    return value


def _window(fields: dict[str, Any]) -> int:
    """How many tokens the layers of a cache group see; 0: all. Recurrent ones need the block before the next token."""
    is_recurrent = "mamba" in str(fields.get("kv_cache_spec_kind"))
    return 2 if is_recurrent else _whole(fields.get("kv_cache_spec_sliding_window"))


def _medium(fields: dict[str, Any]) -> str:
    medium = fields.get("medium")
    return GPU if medium is None or medium == GPU else str(medium).upper()[:32]


def _extra(keys: Any, lora: str) -> tuple[str, ...]:
    """What a block's hash covers besides tokens and adapter, as text: a salt as it is, media as `hash at offset`."""
    found: list[str] = []
    for key in keys or ():
        if isinstance(key, list | tuple):
            found.append(" at ".join(str(part)[:64] for part in key[:4]))
        elif isinstance(key, bytes):
            with contextlib.suppress(UnicodeDecodeError):
                key = key.decode()
            found.append(key if isinstance(key, str) else key.hex()[:64])
        elif key is not None and str(key) != lora:
            found.append(str(key)[:256])
    return tuple(found)


# ---- recordings ------------------------------------------------------------------------------------------------------

MAX_TOPIC = 4096
END_MARK = (1 << 64) - 1  # the sequence number that ends a replay
_U32, _SEQ = struct.Struct("<I"), struct.Struct(">Q")


class Message(NamedTuple):
    """A batch as it came: three frames. One with the number `END_MARK` is none, and is not recorded: the publisher with
    that topic restarted, and has published nothing since."""

    topic: bytes
    seq: int
    payload: bytes


def packed(message: Message) -> bytes:
    topic, seq, payload = message
    return b"".join((_U32.pack(len(topic)), topic, _SEQ.pack(seq), _U32.pack(len(payload)), payload))


class Recording:
    """Reads a recording batch by batch. `cut` says afterwards whether the file ends within a batch."""

    def __init__(self, path: Path) -> None:
        self.path, self.cut = path, False

    def __iter__(self) -> Iterator[Message]:
        """Raises InputError for a file that cannot be read, or is no recording."""
        try:
            with open(open_regular(self.path, "recording"), "rb") as stream:
                yield from self._messages(stream)
        except OSError as error:
            raise InputError(
                f"'{self.path}' cannot be read ({error.strerror}): give a recording of KV events."
            ) from None

    def _messages(self, stream: BinaryIO) -> Iterator[Message]:
        number = 0
        while head := stream.read(4):
            size = _U32.unpack(head)[0] if len(head) == 4 else 0
            if size > MAX_TOPIC:
                raise self._is_none(number)
            rest = stream.read(size + 12)
            if len(head) < 4 or len(rest) < size + 12:
                self.cut = True
                break
            length = _U32.unpack_from(rest, size + 8)[0]
            if length > MAX_BYTES:
                raise self._is_none(number)
            payload = stream.read(length)
            if len(payload) < length:
                self.cut = True
                break
            seq = _SEQ.unpack_from(rest, size)[0]
            if seq != END_MARK:
                number += 1
                yield Message(rest[:size], seq, payload)
        if not number:
            raise self._is_none(0)

    def _is_none(self, number: int) -> InputError:
        if not number:
            return InputError(f"'{self.path}' is no recording of KV events: make one with `events record`.")
        return InputError(f"'{self.path}' is damaged after batch {number:,}: record it again, or use --at {number}.")


# ---- the page events of a session, as vLLM would publish them --------------------------------------------------------

# vLLM's names for the tiers. A CPU-only run uses them as well, so that vLLM's tools can read its events.
_MEDIUM = {Tier.DEVICE: "GPU", Tier.HOST: "CPU"}
_UINT64_MASK = (1 << 64) - 1


def vllm_block_hash(page_hash: bytes) -> int:
    """The hash of a page as in vLLM's events: the low 64 bits of the digest, as an unsigned big-endian number."""
    return int.from_bytes(page_hash, "big") & _UINT64_MASK


def to_vllm_events(events: Iterable[PageEvent], page_size: int) -> list[dict[str, Any]]:
    """Convert events to those that vLLM publishes, as dictionaries for JSON lines, in the map form of vLLM 0.28.

    Only changes of the prefix index appear there: committed pages as BlockStored, evicted ones as BlockRemoved, one per
    physical copy. Consecutive pages of one chain share an event. Source: vLLM's `distributed/kv_events.py`,
    `BlockStored`, `BlockRemoved`; optional fields at their default are left out, as there.
    """
    out: list[dict[str, Any]] = []
    last: PageEvent | None = None
    for event in events:
        if isinstance(event, PageCommitted):
            if not isinstance(last, PageCommitted) or (last.tier, last.page_hash) != (event.tier, event.parent_hash):
                parent = None if event.parent_hash == ROOT_HASH else vllm_block_hash(event.parent_hash)
                out.append(
                    {
                        "type": "BlockStored", "block_hashes": [], "parent_block_hash": parent, "token_ids": [],
                        "block_size": page_size, "lora_id": None, "medium": _MEDIUM[event.tier], "lora_name": None,
                    }
                )  # fmt: skip
            out[-1]["token_ids"] += event.token_ids
            page_hash = event.page_hash
        elif isinstance(event, PageEvicted):
            if not isinstance(last, PageEvicted) or last.committed.tier != event.committed.tier:
                out.append({"type": "BlockRemoved", "block_hashes": [], "medium": _MEDIUM[event.committed.tier]})
            page_hash = event.committed.page_hash
        else:
            continue
        out[-1]["block_hashes"].append(vllm_block_hash(page_hash))
        last = event
    return out
