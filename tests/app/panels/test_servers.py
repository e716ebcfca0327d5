"""The panels of a server: the tree, why a prompt is not reused, and what the server says of itself."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication
from pytestqt.qtbot import QtBot

from app.control.sender import Sender
from app.dialogs.questions import ServerDialog
from app.kit.asking import Question
from app.kit.view import View
from app.models import Models
from app.panels.prefixes import PrefixesView
from app.panels.reuse import ReuseView
from app.panels.server import ServerView
from app.shell import Shell
from app.start.arguments import parse
from engine.client.serving import Player, ServingClient
from engine.serving.text import BUNDLED
from engine.spec.cache import PRESETS
from engine.wire.serving import AttachServer, ServersChanged, ServerSpec
from tests.app.driver import Driver
from tests.app.fake_engine import FakeEngine

RECORDED = str(Path(__file__).parents[2] / "engine" / "serving" / "recorded" / "stream.kvevents")


class Desk:
    """The three panels on a real client, without a window around them."""

    def __init__(self, models: Models, bot: QtBot) -> None:
        self.models, self.client = models, ServingClient()
        self.sender = Sender(self.client.send)
        self.tree, self.reuse, self.server = PrefixesView(models), ReuseView(models), ServerView(models)
        for panel in (self.tree, self.reuse, self.server):
            bot.addWidget(panel)
            panel.wants.connect(self._ask)
            panel.resize(700, 500)
            panel.show()

    def _ask(self, question: Question) -> None:
        self.sender.ask(question)

    def until(self, condition: Callable[[], bool], panel: View) -> None:
        end = time.monotonic() + 120
        while not condition():
            for event in self.client.drain():
                if isinstance(event, ServersChanged):
                    self.models.servers.take(event)
                self.sender.take(event)
            QApplication.processEvents()
            assert time.monotonic() < end, panel.empty_text or panel.detail.text()
            time.sleep(0.005)


@pytest.fixture
def desk(models: Models, qtbot: QtBot) -> Iterator[Desk]:
    desk = Desk(models, qtbot)
    yield desk
    desk.client.close()


def test_tree_reason_and_server(desk: Desk) -> None:
    assert "Attach to a server" in desk.server.empty_text
    desk.client.send(AttachServer(ServerSpec(RECORDED, tokenizer=str(BUNDLED))))
    desk.until(lambda: desk.tree.detail.text().startswith("1,952 tokens"), desk.tree)
    assert "played to its end" in desk.server.words.text()
    assert desk.models.servers.now.state == "recorded", "nobody is connected"  # type: ignore[union-attr]
    rows = desk.tree.table.cells.rows
    assert rows[0][0].text.startswith("<|begin|>Once upon a time")
    assert [cell.text for cell in rows[0][1:5]] == ["0", "128", "512", "1.5 MiB"]
    assert rows[1][0].text.startswith("    ↳ at the blue car")
    assert {row[7].text for row in rows} == {"–", "tenant-7", "tenant-9"}
    desk.tree.search.setText("purple elephants in the")
    desk.until(lambda: "No branch holds" in desk.tree.empty_text, desk.tree)
    desk.tree.search.setText("")
    desk.until(lambda: not desk.tree.empty_text, desk.tree)
    words = " ".join(["Once upon a time, there was a little girl named Lily."] * 4)
    desk.reuse.ask(words)
    desk.until(lambda: "Differs at token" in desk.reuse.why.text(), desk.reuse)
    assert desk.reuse.facts.text().startswith("reused\t0 of ")
    assert "the prompt has ', there was a little" in desk.reuse.why.text()
    desk.reuse.ask("5 17 42")
    desk.until(lambda: "less than a block of 32" in desk.reuse.why.text(), desk.reuse)
    ids = json.loads((Path(RECORDED).parent / "requests.json").read_text("utf-8"))[-1]["ids"]
    desk.reuse.ask(" ".join(map(str, ids)))
    desk.until(lambda: desk.reuse.detail.text() == "all reused", desk.reuse)
    assert desk.reuse.facts.text().startswith("reused\t224 of 245 tokens")
    desk.reuse.eagle.click()
    desk.until(lambda: "for EAGLE" in desk.reuse.why.text(), desk.reuse)
    assert desk.reuse.facts.text().startswith("reused\t192 of 245 tokens")
    text = desk.server.facts.text()
    assert "live blocks\t62" in text
    assert "tokens computed again after eviction\t928" in text
    desk.until(lambda: "63 blocks\t49.0 %" in desk.server.facts.text(), desk.server)


def test_a_recording_that_is_damaged_or_cut_says_so_once_it_is_played(tmp_path: Path) -> None:
    content = Path(RECORDED).read_bytes()
    for file, words in ((content + b"\xff\xff\xff\x7f", "is damaged after batch 180"), (content[:-3], "which is cut")):
        (tmp_path / "a.kvevents").write_bytes(file)
        player = Player(tmp_path / "a.kvevents", speed=0.0)
        while player.take(100):
            pass
        assert words in player.words()


def test_without_a_tokenizer_tokens_are_numbers(desk: Desk) -> None:
    desk.client.send(AttachServer(ServerSpec(RECORDED)))
    desk.until(lambda: bool(desk.tree.table.cells.rows), desk.tree)
    assert desk.tree.table.cells.rows[0][0].text.startswith("0 47 1090 605")
    desk.reuse.ask("Once upon a time")
    desk.until(lambda: "Without a tokenizer" in desk.reuse.why.text(), desk.reuse)


def test_attaching_shows_the_panels_and_asks_for_the_server(shell: Shell, engine: FakeEngine) -> None:
    spec = ServerSpec("tcp://127.0.0.1:5557", "tcp://127.0.0.1:5558", "http://127.0.0.1/metrics", "a", 2.0)
    shell.attach(spec)
    assert ServerDialog(shell.server_tried, shell.window).answer() == spec, "the next time it stands there"
    assert [command.spec for command in engine.sent if isinstance(command, AttachServer)] == [spec]
    assert {"prefixes", "reuse", "server"} <= {name for name, panel in shell.window.panels.items() if panel.isVisible()}


def test_the_command_line_names_servers(capsys: pytest.CaptureFixture[str]) -> None:
    found = parse(
        ["--serving", "tcp://a:1", "--serving", RECORDED, "--replay", "-", "--metrics", "http://a/", "--speed", "2"]
    )
    assert found.servers == (ServerSpec("tcp://a:1", "", "http://a/", "", 2.0), ServerSpec(RECORDED))
    for argv, words in (
        (["--serving", "nothing"], "no address and no recording"),
        (["--replay", "tcp://a:1"], "more --replay than --serving"),
        (["--serving", RECORDED, "--speed", "nan"], "give such a --speed"),
        (["--serving", RECORDED, "--speed=-1"], "give such a --speed"),
    ):
        with pytest.raises(SystemExit):
            parse(argv)
        assert words in capsys.readouterr().err


def test_the_pages_of_this_session_are_all_in_one_memory_which_is_not_called_a_gpu(qapp: QApplication) -> None:
    driver = Driver(qapp, PRESETS["paged"].spec)
    driver.window.arrange("servers")
    tree = driver.window.panels["prefixes"]
    assert isinstance(tree, PrefixesView)
    driver.send("Once upon a time")
    driver.until(lambda: tree.empty_text == "Nothing is stored yet: a block is stored once it is full.")
    driver.steps(12)
    driver.until(lambda: tree.detail.text().startswith("16 tokens"))
    heads = [head.text for head in tree.table.cells.heads]
    assert heads == ["text", "from", "tokens", "behind", "bytes", "age when read"]
    driver.close()
