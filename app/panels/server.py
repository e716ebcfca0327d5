"""The panel of a server: how it is connected, what its events say over time, and its own figures beside them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path

from PySide6.QtWidgets import QFileDialog

from app.draw.format import age_words, percent, thousands
from app.kit.asking import SERVERS, server_source
from app.kit.facts import Fact, Facts, WholeLines, section
from app.kit.provenance import Provenance
from app.kit.theme import font_text
from app.kit.view import ATTACH, View
from app.kit.widgets import column, plain_label, push_button, row
from app.models import Models
from engine.counted import counted
from engine.wire.serving import DetachServer, RecordServer, ServerState

NONE = "Attach to a server that publishes KV events (vLLM, SGLang, TensorRT-LLM), or play a recording of them."


def facts_of(server: ServerState) -> tuple[Fact, ...]:
    """All lines below the sentence of the connection."""
    counts = server.counts
    period = f"by {age_words(counts.period_s * 1.0)}" if counts.period_s > 1 else "by second"
    span = range(int(counts.first_s // counts.period_s), int(counts.last_s // counts.period_s) + 1)
    rates = [
        Fact(f"{name} {period}", thousands(total), bars=tuple(float(rate.get(at, 0)) for at in span), color=color,
             tip="Blocks in all, and a bar for each span of time, the newest at the right")
        for rate, (name, total, color) in zip(counts.rates, (
            ("stored", counts.stored - counts.stored_again, "accent"), ("evicted", counts.removed, "page_host"),
            ("stored again", counts.stored_again, "selected"),
        ), strict=True)
    ]  # fmt: skip
    pools = [
        Fact(counted(blocks, "block"), percent(ratio),
             tip="Estimated from the chains that were stored: what the prefix cache would find with so many blocks")
        for blocks, ratio in server.pools
    ]  # fmt: skip
    return (
        *(Fact(note, role="bad", tip=note) for note in server.notes),
        Fact("live blocks", thousands(counts.live_blocks), tip="Copies count, as in the server's pool"),
        Fact("most at once", thousands(counts.most_live_blocks), tip="The most blocks that were live at one time"),
        Fact("live tokens", thousands(server.live_tokens), tip="Tokens whose K and V the server has now"),
        *section("Over time"),
        *rates,
        Fact("tokens computed again after eviction", thousands(counts.stored_again_tokens),
             role="warning" if counts.stored_again_tokens else "text", tip="What a larger pool would have saved"),
        *_counts("lifetime of blocks", counts.lifetimes_s, "From being stored until evicted"),
        *_counts("until read again", counts.reuse_gaps_s, "From one use of a prefix until a request continued it"),
        *_counts("evicted until stored again", counts.absences_s, "Short: a slightly larger pool would have kept them"),
        *(section("The server's own figures") if server.told else ()),
        *(Fact(*told) for told in server.told),
        *(section("Hit ratio by pool size (estimate)") if pools else ()),
        *pools,
    )  # fmt: skip


def _counts(name: str, counts: Mapping[float, int], tip: str) -> tuple[Fact, ...]:
    """A line with the distribution of seconds: bars, and where its middle is."""
    if not counts:
        return ()
    rows = sorted(counts.items())
    sums = list(accumulate(count for _, count in rows))
    middle = rows[bisect_left(sums, sums[-1] / 2)][0]
    lines = (f"up to {age_words(up_to)}: {thousands(count)}" for up_to, count in rows)
    return (Fact(name, f"half ≤ {age_words(middle)}", bars=tuple(float(count) for _, count in rows),
                 tip="\n".join((tip, *lines))),)  # fmt: skip


class ServerView(View[ServerState]):
    """The chosen server, and what can be done with it: it can be recorded in a file, and detached."""

    name = "server"
    follows = (SERVERS,)

    def __init__(self, models: Models) -> None:
        super().__init__(models)
        self._folder = Path.home()  # where the file dialog begins
        self.words = plain_label("", font_text(12), "text", wraps=True)
        self.words.setMinimumWidth(1)
        self.facts = Facts("Facts about the server")
        self.record = push_button("Record…", self._on_record, "Write what it publishes to a file, from now on")
        detach = push_button("Detach", self._on_detach, "Stop listening to it, and forget its tree")
        self.set_body(column(self.words, 3, (WholeLines(self.facts), 1), 3, row(None, self.record, detach)))
        self.follow(models)

    def read(self) -> ServerState | str:
        return self._models.servers.now or NONE

    def show_state(self, state: ServerState) -> None:
        self.set_detail(counted(state.counts.batches, "batch", "batches"))
        self.words.setText(state.words)
        self.facts.show_facts(facts_of(state))
        self.record.setText("End recording" if state.is_recording else "Record…")

    def provenance(self, state: ServerState) -> Provenance:
        return server_source(self._models)

    def _remedy(self) -> str:
        return ATTACH

    def _on_record(self) -> None:
        """Ask for the file that the server is recorded in; where it is being recorded, end that."""
        server = self._models.servers.now
        if server is not None and server.is_recording:
            self.wants.emit(RecordServer(server.name))
        elif server is not None:
            title, suggested = "Record what the server publishes", str(self._folder / "server.kvevents")
            path, _ = QFileDialog.getSaveFileName(self, title, suggested, "KV events (*.kvevents)")
            if path:
                self._folder = Path(path).parent
                self.wants.emit(RecordServer(server.name, Path(path)))

    def _on_detach(self) -> None:
        self.wants.emit(DetachServer(self._models.servers.chosen))
