"""The texts of the ledger: names of gaps, labels of lines, and a layer's sum in full."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from app.draw.format import byte_size, thousands
from app.kit.cells import ColumnHead, TableCell
from app.kit.facts import Fact, term_facts
from app.kit.theme import TextRole
from app.panels.bytes import draw
from app.panels.bytes.draw import BytesPart, FigureKey, LedgerLine
from engine.spec.terms import Term
from engine.wire.records import CacheBytes, LayerBytes


class GapWords(Struct, frozen=True):
    """A gap's label, a short one for the head of a column, and what takes the bytes."""

    label: str
    short: str
    tip: str


# By the engine's name of a gap
_GAPS = {
    "scales and offsets": GapWords("scales and offsets", "scales", "What turns the codes back into numbers."),
    "exact residual": GapWords("exact residual", "residual", "The newest rows, which the codec leaves as they are."),
    "positions of the rows kept": GapWords(
        "positions of rows", "positions", "Where each kept row stood, as evicted rows leave holes."
    ),
    "room to grow": GapWords("room to grow", "room", "Storage for rows that are still to come."),
    "dequantised copy": GapWords(
        "dequantised copy", "copy", "The numbers that attention reads, turned back from the codes of one layer."
    ),
    "page slack": GapWords("page slack", "slack", "Free slots in the last page of each sequence."),
    "pages not in use": GapWords("pages not in use", "unused", "Pages of the pool that hold no row of a sequence."),
    "padding to the reserved length": GapWords(
        "padding, to full length", "padding", "Rows reserved at once and not written yet."
    ),
    "rows kept for going back": GapWords(
        "for going back", "for going back", "Rows that the newest steps replaced or evicted, so that one can go back."
    ),
    "attention that the rule remembers": GapWords(
        "remembered attention", "remembered attention", "What the rule adds up to choose the rows it evicts."
    ),
}


def gap_words(name: str) -> GapWords:
    """The words for a gap, from the engine's name."""
    return _GAPS.get(name, GapWords(name, name, "Bytes beside the rows of tokens."))


def layer_words(layer: LayerBytes) -> str:
    """A layer's sum in full: stored bytes, which of these are not numbers of tokens, and what makes up the rest."""
    lines = [f"layer {layer.layer} ({layer.kind})" + (f" on {layer.device}" if layer.device else "")]
    lines.append(f"{thousands(layer.predicted)}  by formula")
    lines.append(f"{thousands(layer.stored)}  stored")
    signs = {
        "stored": "of these",
        "reserved": "+",
        "transient": "while attention runs",
        "looking": "aside",
    }
    order = ("stored", "reserved", "transient", "looking")
    for gap in sorted(layer.gaps, key=lambda gap: order.index(gap.part)):
        lines.append(f"   {signs[gap.part]} {thousands(gap.num_bytes)}  {gap_words(gap.name).label}")
    lines.append(f"{thousands(layer.reserved)}  reserved")
    return "\n".join(lines)


def formula_label(terms: Sequence[Term]) -> str:
    """The label of the predicted bytes: the formula itself if it is one product."""
    if not terms:
        return "predicted by formula"
    return f"formula {terms[0].symbols}" if len(terms) == 1 else f"formula, sum of {len(terms)}"


def ledger_lines(held: CacheBytes, is_shared: bool) -> tuple[Fact, ...]:
    """The lines of the ledger, and the formula of the predicted bytes, filled in, below these. `is_shared`: sequences
    share pages."""
    words = {**_FIGURES, "predicted": (formula_label(held.terms), _FIGURES["predicted"][1])}
    if is_shared:
        words["below_formula"] = _SHARED
    predicted, *others = (_line(entry, *_words_of(entry, words)) for entry in draw.ledger(held))
    return (predicted, *term_facts(held.terms), *others)


