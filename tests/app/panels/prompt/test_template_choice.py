"""The templates that are offered: those of the model, ours and a file's, and which stays when another model comes."""

from __future__ import annotations

from pathlib import Path

import pytest
from PySide6.QtWidgets import QFileDialog
from pytestqt.qtbot import QtBot

from app.panels.prompt.chat import FILE, NONE, TemplateChoice
from engine.spec.sampling import MAX_TEMPLATE_CHARS, PLAIN_NAME, PLAIN_TEMPLATE

MINE = "{{ messages }}"


@pytest.fixture
def choice(qtbot: QtBot) -> TemplateChoice:
    choice = TemplateChoice()
    qtbot.addWidget(choice)
    choice.show_names(("default", "tools"))
    return choice


def offered(choice: TemplateChoice) -> list[str]:
    return [choice.itemText(number) for number in range(choice.count())]


def test_a_template_is_one_of_the_models_or_ours(choice: TemplateChoice, qtbot: QtBot) -> None:
    assert offered(choice) == ["default", "tools", PLAIN_NAME, FILE]
    assert choice.template == ("", "")
    for number, template in ((1, ("tools", "")), (2, (PLAIN_NAME, PLAIN_TEMPLATE)), (0, ("", "")), (1, ("tools", ""))):
        with qtbot.waitSignal(choice.changed):
            choice.activated.emit(number)
        assert (choice.template, choice.currentIndex()) == (template, number)
    choice.show_names(("other", "tools"))
    assert choice.template == ("tools", ""), "this model has it too"
    choice.show_names(())
    assert (choice.template, offered(choice)) == (("", ""), [NONE, PLAIN_NAME, FILE])


def test_a_file_is_offered_from_then_on_and_one_that_cannot_be_read_is_refused(
    choice: TemplateChoice, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    choice.refused.connect(told.append)
    choice.changed.connect(lambda: told.append("changed"))
    path = tmp_path / "mine.jinja"
    chosen = [""]
    monkeypatch.setattr(QFileDialog, "getOpenFileName", lambda *_: (chosen[0], ""))

    def choose(name: str) -> None:
        choice.setCurrentIndex(offered(choice).index(name))  # as a click does before it is told
        choice.activated.emit(choice.currentIndex())

    choose("tools")
    choose(FILE)
    assert (choice.currentText(), told) == ("tools", ["changed"]), "the dialog was left"
    chosen[0] = str(path)
    choose(FILE)
    assert (choice.currentText(), len(told)) == ("tools", 2)
    assert "mine.jinja" in told[1]
    path.write_text("x" * (4 * MAX_TEMPLATE_CHARS + 1), "utf-8")
    choose(FILE)
    assert (choice.currentText(), len(told)) == ("tools", 3)
    assert told[2] != "changed"
    path.write_text(MINE, "utf-8")
    choose(FILE)
    assert (choice.currentText(), choice.template, told[3:]) == ("mine.jinja", ("mine.jinja", MINE), ["changed"])
    choose("default")
    assert offered(choice) == ["default", "tools", PLAIN_NAME, "mine.jinja", FILE]
    choose("mine.jinja")
    choice.show_names(("other",))
    assert choice.template == ("mine.jinja", MINE), "a file's is of no model"
    assert choice.currentText() == "mine.jinja"


def test_what_a_conversation_was_rendered_by_is_shown_without_a_word(choice: TemplateChoice) -> None:
    told: list[object] = []
    choice.changed.connect(lambda: told.append(1))
    for name, text, taken in (
        ("tools", "", ("tools", "")), ("gone", "", ("", "")), ("saved", MINE, ("saved", MINE)),
        (PLAIN_NAME, PLAIN_TEMPLATE, (PLAIN_NAME, PLAIN_TEMPLATE)),
    ):  # fmt: skip
        choice.show_template(name, text)
        assert choice.template == taken
        assert choice.currentText() == (taken[0] or "default")
    assert offered(choice).count(PLAIN_NAME) == 1
    assert "saved" in offered(choice)
    assert not told
