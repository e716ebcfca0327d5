"""Conversations as token ids, by the templates that belong to a model."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.chat.template import NO_TEMPLATE, encode_chat, template_names
from engine.errors import InputError
from engine.model.tokenizer import load_tokenizer, special_ids
from engine.spec.sampling import Chat, Turn, chat_of_json
from tests.engine.chat.templates import CHATML, RAISES, SPECIALS, PlainTokenizer, write_chat_tokenizer

CHAT = Chat((Turn("system", "be short"), Turn("user", "hi")))
RENDERED = "<|im_start|>system\nbe short<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"


def test_the_template_of_a_folder_writes_the_special_tokens(tmp_path: Path) -> None:
    write_chat_tokenizer(tmp_path, CHATML)
    tokenizer = load_tokenizer(tmp_path)
    encoded = encode_chat(tokenizer, CHAT)
    assert encoded.rendered.text == RENDERED
    assert encoded.note == ""
    ids = encoded.token_ids
    start, end = SPECIALS.index("<|im_start|>"), SPECIALS.index("<|im_end|>")
    assert [each for each in ids if each in (start, end)] == [start, end, start, end, start]
    assert ids == tokenizer.apply_chat_template(  # type: ignore[union-attr]
        [{"role": turn.role, "content": turn.text} for turn in CHAT.turns],
        add_generation_prompt=True,
        return_dict=False,
    )
    assert encoded.line_of(0).number == 2  # type: ignore[union-attr]
    assert encoded.line_of(len(ids) - 1).number == 5  # type: ignore[union-attr]
    assert special_ids(tokenizer) == tuple(range(len(SPECIALS)))


def test_several_templates_have_names(tmp_path: Path) -> None:
    write_chat_tokenizer(tmp_path, None, rag="rag", default="plain {{ messages[0].content }}", agent="a")
    tokenizer = load_tokenizer(tmp_path)
    assert template_names(tokenizer) == ("default", "agent", "rag"), "the default first"
    assert encode_chat(tokenizer, CHAT).rendered.text == "plain be short"
    assert encode_chat(tokenizer, Chat(CHAT.turns, "rag")).rendered.text == "rag"
    note = encode_chat(tokenizer, Chat(CHAT.turns, "none")).note
    assert "none of the name 'none', but default, agent, rag" in note


def test_where_no_template_can_be_used_the_turns_are_joined_and_it_is_said() -> None:
    none, failing = PlainTokenizer(None), PlainTokenizer(RAISES)
    assert template_names(none) == ()
    for tokenizer, note in (
        (none, NO_TEMPLATE),
        (failing, "The chat template cannot be used (line 3: System role not supported): the turns were joined as "
                  "plain text."),
        (PlainTokenizer("{# nothing #}"), "The chat template writes nothing: the turns were joined as plain text."),
    ):  # fmt: skip
        encoded = encode_chat(tokenizer, CHAT)
        assert encoded.note == note
        assert encoded.rendered.text == "be short\n\nhi\n\n"
        assert encoded.token_ids == [1, *map(ord, "be short\n\nhi\n\n")]  # as a plain prompt begins
        assert encoded.line_of(0) is None


def test_without_a_template_the_next_prompt_begins_with_this_one_and_its_answer() -> None:
    tokenizer = PlainTokenizer(None)
    asked, then = (encode_chat(tokenizer, chat).token_ids for chat in (CHAT, CHAT.answered("yes", "why")))
    assert then == [*asked, *map(ord, "yes\n\nwhy\n\n")]
    assert Chat((Turn("user", ""),)).plain_text == "", "nothing is no prompt"


def test_a_template_that_a_person_chose_goes_before_the_model_s() -> None:
    encoded = encode_chat(PlainTokenizer(CHATML), Chat(CHAT.turns, "mine.jinja", "{{ bos_token }}mine"))
    assert encoded.rendered.text == "<s>mine"
    assert encoded.token_ids == [*map(ord, "<s>mine")]


def test_a_conversation_is_read_from_json() -> None:
    content = '[{"role": "system", "content": "be short"}, {"role": "user", "content": "hi"}]'
    assert chat_of_json(content) == chat_of_json('{"messages": ' + content + "}") == CHAT
    for wrong, words in (
        ("[", "no JSON"),
        ("{}", "no turns"),
        ("[]", "no turns"),
        ("[1]", "two texts"),
        ('[{"role": "user", "content": ["x"]}]', "two texts"),
        ('[{"role": "", "content": "x"}]', "no role"),
        ('[{"role": "<b>", "content": "x"}]', "no role"),
    ):
        with pytest.raises(InputError, match=words):
            chat_of_json(wrong)
