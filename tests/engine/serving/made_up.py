"""KV events as servers write them."""

from __future__ import annotations

from typing import Any

import msgspec

from engine.serving.events import FIELDS, Message


def stored(hashes: list[Any], ids: list[int], parent: Any = None, size: int = 4, **more: Any) -> dict[str, Any]:
    fields = {"type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": ids}
    return {**fields, "block_size": size, "medium": "GPU", **more}


def removed(*hashes: Any, **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": list(hashes), "medium": "GPU", **more}


CLEARED = {"type": "AllBlocksCleared"}


def as_list(event: dict[str, Any]) -> list[Any]:
    """The event as servers before the maps wrote it, with a field behind that nobody knows."""
    names = FIELDS[event["type"]]
    return [event["type"], *(event.get(name) for name in names), *(["from the future"] if names else [])]


def batch(seq: int, *events: Any, time: float | None = None, rank: int | None = 0, topic: bytes = b"kv") -> Message:
    body = [float(seq) if time is None else time, list(events), *([] if rank is None else [rank])]
    return Message(topic, seq, msgspec.msgpack.encode(body))
