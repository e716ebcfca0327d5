"""The Jinja environment in which chat templates run: transformers' rules (an immutable sandbox with its functions), no
files, and a budget of steps, time and characters: templates come from model folders and are not trusted.

Jinja compiles a template to Python code, which cannot be interrupted from outside. Therefore the template is rewritten
before it is compiled: every loop, joined text, slice and shown value passes through a counting filter, and calls,
operators and filters are counted in the hooks of the sandbox. Whatever cannot be counted is not available: only the
filters that chat templates use exist; bytes, `pprint` and `lipsum` do not. A single operation is not interrupted;
instead the total size of its arguments is limited.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import datetime
from functools import wraps
from string import Formatter
from typing import Any, cast

from jinja2 import Environment, TemplateError, nodes, pass_context
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace
from jinja2.visitor import NodeTransformer

from engine.errors import InputError

MAX_SECONDS = 2.0
MAX_STEPS = 1_000_000  # passes through loops, calls, filters, operations
MAX_VALUE = 16 << 20  # characters in one text
MAX_CHARS = 256 << 20  # characters in all texts made while rendering
MAX_ITEMS = 100_000  # items of one list; also the largest width or count
MAX_NESTED = 4 * MAX_ITEMS  # items of a list and the lists in it, each multiplied by its depth


class TemplateTooExpensive(InputError):
    """A template exceeds the limits, which no real one does."""


class RenderBudget:
    """Counts what one rendering uses; every method raises `TemplateTooExpensive` if a limit is exceeded."""

    def __init__(self) -> None:
        self._steps = self._chars = 0
        self._ends = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Count one loop pass, call or operation."""
        self._steps += 1
        if self._steps > MAX_STEPS or time.monotonic() > self._ends:
            raise TemplateTooExpensive(f"it does not end within {MAX_SECONDS:g} seconds and {MAX_STEPS:,} steps")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items, counting a step for each."""
        for item in items:
            self.step()
            yield item

    def count_value(self, value: Any) -> Any:
        """Count the characters or items of a new value, and return it."""
        self.step()
        if isinstance(value, str):
            self.check_length(len(value))
            self._chars += len(value)
            if self._chars > MAX_CHARS:
                raise TemplateTooExpensive(f"it makes more than {MAX_CHARS:,} characters")
        elif isinstance(value, list | tuple | dict) and len(value) > MAX_ITEMS:
            raise TemplateTooExpensive(f"it makes a list of more than {MAX_ITEMS:,} items")
        return value

    def count_nested(self, value: Any) -> Any:
        """Count a new value that may contain others, with everything in it, and return it."""
        self.total_size(value)
        return self.count_value(value)

    def total_size(self, value: Any) -> int:
        """The characters of a value and of everything in it, counted as often as it occurs. Nested lists can be small
        in memory, but showing, comparing or hashing them visits every item."""
        rest: list[tuple[Iterable[Any], int]] = [((value,), 0)]
        items = chars = 0
        while rest:
            held, depth = rest.pop()
            for each in held:
                if isinstance(each, str):
                    chars += len(each)
                elif isinstance(each, int):
                    chars += each.bit_length() // 3
                elif isinstance(each, Collection) and not isinstance(each, range):
                    items += (depth + 1) * len(each)
                    rest.append((each, depth + 1))
                    if isinstance(each, Mapping):
                        rest.append((each.values(), depth + 1))
                if items > MAX_NESTED:
                    raise TemplateTooExpensive(f"it makes a list of more than {MAX_NESTED:,} items")
            self.check_length(chars)
        self._steps += items // 16  # an item takes far less time than a step
        self.step()
        return chars

    @staticmethod
    def check_length(count: int) -> None:
        """Raise `TemplateTooExpensive` if a text of this length may not be made."""
        if count > MAX_VALUE:
            raise TemplateTooExpensive(f"it makes a text of more than {MAX_VALUE:,} characters")


# ---- the sandbox -----------------------------------------------------------------------------------------------------

MAX_INDENT = 16  # spaces, for JSON
MAX_BITS = 10_000  # of a whole number
FILTERS = frozenset(
    (
        *("abs", "attr", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float"),
        *("forceescape", "groupby", "indent", "int", "items", "join", "last", "length", "list", "lower", "map", "max"),
        *("min", "reject", "rejectattr", "replace", "reverse", "round", "safe", "select", "selectattr"),
        *("sort", "string", "title", "tojson", "trim", "truncate", "unique", "upper", "urlencode", "wordcount"),
    )
)
REFUSED = frozenset(["encode", "translate", "format_map", "striptags"])  # methods of str with unbounded results
GROWING = frozenset(  # result or time grows with an argument
    (
        *("replace", "indent", "truncate", "ljust", "rjust", "center", "zfill", "expandtabs"),
        *("strip", "lstrip", "rstrip", "trim"),
    )
)
# operations that split a text into words, lines or fields
_SPLITTING = ("split", "rsplit", "splitlines", "title", "wordcount", "indent", "format")
_ESCAPING = ("e", "escape", "forceescape", "urlencode", "tojson")  # at most twelve characters for one
_LISTING = (  # operations that split a text into characters
    *("list", "map", "select", "reject", "selectattr", "rejectattr", "sort", "unique", "groupby", "min", "max"),
    *("dictsort", "reverse"),
)
LONGEST = {  # the most characters of the text that an operation accepts
    **dict.fromkeys(_SPLITTING, 1 << 20),
    **dict.fromkeys(_ESCAPING, 4 << 20),
    **dict.fromkeys(_LISTING, MAX_ITEMS),
    **dict.fromkeys(("int", "float"), 1_000),
}
WRITING = frozenset(  # filters that write any value as text
    (
        *("capitalize", "e", "escape", "forceescape", "indent", "lower", "replace", "safe", "string", "title", "trim"),
        *("truncate", "upper", "urlencode", "wordcount"),
    )
)
_INNER = (Context, nodes.EvalContext, Environment)  # what jinja itself passes to filters
_NUMBER = re.compile("[0-9]+")
_ADDRESS = re.compile(r"\bat 0x[0-9a-fA-F]+")
_WIDE = re.compile(r"\d{5,}|\*")  # a field width that no real template uses


class _Generation(Extension):
    """The tag `{% generation %} … {% endgeneration %}`, which marks the assistant's text in templates; it renders its
    body."""

    tags = {"generation"}  # noqa: RUF012 - as jinja declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _CountingFilters(NodeTransformer):
    """Inserts the counting filters into a parsed template."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.iter = _through("counted_items", cast(nodes.Expr, node.iter))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return _through("joined_texts", nodes.List(node.nodes, lineno=node.lineno, environment=node.environment))

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:
        self.generic_visit(node)
        return _through("made_value", node) if isinstance(node.arg, nodes.Slice) else node

    def visit_List(self, node: nodes.List) -> nodes.Node:
        self.generic_visit(node)
        return _through("built_value", node)

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:
        self.generic_visit(node)
        return _through("built_value", node)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:
        self.generic_visit(node)
        return _through("built_value", node) if node.ctx == "load" else node

    def visit_Output(self, node: nodes.Output) -> nodes.Node:
        self.generic_visit(node)
        node.nodes = [_through("shown_value", each) for each in node.nodes]
        return node


