"""Limits, tolerances and sizes of all the engine, as they were approved: one that changes by accident is noticed here,
and who changes one on purpose reads the difference."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.engine.told import approve

ROOT = Path(__file__).resolve().parents[2]


def constants_of(path: Path) -> Iterator[str]:
    """The names in capitals that a module gives to numbers and words, alone or in tables."""
    tree = ast.parse(path.read_text("utf-8"))
    assigned = (node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign))
    targets = (each for node in assigned for each in (node.targets if isinstance(node, ast.Assign) else [node.target]))
    names = [each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)]
    if not any(name.isupper() for name in names):
        return
    module = import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    for name in names:
        value = getattr(module, name, None)
        if name.isupper() and _is_plain(value):
            yield f"{module.__name__}.{name} = {_words(value)}"


def _words(value: Any) -> str:
    """A value as Python writes it; what has no order in one."""
    match value:
        case dict():
            return f"{{{', '.join(f'{key!r}: {_words(each)}' for key, each in value.items())}}}"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(_words, value)))}}}"
        case tuple() | list():
            return f"({', '.join(map(_words, value))})"
    return repr(value)


def _is_plain(value: Any) -> bool:
    if isinstance(value, dict):
        return len(value) > 0 and all(map(_is_plain, (*value, *value.values())))
    if isinstance(value, tuple | list | frozenset | set):
        return len(value) > 0 and all(map(_is_plain, value))
    return isinstance(value, int | float | str | bytes)


def test_constants_are_as_approved() -> None:
    lines = [line for path in sorted((ROOT / "engine").rglob("*.py")) for line in constants_of(path)]
    approve(Path(__file__).parent / "approved" / "constants.txt", lines)
