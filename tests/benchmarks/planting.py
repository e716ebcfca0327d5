"""Finds small plausible bugs that a Python source could have, and writes the source with one of them."""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
OTHER: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
OTHER_NAME = {"min": "max", "max": "min", "any": "all", "all": "any", "floor": "ceil", "ceil": "floor"}
# Numbers in these calls are layout, and words are for readers of tracebacks: no bugs are planted there.
LOOKS = (
    "setContentsMargins",
    "setSpacing",
    "setFixed",
    "setMinimum",
    "setMaximum",
    "resize",
    "adjusted",
    "QSize",
    "QMargins",
)
NOT_TRIED = ("__repr__", "__str__")
# Calls whose arguments can be swapped without effect.
SYMMETRIC = (
    "max",
    "min",
    "maximum",
    "minimum",
    "multiply",
    "add",
    "gcd",
    "isclose",
    "allclose",
    "array_equal",
    "equal",
)


@dataclass(frozen=True)
class Bug:
    """One change of one source: the bytes from `start` to `stop` become `text`."""

    path: str
    line: int
    start: int
    stop: int
    text: str
    kind: str

    def told(self, source: str) -> str:
        was = source.encode()[self.start : self.stop].decode()
        return f"{self.path}:{self.line} {self.kind}: {_short(was)} -> {_short(self.text)}"


def with_bug(source: str, bug: Bug) -> str:
    data = source.encode()
    return (data[: bug.start] + bug.text.encode() + data[bug.stop :]).decode()


def bugs(path: str, source: str) -> list[Bug]:
    """All bugs that can be planted in a source. A few make it impossible to compile: see `compiles`."""
    starts = [0]
    for text in source.encode().splitlines(keepends=True):
        starts.append(starts[-1] + len(text))
    found = []
    for node, kind, other in _changes(ast.parse(source)):
        if node.end_lineno is None or node.end_col_offset is None:
            continue
        start = starts[node.lineno - 1] + node.col_offset
        stop = starts[node.end_lineno - 1] + node.end_col_offset
        text = ast.unparse(other)
        if isinstance(other, ast.expr) and not isinstance(other, (ast.Name, ast.Constant, ast.Call)):
            text = f"({text})"
        found.append(Bug(path, node.lineno, start, stop, text, kind))
    return found


def compiles(source: str, bug: Bug) -> bool:
    try:
        compile(with_bug(source, bug), bug.path, "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def sample(root: Path, folders: list[str], count: int, seed: int) -> list[Bug]:
    """`count` random bugs: each line of these folders is as likely as any other, and so is each bug of a line."""
    by_line: list[list[Bug]] = []
    for folder in folders:
        place = root / folder
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            lines: dict[int, list[Bug]] = {}
            for bug in bugs(str(path.relative_to(root)), path.read_text("utf-8")):
                lines.setdefault(bug.line, []).append(bug)
            by_line.extend(lines.values())
    chance = random.Random(seed)
    chance.shuffle(by_line)
    found = (chance.choice(few) for few in by_line)
    return list(islice((bug for bug in found if compiles((root / bug.path).read_text("utf-8"), bug)), count))


def _changes(tree: ast.Module) -> Iterator[tuple[ast.expr | ast.stmt, str, ast.expr | ast.stmt]]:
    for node in _tried(tree):
        yield from _of_expression(node)
        yield from _of_statement(node)


def _tried(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but types, words, raised errors and numbers of layout."""
    if isinstance(node, ast.FunctionDef) and node.name in NOT_TRIED:
        return
    if isinstance(node, (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom, ast.JoinedStr)):
        return
    if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
        return
    if isinstance(node, ast.Call) and _called(node).startswith(LOOKS):
        return
    if isinstance(node, ast.keyword) and node.arg == "strict":
        return
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "type_params", "decorator_list"):
            continue
        if name == "value" and isinstance(node, (ast.Assign, ast.AnnAssign)) and _is_of_types(node):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _tried(child)


def _is_of_types(node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether this is `Name = A | B`, a name for a type."""
    value = node.value
    while isinstance(value, ast.BinOp) and isinstance(value.op, ast.BitOr):
        value = value.left
    return isinstance(value, (ast.Name, ast.Attribute, ast.Subscript)) and value is not node.value


def _of_expression(node: ast.AST) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    if isinstance(node, ast.Compare):
        for index, op in enumerate(node.ops):
            yield node, "comparison", _with(node, "ops", index, OPPOSITE[type(op)]())
    elif isinstance(node, ast.BinOp) and type(node.op) in OTHER and not _is_text(node):
        yield node, "operator", ast.BinOp(node.left, OTHER[type(node.op)](), node.right)
    elif isinstance(node, ast.BoolOp):
        other = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield node, "and, or", ast.BoolOp(other, node.values)
        for index in range(len(node.values)):
            rest = [value for place, value in enumerate(node.values) if place != index]
            yield node, "missing clause", rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub)):
        yield node, "missing not or minus", node.operand
    elif isinstance(node, ast.IfExp):
        yield node, "condition", ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield node, "constant", ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, "constant", ast.Constant(node.value + 1)
    elif isinstance(node, ast.Constant) and type(node.value) is float:
        yield node, "constant", ast.Constant(node.value * 2 or 1.0)
    elif isinstance(node, ast.Slice):
        for name in ("lower", "upper"):
            bound = getattr(node, name)
            if bound is not None and not isinstance(bound, ast.Constant):
                yield bound, "off by one", ast.BinOp(bound, ast.Add(), ast.Constant(1))
    elif isinstance(node, ast.Call):
        yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[tuple[ast.expr, str, ast.expr]]:
    if isinstance(node.func, ast.Name) and node.func.id in OTHER_NAME:
        yield node.func, "function", ast.Name(OTHER_NAME[node.func.id])
    few = [arg for arg in node.args if not isinstance(arg, (ast.Constant, ast.Starred))]
    is_symmetric = _called(node) in SYMMETRIC and len(few) == 2
    if len(few) >= 2 and few == node.args and not is_symmetric and ast.dump(few[0]) != ast.dump(few[1]):
        yield node, "swapped arguments", ast.Call(node.func, [few[1], few[0], *few[2:]], node.keywords)
    for index, word in enumerate(node.keywords):
        if word.arg not in (None, "strict"):
            rest = [other for place, other in enumerate(node.keywords) if place != index]
            yield node, f"missing {word.arg}", ast.Call(node.func, node.args, rest)


def _of_statement(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str, ast.expr | ast.stmt]]:
    if isinstance(node, (ast.If, ast.While)):
        yield node.test, "condition", ast.UnaryOp(ast.Not(), node.test)
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "missing call", ast.Pass()
    elif isinstance(node, (ast.Assign, ast.AugAssign)):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if isinstance(targets[0], (ast.Attribute, ast.Subscript)):
            yield node, "missing assignment", ast.Pass()
    elif isinstance(node, (ast.Continue, ast.Break)):
        yield node, "missing jump", ast.Pass()
    for name in ("ifs",):
        for clause in getattr(node, name, []):
            yield clause, "missing filter", ast.Constant(True)


def _with(node: ast.Compare, name: str, index: int, value: ast.cmpop) -> ast.Compare:
    other = copy.copy(node)
    ops = list(node.ops)
    ops[index] = value
    setattr(other, name, ops)
    return other


def _is_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 100 else line[:97] + "..."
