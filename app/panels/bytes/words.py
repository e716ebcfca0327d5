"""The texts of the ledger: names of gaps, labels of lines, and a layer's sum in full."""

from __future__ import annotations

from collections.abc import Sequence

from app.draw.format import byte_size, thousands
from app.kit.cells import ColumnHead, TableCell
from app.kit.facts import Fact, term_facts
from app.kit.theme import TextRole
from app.panels.bytes import draw
from app.panels.bytes.draw import FigureKey, LedgerLine
from engine.spec.terms import Term
from engine.wire.records import CacheBytes, LayerBytes


def gap_words(name: str) -> str:
    """The label of a gap, from the engine's name."""
    return {
        "positions of the rows kept": "positions of rows",
        "rows kept for going back": "for going back",
        "attention that the rule remembers": "remembered attention",
        "padding to the reserved length": "padding, to full length",
    }.get(name, name)


def short_words(name: str) -> str:
    """A short label of a gap, for the head of a column."""
    return {
        "scales and offsets": "scales",
        "exact residual": "residual",
        "positions of the rows kept": "positions",
        "room to grow": "room",
        "dequantised copy": "copy",
        "page slack": "slack",
        "pages not in use": "unused",
        "padding to the reserved length": "padding",
    }.get(name, name)


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
        lines.append(f"   {signs[gap.part]} {thousands(gap.num_bytes)}  {gap_words(gap.name)}")
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
    labels: dict[FigureKey, str] = {
        "predicted": formula_label(held.terms),
        "beyond_formula": "stored beyond the formula",
        # why less is stored than the formula says
        "below_formula": "shared, stored once" if is_shared else "left the window, or not kept",
        "stored": "stored in tensors",
        "unnamed": "⚠ without a name",
        "reserved": "reserved in storage",
        "looking": "overhead of KV Loupe",
        "kept": "checkpoints to go back to",
        "weights": "weights of the model",
        "other": "other: workspace",
        "rest": "the program itself",
        "allocator": "held by the allocator",
        "process": "process, resident",
        "peak": "peak since the step before",
        "device": "on the device, all programs",
    }
    predicted, *others = (_line(entry, labels.get(entry.key) or gap_words(entry.name)) for entry in draw.ledger(held))
    return (predicted, *term_facts(held.terms), *others)


def _line(entry: LedgerLine, label: str) -> Fact:
    if entry.is_within:
        label = f"of which {label}"
    if entry.part == "transient":
        label = f"{label}, briefly"
    if entry.num_bytes is None:
        return Fact(label, "not recorded" if entry.key == "process" else "cannot be asked here", role="muted")
    size = byte_size(entry.num_bytes) if abs(entry.num_bytes) >= 1024 else ""
    is_aside = entry.is_gap or entry.is_within or entry.part == "transient"
    sign = "+" if entry.part == "reserved" else "~" if entry.part == "transient" else ""
    role: TextRole = "bad" if entry.key == "unnamed" else "muted" if is_aside else "text"
    has_rule = entry.key in ("looking", "allocator")
    return Fact(label, sign + thousands(entry.num_bytes), size, role, int(is_aside), has_rule=has_rule)


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
        ColumnHead("layer", is_words=True),
        ColumnHead("formula", "what the rows kept take by formula"),
        ColumnHead("stored", "in tensors, for rows that hold tokens"),
        *(ColumnHead(short_words(name), f"{gap_words(name)}: {_TIPS[part]}") for name, part in table.names),
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


def _layer_name(layer: LayerBytes, held: CacheBytes) -> str:
    return f"{draw.layer_name(layer, held)} {layer.kind}" + (f" · {layer.device}" if layer.device else "")
