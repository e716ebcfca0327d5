"""Snapshot files taken apart, changed by hand, and put together again: by the words of the format alone."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

SUMS: dict[str, Callable[[bytes], str]] = {
    "crc32": lambda content: f"{zlib.crc32(content):08x}",
    "sha256": lambda content: hashlib.sha256(content).hexdigest(),
}


@dataclass
class Crafted:
    """The header as a dictionary, the manifest apart, and the bytes of every tensor in their order."""

    manifest: dict[str, str]
    entries: dict[str, dict[str, Any]]
    data: bytes

    @classmethod
    def of(cls, raw: bytes) -> Crafted:
        length = int.from_bytes(raw[:8], "little")
        entries = json.loads(raw[8 : 8 + length])
        return cls(entries.pop("__metadata__"), entries, raw[8 + length :])

    def bytes(self) -> bytes:
        """The file; nothing is checked, and no checksum is made anew."""
        text = json.dumps({"__metadata__": self.manifest, **self.entries}, ensure_ascii=False).encode(
            "utf-8", "replace"
        )
        return framed(text, self.data)

    # ---- single changes ------------------------------------------------------------------------------------------

    def say(self, **fields: Any) -> Crafted:
        """Other words in the manifest: text as it is, anything else as JSON."""
        self.manifest |= {name: v if isinstance(v, str) else json.dumps(v) for name, v in fields.items()}
        return self

    def layer(self, number: int, **fields: Any) -> Crafted:
        """Other words about one layer."""
        layers = json.loads(self.manifest["layers"])
        layers[number] |= fields
        return self.say(layers=layers)

    def entry(self, name: str, **fields: Any) -> Crafted:
        self.entries[name] |= fields
        return self

    def put(self, name: str, array: np.ndarray[Any, Any]) -> Crafted:
        """Other numbers in a tensor, of the same dtype and shape; its checksum is made anew."""
        start, stop = self.entries[name]["data_offsets"]
        content = array.tobytes()
        assert len(content) == stop - start
        self.data = self.data[:start] + content + self.data[stop:]
        return self.sealed()

    def get(self, name: str, dtype: str = "<i8") -> np.ndarray[Any, Any]:
        start, stop = self.entries[name]["data_offsets"]
        return np.frombuffer(self.data[start:stop], dtype).reshape(self.entries[name]["shape"]).copy()

    def sealed(self) -> Crafted:
        """With true checksums: whoever is hostile can do sums too."""
        sum_of, sums = SUMS[self.manifest.get("checksum_kind", "sha256")], {}
        for name, entry in self.entries.items():
            start, stop = entry["data_offsets"]
            sums[name] = sum_of(self.data[start:stop])
        return self.say(checksums=sums)

    def as_second_version(self) -> Crafted:
        """As version 2 wrote it: every checksum is SHA-256, and nothing says so."""
        del self.manifest["checksum_kind"]
        self.say(format_version="2", header_checksum="0" * 64).sealed()
        length = int.from_bytes(self.bytes()[:8], "little")
        return self.say(header_checksum=hashlib.sha256(self.bytes()[8 : 8 + length]).hexdigest())


def framed(text: bytes, data: bytes = b"") -> bytes:
    """A header and what follows."""
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def changed(raw: bytes, change: Callable[[Crafted], object]) -> bytes:
    """A file after a change."""
    made = Crafted.of(raw)
    change(made)
    return made.bytes()
