"""Hostile texts of a model, a file or a person, in a real window on a real engine: all are shown as they are.

Nothing of it is read as rich text, and no character of it steers a terminal, a line or the direction of text."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from xml.etree import ElementTree

import pytest
from PySide6.QtCore import QAbstractItemModel, QAbstractListModel, QModelIndex, Qt
from PySide6.QtGui import QAction, QTextDocument
from PySide6.QtGui import Qt as QtGuiQt
from PySide6.QtWidgets import (
    QAbstractItemView,
    QApplication,
    QComboBox,
    QDockWidget,
    QLabel,
    QLineEdit,
    QMenu,
    QPlainTextEdit,
    QTabBar,
    QWidget,
)  # fmt: skip
from tokenizers import Tokenizer
from tokenizers import models as tokenizer_models

from app.kit.files import save_drawing
from app.kit.widgets import ElidedLabel
from engine.__main__ import main
from engine.spec.bookmark import Bookmark, OnStep, OnToken
from engine.spec.condition import Breakpoint
from engine.spec.sampling import SamplingParams
from engine.wire.commands import BeginBranch
from tests.app.found import opened_menu
from tests.benchmarks.live_program import LiveProgram, nobody_waits
from tests.engine.tiny import config_dict

MARK = "KVX"  # in every hostile text
TAG = f"<b>{MARK}</b>"
HOSTILE = [
    TAG, f"<img src='file:///etc/passwd'>{TAG}", f"{TAG}\x00nul", f"{TAG}\x1b[31mred\x1b]0;title\x07",
    f"{TAG}\u202ertl", f"{TAG}\u0085\u2028ls",
    f"{TAG}\u2066iso\u2069", f"{TAG}\u200b\u200d\ufeffzero", f"{TAG}\nline\r\ttab", f"{TAG}&lt;amp;&amp;",
    f"{TAG}\x7f\x9bc1", f"{TAG}" + "w" * 5000, f"</span>{TAG}<script>alert(1)</script>", f"{TAG}%s {{0}} $(id) `id`",
]  # fmt: skip
NAME = f"{TAG.replace('/', '')}\x1b[31m\u202e"  # of a folder
STEERING = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # categories of characters that are not seen but do something


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose name and tokens are hostile."""
    place = tmp_path_factory.mktemp("models") / NAME
    place.mkdir()
    vocab = {"<unk>": 0, **{text: number for number, text in enumerate(HOSTILE, 3)}}
    vocab |= {f"word{number}": number for number in range(len(HOSTILE) + 3, 128)}
    vocab |= {"one": 1, "two": 2}
    Tokenizer(tokenizer_models.WordLevel(vocab, "<unk>")).save(str(place / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "chat_template": TAG + "{{ messages }}",
    }
    (place / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    (place / "config.json").write_text(json.dumps(config_dict("llama"), default=str), "utf-8")
    return place


def actions_of(widget: QWidget) -> Iterator[QAction]:
    yield from widget.actions()
    if isinstance(widget, QMenu):
        yield widget.menuAction()


def items(model: QAbstractItemModel, parent: QModelIndex | None = None) -> Iterator[QModelIndex]:
    top = parent or QModelIndex()
    for row in range(min(50, model.rowCount(top))):
        for column in range(1 if isinstance(model, QAbstractListModel) else model.columnCount(top)):
            index = model.index(row, column, top)
            yield index
            if column == 0 and not isinstance(model, QAbstractListModel) and model.rowCount(index) and index != top:
                yield from items(model, index)


def texts_of(widget: QWidget) -> Iterator[tuple[str, str, bool]]:
    """Every text that a widget shows or tells: where, the text, and whether Qt may read it as rich text."""
    kind = type(widget).__name__
    yield f"{kind} window title", widget.windowTitle(), False
    yield f"{kind} tool tip", widget.toolTip(), True
    yield f"{kind} status tip", widget.statusTip(), False
    yield f"{kind} what is this", widget.whatsThis(), True
    yield f"{kind} name", widget.accessibleName(), False
    yield f"{kind} description", widget.accessibleDescription(), False
    for action in actions_of(widget):
        yield f"{kind} action", action.text(), False
        yield f"{kind} tip of an action", action.toolTip(), True
    match widget:
        case ElidedLabel():
            yield kind, widget.text(), False
        case QLabel():
            yield kind, widget.text(), widget.textFormat() != Qt.TextFormat.PlainText
        case QComboBox():
            for number in range(widget.count()):
                yield f"{kind} item", widget.itemText(number), False
        case QTabBar():
            for number in range(widget.count()):
                yield f"{kind} tab", widget.tabText(number), False
                yield f"{kind} tip of a tab", widget.tabToolTip(number), True
        case QAbstractItemView() if widget.model() is not None:
            for index in items(widget.model()):
                yield f"{kind} item", str(index.data(Qt.ItemDataRole.DisplayRole) or ""), False
                yield f"{kind} tip of an item", str(index.data(Qt.ItemDataRole.ToolTipRole) or ""), True
        case _ if not isinstance(widget, QLineEdit | QPlainTextEdit | QDockWidget):
            text = getattr(widget, "text", "")
            yield kind, str(text() if callable(text) else text), False


@cache
def as_seen(text: str, is_rich: bool) -> str:
    """The text as Qt shows it."""
    if not is_rich or not QtGuiQt.mightBeRichText(text):
        return text
    document = QTextDocument()
    document.setHtml(text)
    return document.toPlainText()


@cache
def steering(text: str) -> set[str]:
    return {f"U+{ord(char):04X}" for char in text if unicodedata.category(char) in STEERING and char not in "\n\t"}


def faults_of(root: QWidget, found: set[str]) -> Iterator[str]:
    """What is wrong in a widget and in everything in it; `found` collects the places that show a hostile text."""
    for widget in (root, *root.findChildren(QWidget)):
        for where, text, is_rich in texts_of(widget):
            if MARK not in text:
                continue
            found.add(where)
            seen = as_seen(text, is_rich)
            if f"<b>{MARK}" not in seen:
                yield f"{where} reads rich text: {text[:120]!r}"
            if chars := steering(seen):
                yield f"{where} has {sorted(chars)}: {text[:120]!r}"


def test_wherever_it_is_shown_it_is_shown_as_it_is(
    qapp: QApplication, folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live = LiveProgram(qapp, tmp_path, f"shape:{folder / 'config.json'}")
    found, faults = set[str](), list[str]()
    ids = tuple(range(3, 3 + len(HOSTILE)))
    try:
        with nobody_waits(lambda: str(tmp_path / f"{NAME}.json")):
            window, models, intents = live.window, live.models, live.shell.intents
            intents.on_prompt_submitted(ids, SamplingParams())
            live.wait_until_idle("a prompt")
            intents.send(BeginBranch(0, None, (4,)))
            intents.on_run_to(3)
            live.wait_until_idle("steps")
            for number, text in enumerate(HOSTILE):
                target = OnToken(1, 0, number) if number else OnStep(1)
                intents.on_bookmark_put(Bookmark(target, text[:400]))
            models.history.rename(models.history.branches()[0].first, TAG + "\u202e")
            live.shell.settings.remember_snapshot(f"/tmp/{NAME}.safetensors")
            live.shell.settings.remember_model(f"/tmp/{NAME}")
            window.recent.set_names([f"/tmp/{NAME}.safetensors"])
            window.sessions.set_names([f"/tmp/{NAME}.json"])
            window.top.model.set_recent([f"/tmp/{NAME}"])
            menu = opened_menu(window.top.model)
            faults += faults_of(window, found)
            menu.close()
            intents.on_breakpoints_changed((Breakpoint(1, 'token = "<b>KVX</b>"'),))
            live.live(0.05)
            for name in window.docks.docks:
                window.show_panel(name)
                for position in (0, 3, len(ids) - 1):
                    models.selection.update(position=position)
                    live.live(0.01)
                    faults += faults_of(window, found)
            for text in HOSTILE:
                models.status.notify(f"Opened {text}")
                models.status.fail(f"It cannot be read: {text}")
                live.live(0.002)
                faults += faults_of(window, found)
            models.status.fail("")
            for name in live.shell.actions.names():
                if name not in ("quit", "view.full") and not name.startswith(("engine.", "theme.", "truth.", "cache.")):
                    live.shell.actions[name].trigger()
                    for dialog in live.dialogs():
                        live.live(0.005)
                        faults += faults_of(dialog, found)
                        dialog.reject()
            live.wait_until_idle("all actions")
            assert sorted(set(faults)) == []
            assert save_drawing(window, tmp_path / "window.svg") == ""
            ElementTree.parse(tmp_path / "window.svg")  # well-formed: nothing of it is a tag
    finally:
        live.close()
    assert live.faults == []
    assert len(found) > 10, f"they are shown in only {found}"

    model, all_ids = f"shape:{folder / 'config.json'}", ",".join(map(str, ids))
    given = ["run", "--model", model, "--token-ids", "1,2", "--force-ids", all_ids, "--steps", str(len(ids))]
    assert main(given) == 0
    told = capsys.readouterr()
    assert MARK in told.out
    assert (steering(told.out), steering(told.err)) == (set(), set())