def _through(name: str, node: nodes.Expr) -> nodes.Filter:
    """The expression passed through a filter, with the same line number."""
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno, environment=node.environment)


class _OpaqueNamespace(Namespace):
    """The `namespace()` of templates, whose text form leaves out its contents, since their size is not counted."""

    def __repr__(self) -> str:
        return "<namespace>"


class TemplateSandbox(ImmutableSandboxedEnvironment):
    """Compiles templates, and counts in `budget` what rendering them uses."""

    intercepted_binops = frozenset(["*", "**", "+", "%"])

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, cache_size=0, extensions=[_Generation, loopcontrols]
        )
        self.budget = RenderBudget()
        self.filters = {name: self._guarded(name, self.filters[name]) for name in FILTERS if name in self.filters}
        self.filters |= {
            "tojson": self._guarded("tojson", to_json),
            "counted_items": lambda items: self.budget.counted(items),
            "joined_texts": self._joined,
            "made_value": lambda value: self.budget.count_value(value),
            "built_value": lambda value: self.budget.count_nested(value),
            "shown_value": self._shown,
        }
        del self.globals["lipsum"]
        self.globals.update(namespace=_OpaqueNamespace, raise_exception=raise_exception, strftime_now=strftime_now)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        parsed: nodes.Template = _CountingFilters().visit(super()._parse(source, name, filename))
        return parsed

    # ---- counting ------------------------------------------------------------------------------------------------

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        """Call a function or method from a template, with limits on its arguments and its result."""
        __self.budget.step()
        given = __self.budget.total_size([*args, *kwargs.values()])
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps `format`
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, int | float) or (isinstance(owner, str) and name in REFUSED):
            raise TemplateTooExpensive(f"it calls {name}, which no template needs")
        if isinstance(owner, str):
            check_says_the_same((args, kwargs))
            if name == "join" and args:
                args = (__self._bounded_list(args[0], len(owner)), *args[1:])
            elif name == "format":
                fields = list(Formatter().parse(owner[: LONGEST["format"] + 1]))
                if any("." in (field or "") for _, field, _, _ in fields):
                    raise TemplateError("it formats an attribute, which is unsafe")
                specs = [spec or "" for _, _, spec, _ in fields]
                _check_format(owner, len(specs), specs, given)
            else:
                _check_growth(name, owner, (*args, *kwargs.values()))
        return __self.budget.count_nested(super().call(__context, __obj, *args, **kwargs))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        """Apply an operator, with limits on its operands and its result."""
        if operator == "%" and isinstance(left, str):
            check_says_the_same(right)
            _check_format(left, left.count("%"), [left.replace("{", "")], self.budget.total_size(right))
        _check_operation(operator, left, right)
        return self.budget.count_nested(super().call_binop(context, operator, left, right))

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """A filter that checks the size of its arguments and counts its result."""

        @wraps(function)  # keeps jinja's markers for what a filter is passed
        def guarded(*args: Any, **kwargs: Any) -> Any:
            self.budget.step()
            texts = [each for each in args if isinstance(each, str)]
            if name == "round" and any(
                isinstance(each, int) and abs(each) > 100 for each in (*args[1:], *kwargs.values())
            ):
                raise TemplateTooExpensive("it rounds to too many digits")
            if name in WRITING:
                check_says_the_same([each for each in (*args, *kwargs.values()) if not isinstance(each, _INNER)])
            if name == "join":
                args = (args[0], self._bounded_list(args[1], max(map(len, texts), default=0)), *args[2:])
            elif texts:
                _check_growth(name, texts[0], (*args[args.index(texts[0]) + 1 :], *kwargs.values()))
            return self.budget.count_nested(function(*args, **kwargs))

        return guarded

    def _bounded_list(self, items: Any, between: int) -> list[Any]:
        """The items of an iterable that is to be joined by a text of length `between`, with their total length
        checked."""
        found, length = [], 0
        for each in self.budget.counted(items):
            check_says_the_same(each)
            found.append(each)
            length += between + self.budget.total_size(each)
            self.budget.check_length(length)
        return found

    def _joined(self, values: list[Any]) -> Any:
        check_says_the_same(values)
        texts = list(map(str, values))
        self.budget.check_length(sum(map(len, texts)))
        return self.budget.count_value("".join(texts))

    @pass_context  # prevents constant folding, in which jinja would lose the line number
    def _shown(self, _context: Context, value: Any) -> Any:
        check_says_the_same(value)
        self.budget.count_value(value if isinstance(value, str) else str(value))
        return value


