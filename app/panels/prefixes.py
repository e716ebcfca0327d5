"""The panel of the prefix tree: what a server, or this session's page pool, has cached."""

from __future__ import annotations

from msgspec import Struct
from PySide6.QtWidgets import QComboBox, QLineEdit

from app.draw.format import age_words, byte_size, thousands
from app.kit.asking import AnswerView, server_source
from app.kit.cells import CellTable, ColumnHead, TableCell, fitting
from app.kit.provenance import Provenance
from app.kit.widgets import connect_all, prose
from app.models import Models
from engine.counted import counted
from engine.wire.message import Command
from engine.wire.serving import PrefixRow, PrefixTree, TakePrefixTree

HEADS = (
    ColumnHead("text", "The first tokens of blocks that nothing branches off; indented: what follows the row above",
               is_words=True, takes_rest=True),
    ColumnHead("from", "The place of its first token in a prompt; ? where what precedes it is not known",
               from_width=560),
    ColumnHead("tokens", "Tokens in it"),
    ColumnHead("behind", "Tokens in it and in all that follows it", from_width=430),
    ColumnHead("bytes", "Bytes of K and V behind it; by the config in the tokenizer's folder", from_width=560),
    ColumnHead("age when read", "From when its first block was stored, by the server's clock, to when the tree was "
               "read: after the last step, or the server's last batch"),
    ColumnHead("tier", "The memory that its first block is in", is_words=True),
    ColumnHead("salt", "The cache salt, adapter, picture or rank that sets it apart", is_words=True, most=150,
               from_width=430),
)  # fmt: skip
_OF_SERVERS = "tier", "salt"  # a session's own pages are all in one memory, and of one kind
OWN = "This session"


class PrefixesState(Struct, frozen=True):
    tree: PrefixTree
    source: Provenance
    columns: tuple[int, ...]


def cells_of(row: PrefixRow, bytes_per_token: int) -> tuple[TableCell, ...]:
    indent = "    " * row.depth + "↳ " if row.depth else ""
    if row.num_more:
        more = f"… and {counted(row.num_more, 'smaller branch', 'smaller branches')}"
        return (TableCell(indent + more, "muted", is_wide=True),
                *(TableCell("") for _ in HEADS[1:]))  # fmt: skip
    text = prose(row.text.replace("\n", " ⏎ "))
    tip = f"{text}\n{counted(row.num_blocks, 'block')} that nothing branches off"
    if row.copies > 1:
        tip += f"\nThe first is there {row.copies} times"
    return (
        TableCell(indent + text, "text", tip),
        TableCell("?" if row.start < 0 else thousands(row.start), "muted"),
        TableCell(thousands(row.num_tokens)),
        TableCell(thousands(row.below)),
        TableCell(byte_size(row.below * bytes_per_token) if bytes_per_token else "–", "muted"),
        TableCell(age_words(row.age_s) if row.age_s else "new", "muted"),
        TableCell(row.media, "muted"),
        TableCell(prose(row.salt) or "–", "accent" if row.salt else "muted"),
    )


def _short(name: str) -> str:
    """The name of a server: its address, or the file's name of a recording."""
    return name if "://" in name else name.rsplit("/", 1)[-1]


class PrefixesView(AnswerView[PrefixesState]):
    name = "prefixes"
    reads_size = True

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self.source = QComboBox()
        self.source.setAccessibleName("Whose prefix tree")
        self.source.setMinimumWidth(150)
        self.source.setSizeAdjustPolicy(QComboBox.SizeAdjustPolicy.AdjustToContents)
        self.source.setMaximumWidth(240)
        self.search = QLineEdit()
        self.search.setPlaceholderText("Search")
        self.search.setAccessibleName("Search text or token ids in the tree")
        self.search.setClearButtonEnabled(True)
        self.search.setFixedWidth(130)
        for widget in (self.search, self.source):
            self.add_to_strip(widget)
        self.table = CellTable("Prefix tree")
        self.set_body(self.table)
        connect_all((self.search.textChanged, self.refresh), (self.source.activated, self._on_source))
        self.follow(models)

    def question(self) -> Command | None:
        return TakePrefixTree(self._models.servers.chosen, self.search.text().strip())

    def read(self) -> PrefixesState | str:
        self._list_sources()
        if self.answer is None:
            return "What a server, or the page pool of this session, has cached stands here as a tree."
        if isinstance(self.answer, str):
            return self.answer
        if self.answer.why_none:
            return str(self.answer.why_none)
        of_servers = () if self._models.servers.chosen else _OF_SERVERS
        columns = tuple(n for n in fitting(HEADS, self.width()) if HEADS[n].text not in of_servers)
        return PrefixesState(self.answer, server_source(self._models), columns)

    def show_state(self, state: PrefixesState) -> None:
        tree = state.tree
        self.set_detail(
            f"{counted(tree.num_tokens, 'token')} · {counted(tree.num_branches, 'branch', 'branches')} at the root",
            thousands(tree.num_tokens),
        )
        rows = [cells_of(row, tree.bytes_per_token) for row in tree.rows]
        self.table.show_cells(HEADS, rows, columns=state.columns)

    def provenance(self, state: PrefixesState) -> Provenance:
        return state.source

    def _list_sources(self) -> None:
        names = [("", OWN), *((server.name, _short(server.name)) for server in self._models.servers.all)]
        if [(self.source.itemData(n), self.source.itemText(n)) for n in range(self.source.count())] != names:
            self.source.clear()
            for name, text in names:
                self.source.addItem(text, name)
        self.source.setCurrentIndex(max(0, self.source.findData(self._models.servers.chosen)))

    def _on_source(self) -> None:
        self._models.servers.choose(self.source.currentData())
