"""Conversations on the command line: turns, templates, what is kept between turns, and sessions that are repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from engine.saved.document import read_session
from engine.wire.records import PromptAppended, SequenceAdded
from tests.engine.chat.templates import CHATML, LLAMA_WITH_DATE, RAISES
from tests.engine.cli.conftest import Twin
from tests.engine.session.talks import ids_of, talking


@pytest.fixture
def source() -> str:
    return talking(CHATML).info.source


def test_turns_are_said_one_after_the_other_and_repeated_from_the_file(twin: Twin, source: str, tmp_path: Path) -> None:
    file, given = tmp_path / "s.json", ("run", "--model", source, "--threads", 1, "--steps", 4)
    told = twin.lines(*given, "--system", "be short", "--user", "hi", "--user", "no", "--save-session", file)
    (turn,) = [line for line in told if line["event"] == "turn"]
    first = ids_of("<|im_start|>system\nbe short<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n")
    assert turn["cached"] == len(first) + 3  # of four tokens the last is chosen, and not computed
    assert turn["reused"] >= len(first)
    assert turn["reused"] == turn["differs"].get("position", turn["cached"])
    after = [line for line in told if line["event"] == "step" and line["seq_id"] == turn["seq_id"]]
    assert after[0]["num_tokens"] == turn["num_tokens"]
    assert told[-1]["token_ids"] == [line["token_id"] for line in after]
    changes = [change for node in read_session(file).session.nodes for change in node.changes]
    (began,) = [change for change in changes if isinstance(change, SequenceAdded)]
    (went_on,) = [change for change in changes if isinstance(change, PromptAppended)]
    assert began.chat is not None
    assert went_on.chat is not None
    assert [(turn.role, turn.text) for turn in began.chat.turns] == [("system", "be short"), ("user", "hi")]
    assert [turn.role for turn in went_on.chat.turns] == ["system", "user", "assistant", "user"]
    assert went_on.chat.turns[2].text == turn["answer"]
    assert twin.run("replay", file, "--model", source, "--threads", 1)[0] == 0


def test_a_conversation_is_read_from_a_file_and_rendered_by_another_template(
    twin: Twin, source: str, tmp_path: Path
) -> None:
    chat, template = tmp_path / "chat.json", tmp_path / "mine.jinja"
    chat.write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}))
    given = ("run", "--model", source, "--threads", 1, "--steps", 1)
    own = twin.lines(*given, "--chat", chat)
    assert own[0]["num_tokens"] == len(ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
    template.write_text("<s>{{ messages[0].content }}")
    assert twin.lines(*given, "--chat", chat, "--chat-template", template)[0]["num_tokens"] == 3
    template.write_text(RAISES.replace("== 'system'", "== 'user'"))
    note, step, _ = twin.lines(*given, "--chat", chat, "--chat-template", template)
    assert note["text"].endswith("(line 3: System role not supported): the turns were joined as plain text.")
    assert step["num_tokens"] == len("hi\n\n")
    status, out, _ = twin.run(*given, "--chat", chat, "--chat-template", template)
    assert status == 0
    assert out.count("System role not supported") == 1


def test_a_file_that_is_called_as_a_template_of_the_model_does_not_stand_in_its_way(
    twin: Twin, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`default` is the model's own, `./default` the file."""
    monkeypatch.chdir(tmp_path)
    for name in ("default", "mine.jinja"):
        (tmp_path / name).write_text("<s>{{ messages[0].content }}")
    given = ("run", "--model", source, "--threads", 1, "--steps", 1, "--user", "hi", "--chat-template")
    own = len(ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
    counts = [twin.lines(*given, name)[0]["num_tokens"] for name in ("default", "./default", "mine.jinja")]
    assert counts == [own, 3, 3]
    assert "nowhere" in twin.refused(*given, "./nowhere")


def test_where_two_turns_part_is_told_in_words(twin: Twin) -> None:
    source = talking(LLAMA_WITH_DATE.replace("+ date_string", "+ (messages | length | string)")).info.source
    given = ("run", "--model", source, "--threads", 1, "--steps", 2)
    status, out, _ = twin.run(*given, "--user", "hi", "--user", "no")
    assert status == 0
    assert "Token 23 differs: “3” (id 26) here, “1” (id 24) in the cache. Line 10 of the chat template wrote it" in out


def test_forced_tokens_come_before_those_that_are_chosen(twin: Twin, source: str) -> None:
    given = ("run", "--model", source, "--threads", 1, "--steps", 5, "--user", "hi", "--user", "no")
    told = twin.lines(*given, "--force", "yes<|im_end|>")
    assert [line["token_id"] for line in told if line["event"] == "step" and line["seq_id"] == 0][:4] == [
        *ids_of("yes<|im_end|>")
    ]
    (turn,) = [line for line in told if line["event"] == "turn"]
    assert turn["answer"].startswith("yes")
    assert told[-1]["text"].startswith("yes")
    ids = twin.lines("run", "--model", source, "--threads", 1, "--steps", 3, "--token-ids", "9", "--force-ids", "30,31")
    assert ids[-1]["token_ids"][:2] == [30, 31]
    assert "not a list" in twin.refused("run", "--model", source, "--token-ids", "9", "--force-ids", "x")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--system", "x", "--prompt", "y"), "stands before a --user turn"),
        (("--chat-template", "x", "--prompt", "y"), "renders a conversation"),
        (("--chat", "/nowhere.json"), "nowhere.json"),
    ],
)
def test_what_is_no_conversation_is_refused(twin: Twin, arguments: tuple[str, ...], words: str) -> None:
    assert words in twin.refused("run", *arguments)
