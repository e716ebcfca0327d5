"""Checksums of the bytes of a tensor, of the kinds that a snapshot may name. They detect damage, not forgery.

No torch.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable
from typing import Protocol

from engine.errors import InputError


class Checksum(Protocol):
    """A checksum over bytes that are added piece by piece."""

    def update(self, piece: bytes | memoryview, /) -> None: ...

    def hexdigest(self) -> str: ...


class Crc32:
    """CRC-32 as in zlib and gzip: several times faster than SHA-256, and in every standard library."""

    def __init__(self) -> None:
        self._sum = 0

    def update(self, piece: bytes | memoryview, /) -> None:
        self._sum = zlib.crc32(piece, self._sum)

    def hexdigest(self) -> str:
        return f"{self._sum:08x}"


KINDS: dict[str, Callable[[], Checksum]] = {"crc32": Crc32, "sha256": hashlib.sha256}
DIGITS = {"crc32": 8, "sha256": 64}  # hexadecimal digits
WRITTEN_KIND = "crc32"  # the kind that this program writes


def checksum(kind: str) -> Checksum:
    """A new checksum; raises `InputError` for an unknown kind."""
    if kind not in KINDS:
        raise InputError(f"checksums of the kind {kind[:20]!r} are not known")
    return KINDS[kind]()
