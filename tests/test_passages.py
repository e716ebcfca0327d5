"""No six lines stand in two places, in the product and in its tests: what two places need has one home."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LENGTH = 6
# repeated passages that are allowed, by the two files and the first line, with the reason
HONEST = {
    ("engine/loop/phases.py", "engine/loop/workspace.py", "def __init__("): "two owners need the same other owners",
    ("engine/model/attention.py", "engine/model/attention.py", "query: torch.Tensor,"): "weights, and those in pieces",
}


def test_no_passage_of_six_lines_stands_twice() -> None:
    found = _twice(_files("app", "engine")) | _twice(_files("tests"))
    assert set(found) == set(HONEST), "; ".join(places for key, places in found.items() if key not in HONEST)


def test_a_passage_is_found_whatever_its_indentation_comments_and_imports() -> None:
    lines = [f"value_{number} = {number}" for number in range(LENGTH)]
    one = "\n".join(lines)
    other = "\n".join(["import torch", "if True:", *(f"    {line}\n\n    # why" for line in lines)])
    assert _twice({"a.py": one, "b.py": other}) == {("a.py", "b.py", "value_0 = 0"): "a.py:1 and b.py:3"}
    assert not _twice({"a.py": one, "b.py": other.replace("value_3", "value_4")})
    imports = "from engine.errors import (\n" + "".join(f"    Name{number},\n" for number in range(9)) + ")\n"
    assert not _twice({"a.py": imports, "b.py": imports})


def _files(*rooms: str) -> dict[str, str]:
    files = sorted(file for room in rooms for file in (ROOT / room).rglob("*.py"))
    return {file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files}


def _twice(texts: dict[str, str]) -> dict[tuple[str, str, str], str]:
    """The places of each repeated passage, by the two files and its first line."""
    first: dict[tuple[str, ...], tuple[str, int]] = {}
    found: dict[tuple[str, str, str], str] = {}
    for name, text in texts.items():
        numbered = list(_lines(text))
        for start in range(len(numbered) - LENGTH + 1):
            passage = tuple(line for _, line in numbered[start : start + LENGTH])
            here = name, numbered[start][0]
            there = first.setdefault(passage, here)
            if there != here:
                found.setdefault((there[0], name, passage[0]), f"{there[0]}:{there[1]} and {name}:{here[1]}")
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Lines of code with their numbers, without blank lines, comments, imports, lone brackets and quotes."""
    is_import = False
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if is_import or line.startswith(("import ", "from ")):
            is_import = line.endswith("(") or (is_import and ")" not in line)
        elif line and not line.startswith("#") and line.strip('()[]{},: "'):
            yield number, line