def check_says_the_same(value: Any) -> None:
    """Raise `TemplateError` for a value, or a list with one, whose text contains its address in memory, such as a
    function: a prompt would be another one in every process, and no session could be repeated."""
    rest = [value]
    while rest:
        each = rest.pop()
        if each is None or isinstance(each, str | int | float | range):
            continue
        if isinstance(each, Mapping):
            rest += [*each.keys(), *each.values()]
        elif isinstance(each, Collection):
            rest += each
        elif _ADDRESS.search(str(each)):
            raise TemplateError(f"it writes a {type(each).__name__}, whose text is another one in every process")


def _check_growth(name: str, text: str, arguments: tuple[Any, ...]) -> None:
    """Raise `TemplateTooExpensive` if the result of an operation on a text would be too long."""
    for each in arguments:
        if isinstance(each, int) and abs(each) > MAX_ITEMS:
            raise TemplateTooExpensive(f"it uses the number {str(each)[:20]} as a width or a count")
    _check_taken(name, text)
    if name in GROWING:
        largest = max(
            (len(each) if isinstance(each, str) else int(each) for each in arguments if _counts(each)), default=0
        )
        if (len(text) + 1) * max(1, largest) > 4 * MAX_VALUE:
            raise TemplateTooExpensive(f"it makes a text of more than {MAX_VALUE:,} characters")