# The figures of the ledger: label, and what it counts
_FIGURES: dict[FigureKey, tuple[str, str]] = {
    "predicted": ("predicted by formula", "What the rows take by the formula of this cache mode."),
    "beyond_formula": ("stored beyond the formula", "Stored bytes that the formula does not have."),
    "below_formula": ("left the window, or not kept", "Rows of the formula that have left the window or were evicted."),
    "stored": ("stored in tensors", "Bytes of tensors that hold rows of tokens."),
    "unnamed": ("⚠ without a name", "Reserved bytes that the program cannot explain: please report it."),
    "reserved": ("reserved in storage", "All that the storage of the cache really holds."),
    "looking": (
        "kept by KV Loupe",
        "What KV Loupe keeps to show and to go back; the cache itself does not need it.",
    ),
    "kept": ("checkpoints", "States of the cache that are kept so that a step can be gone on from."),
    "weights": ("weights of the model", "The parameters of the model, in the memory of its device."),
    "other": ("other: workspace", "What the allocator holds beyond the lines above: the workspace of forwards."),
    "rest": ("the program itself", "What the process holds beyond the lines above: program and libraries."),
    "allocator": ("held by the allocator", "Memory of the device that torch's allocator has taken."),
    "process": ("process, resident", "Memory of the engine's process that is in RAM."),
    "peak": ("peak since the step before", "The most that the allocator held at once during the step."),
    "device": ("on the device, all programs", "Memory of the device in use, by all programs."),
}
_SHARED = ("shared, stored once", "Rows that several sequences share: the formula counts them for each.")


def _words_of(entry: LedgerLine, words: Mapping[FigureKey, tuple[str, str]]) -> tuple[str, str]:
    gap = gap_words(entry.name)
    return words.get(entry.key, (gap.label, gap.tip))


def _line(entry: LedgerLine, label: str, tip: str) -> Fact:
    if entry.is_within:
        label = f"of which {label}"
    if entry.part == "transient":
        label = f"{label}, briefly"
    if entry.num_bytes is None:
        unknown = "not recorded" if entry.key == "process" else "cannot be asked here"
        return Fact(label, unknown, role="muted", tip=tip)
    size = byte_size(entry.num_bytes) if abs(entry.num_bytes) >= 1024 else ""
    is_aside = entry.is_gap or entry.is_within or entry.part == "transient"
    sign = "+" if entry.part == "reserved" else "~" if entry.part == "transient" else ""
    role: TextRole = "bad" if entry.key == "unnamed" else "muted" if is_aside else "text"
    has_rule = entry.key in ("looking", "allocator")
    return Fact(label, sign + thousands(entry.num_bytes), size, role, int(is_aside), has_rule=has_rule, tip=tip)


_TIPS = {
    "stored": "part of what is stored",
    "reserved": "between stored and reserved: stored and all of these make what is reserved",
    "transient": "lives only while the layer's attention runs: in no sum",
    "looking": "",
}
_SIGNS = {"stored": "", "reserved": "+", "transient": "~", "looking": ""}

Cells = tuple[tuple[ColumnHead, ...], tuple[tuple[TableCell, ...], ...]]


def layer_cells(held: CacheBytes) -> Cells:
    """(heads, rows) of the table of layers: formula, stored with its parts, every gap, and reserved. Each row adds
    up."""
    table = draw.layer_table(held)
    heads = (
        ColumnHead("layer", "the layer and its kind; point at it for its sum", is_words=True),
        ColumnHead("formula", "what the rows kept take by formula"),
        ColumnHead("stored", "in tensors, for rows that hold tokens"),
        *(_gap_head(gap_words(name), part) for name, part in table.names),
        ColumnHead("reserved", "what storage really holds"),
    )
    signs = ["", "", *(_SIGNS[part] for _, part in table.names), ""]
    quiet: list[TextRole] = ["muted"] * len(table.names)
    roles: list[TextRole] = ["muted", "text", *quiet, "text"]

    def cells(numbers: Sequence[int]) -> tuple[TableCell, ...]:
        return tuple(
            TableCell(f"{sign}{thousands(n)}" if n else "·", role if n else "muted")
            for n, sign, role in zip(numbers, signs, roles, strict=True)
        )

    rows = [(TableCell(_layer_name(layer, held), tip=layer_words(layer)), *cells(n)) for layer, n in table.rows]
    if len(rows) > 1:
        rows.insert(0, (TableCell("all", is_bold=True), *cells(table.total)))
    return heads, tuple(rows)


def _gap_head(gap: GapWords, part: BytesPart) -> ColumnHead:
    return ColumnHead(gap.short, f"{gap.label}: {gap.tip}" + f"\n{_TIPS[part]}" * bool(_TIPS[part]))


def _layer_name(layer: LayerBytes, held: CacheBytes) -> str:
    return f"{draw.layer_name(layer, held)} {layer.kind}" + (f" · {layer.device}" if layer.device else "")
