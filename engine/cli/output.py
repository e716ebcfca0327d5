"""What is printed: JSON lines, and text that may come from a model."""

from __future__ import annotations

import json
import sys
from typing import Any


def printable(text: str) -> str:
    """Text from a model may hold terminal escapes: only line ends and tabs pass as they are."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def printable_line(error: object) -> str:
    """What went wrong, on one line: words of a file that somebody else made may stand in it."""
    return printable(str(error)).replace("\n", "\\x0a").replace("\t", "\\x09")


def say(line: dict[str, Any]) -> None:
    json.dump(line, sys.stdout, ensure_ascii=True)
    sys.stdout.write("\n")
    sys.stdout.flush()
