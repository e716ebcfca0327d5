"""What chat templates write, which line wrote it, and what becomes of those that are hostile."""

from __future__ import annotations

import re
import time
import tracemalloc

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from engine.chat import sandbox
from engine.chat.template import ChatTemplate, Rendered, TemplateFailed
from engine.spec.sampling import Chat, Turn
from tests.engine.chat.templates import CHATML, HOSTILE, LLAMA_WITH_DATE, NEEDS_TOOLS, RAISES, THINKING

CHAT = Chat(
    (
        Turn("system", " be short "),
        Turn("user", "hi"),
        Turn("assistant", "<think>\nhm</think>\n\nyes "),
        Turn("user", "no"),
    )
)


def render(source: str, chat: Chat = CHAT) -> Rendered:
    return ChatTemplate(source).render(chat, {"bos_token": "<s>"})


def line_of(rendered: Rendered, text: str) -> int:
    found = rendered.line_at(rendered.text.index(text))
    assert found is not None
    return found.number


@pytest.mark.parametrize("source", [CHATML, LLAMA_WITH_DATE, THINKING])
@pytest.mark.parametrize("num_turns", [1, 3, 4])
def test_it_writes_what_transformers_writes(source: str, num_turns: int) -> None:
    chat = Chat(CHAT.turns[:num_turns])
    messages = [{"role": turn.role, "content": turn.text} for turn in chat.turns]
    (wanted,), _ = render_jinja_template(
        [messages], chat_template=source, add_generation_prompt=num_turns != 3, bos_token="<s>"
    )
    assert render(source, chat).text == wanted


def test_each_piece_is_of_the_line_that_wrote_it() -> None:
    dated, thinking = render(LLAMA_WITH_DATE), render(THINKING)
    assert [line_of(dated, text) for text in ("<s>", "system", "Today", "be short", "hi")] == [1, 9, 10, 11, 14]
    assert dated.line_at(len(dated.text) - 3).number == 17  # type: ignore[union-attr]
    assert [line_of(thinking, text) for text in ("system", " be short ", "yes", "user\n", "hi")] == [15, 16, 12, 15, 16]
    assert thinking.line_at(thinking.text.index("yes")).text.startswith("{{- '<|im_start|>assistant")  # type: ignore[union-attr]
    assert dated.line_at(len(dated.text)) is dated.line_at(-1) is None


def test_text_over_several_lines_is_counted_on() -> None:
    rendered = render("first\nsecond\n{{ messages[0].content }}\nfourth\n{% if 1 %}\nsixth\n{% endif %}\n")
    assert [line_of(rendered, text) for text in ("first", "second", "be", "fourth", "sixth")] == [1, 2, 3, 4, 6]


def test_what_a_macro_writes_is_of_the_line_that_calls_it() -> None:
    rendered = render("{% macro f(x) %}\n<{{ x }}>\n{% endmacro %}\n\n{{ f('a') }}")
    assert rendered.text == "\n<a>\n"
    assert line_of(rendered, "<a>") == 5


def test_what_a_template_says_and_where() -> None:
    for source, wanted in (
        (RAISES, "line 3: System role not supported"),
        (NEEDS_TOOLS, "line 2: 'NoneType' object is not iterable"),
        ("x\n{% for %}", "line 2: Expected an expression"),
    ):
        with pytest.raises(TemplateFailed) as caught:
            render(source)
        assert str(caught.value).startswith(wanted)


@pytest.mark.parametrize(
    "shown",
    [
        "raise_exception", "range", "'x' ~ raise_exception", "[raise_exception]", "{'a': 'x'.upper}",
        "raise_exception|string", "raise_exception|upper", "'%s' % raise_exception", "'{}'.format(raise_exception)",
        "'{0.upper}'.format('x')", "messages|map('first')", "joiner()", "[raise_exception]|join",
        "'a'|replace('a', raise_exception)", "strftime_now(raise_exception)",
    ],
)  # fmt: skip
def test_no_prompt_has_an_address_in_it(shown: str) -> None:
    """It would be another one in every process: a session could not be repeated."""
    with pytest.raises(TemplateFailed, match=r"another one in every process|unsafe"):
        render("{{ " + shown + " }}")


def test_what_has_no_address_is_written_as_ever() -> None:
    source = "{{ [1, none, {'a': (2.5, true)}] }}{{ range(2) }}{{ namespace(a=messages) }}{{ nothing }}"
    assert render(source).text == "[1, None, {'a': (2.5, True)}]range(0, 2)<namespace>"


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_ends_soon_and_says_why(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_SECONDS", 600)  # steps and characters alone end it, on any machine
    monkeypatch.setattr(sandbox, "MAX_STEPS", 60_000)
    monkeypatch.setattr(sandbox, "MAX_CHARS", 64 << 20)
    source, wanted = HOSTILE[name]
    with pytest.raises(TemplateFailed) as caught:
        render(source)
    assert wanted in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", [name for name, (text, _) in HOSTILE.items() if not re.search("{% (for|macro)", text)])
def test_an_operation_that_is_too_large_is_refused_before_it_is_done(name: str) -> None:
    """At most two texts as long as one may be; without loops, which `tracemalloc` makes slow."""
    tracemalloc.start()
    try:
        with pytest.raises(TemplateFailed):
            render(HOSTILE[name][0])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 3 * sandbox.MAX_VALUE


def test_time_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(10**9))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(now)))
    with pytest.raises(TemplateFailed, match="does not end within 2 seconds"):
        render("{% for i in range(9) %}{% endfor %}")


def test_what_a_turn_says_is_text_and_no_template() -> None:
    chat = Chat((Turn("user", "{{ 7 * 7 }}{% for %}"),))
    assert "{{ 7 * 7 }}{% for %}" in render(CHATML, chat).text


def test_what_spent_too_much_is_not_tried_again_with_as_much(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MAX_STEPS", 1_000)
    template = ChatTemplate("{% for m in messages %}{% for i in range(m.content | length) %}x{% endfor %}{% endfor %}")
    long, short = Chat((Turn("user", "a" * 5_000),)), Chat((Turn("user", "a" * 5),))
    with pytest.raises(TemplateFailed, match="it does not end"):
        template.render(long, {})
    monkeypatch.setattr(sandbox, "MAX_STEPS", 1_000_000)
    with pytest.raises(TemplateFailed, match="it does not end"):
        template.render(long, {})
    assert template.render(short, {}).text == "xxxxx"


def test_what_real_templates_do_with_values_is_within_the_limits() -> None:
    chat = Chat(tuple(Turn(role, "word " * 200) for _ in range(300) for role in ("user", "assistant")))
    source = (
        "{% macro say(m, all) %}{{ m.content.split(' ') | first }}{{ m.content | trim | length }}{% endmacro %}"
        "{% set ns = namespace(kept=[]) %}{% for m in messages %}{% set ns.kept = ns.kept + [m.role] %}"
        "{{ say(m, messages[loop.index0:loop.index]) }}{% endfor %}"
        "{{ '{0}: {1:>4}'.format('n', ns.kept | length) }}{{ {'a': [1, 'x']} | tojson(indent=2) }}{{ (1, [2]) }}"
    )
    assert render(source, chat).text == "word999" * 600 + 'n:  600{\n  "a": [\n    1,\n    "x"\n  ]\n}(1, [2])'