def _check_taken(name: str, text: str) -> None:
    if len(text) > LONGEST.get(name, MAX_VALUE):
        raise TemplateTooExpensive(f"it gives {name} a text of more than {LONGEST[name]:,} characters")


def _check_format(text: str, count: int, specs: list[str], given: int) -> None:
    """Raise `TemplateTooExpensive` for a format with wide fields, with widths taken from arguments, or with too many
    fields."""
    _check_taken("format", text)
    if any("{" in spec or _WIDE.search(spec) for spec in specs):
        raise TemplateTooExpensive("it formats a text too wide")
    widest = max((int(number) for spec in specs for number in _NUMBER.findall(spec)), default=0)
    RenderBudget.check_length(count * (given + widest))


def _counts(value: Any) -> bool:
    return isinstance(value, str | int)


def _check_operation(operator: str, left: Any, right: Any) -> None:
    """Raise `TemplateTooExpensive` if the result of an operator would be too long or too large."""
    sizes = [len(each) for each in (left, right) if isinstance(each, str | list | tuple)]
    numbers = [each for each in (left, right) if isinstance(each, int)]
    if operator == "+":
        RenderBudget.check_length(sum(sizes))
    elif operator == "*" and sizes and numbers:
        RenderBudget.check_length(sizes[0] * max(0, numbers[0]))
        if not isinstance(left, str) and not isinstance(right, str) and sizes[0] * numbers[0] > MAX_ITEMS:
            raise TemplateTooExpensive(f"it makes a list of more than {MAX_ITEMS:,} items")
    elif operator in ("*", "**") and len(numbers) == 2:
        bits = left.bit_length() * max(1, abs(right)) if operator == "**" else left.bit_length() + right.bit_length()
        if bits > MAX_BITS:
            raise TemplateTooExpensive("it makes a number of too many digits")


# ---- functions that transformers provides ------------------------------------------------------------------------


def raise_exception(message: Any) -> None:
    """Called by a template to refuse a conversation."""
    raise TemplateError(str(message))


def strftime_now(pattern: Any) -> str:
    """The current date, which some templates write into every prompt."""
    check_says_the_same(pattern)
    return datetime.now().strftime(str(pattern)[:200])


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """A value as JSON, without the HTML escapes of jinja's own filter."""
    if indent is not None and (not isinstance(indent, int) or indent > MAX_INDENT):
        raise TemplateTooExpensive(f"it indents JSON by more than {MAX_INDENT} places")
    known = {key: options[key] for key in ("separators", "sort_keys") if key in options}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **known)
