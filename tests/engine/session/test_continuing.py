"""The next turn of a conversation: rows of equal tokens are kept bit for bit, the rest is computed, and the answer says
where the two prompts part."""

from __future__ import annotations

import pytest
import torch

from engine.errors import InputError
from engine.opened.session import history_events, walk
from engine.saved.named import decoded, encoded
from engine.saved.session import SavedSession
from engine.session.commands import continue_with, generated_text, preview
from engine.session.edits import make_edit
from engine.session.replay import Replay, repeat_change
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec
from engine.spec.edit import BiasLogits
from engine.spec.sampling import JOINED_END, PLAIN_END, PLAIN_NAME, PLAIN_TEMPLATE, Chat, Prompt, SamplingParams, Turn
from engine.wire.commands import PreviewPrompt
from engine.wire.events import ForkMade
from engine.wire.pages import ContinuedFrom
from engine.wire.records import PromptAppended, SequenceAdded, SequenceForked, SequenceRemoved
from tests.engine.chat.templates import CHATML, RAISES, SPECIALS, THINKING
from tests.engine.session.talks import GREEDY, answered, begun, chat_of, goes_on, ids_of, talking

FIRST = chat_of("hi")
GROWING = CacheSpec("growing")
COUNTING = "{{ messages | length }}\n{% for m in messages %}\n{{ m.content }}{{ eos_token }}\n{% endfor %}"


def reuse_of(session: Session, seq_id: int) -> ContinuedFrom:
    (told,) = (info.why_not_reused for info in session.sequences if info.seq_id == seq_id)
    assert isinstance(told, ContinuedFrom)
    assert told == session.live.get(seq_id).continued
    return told


def rows_of(session: Session, seq_id: int, count: int) -> list[torch.Tensor]:
    found = [session.cache_of(seq_id).rows(layer) for layer in range(2)]
    return [part[:, :, :count].clone() for rows in found if rows is not None for part in (rows.keys, rows.values)]


@pytest.mark.parametrize("name", ["dynamic", "static", "growing", "paged", "offloaded"])
def test_rows_of_equal_tokens_are_kept_bit_for_bit(name: str) -> None:
    spec = PRESETS[name].spec
    session, first = begun(CHATML, FIRST, spec)
    answered(session, first, "yes.<|im_end|>")
    before, count = rows_of(session, first, 99), session.sequence(first).num_tokens
    child = goes_on(session, first, FIRST, "and now?")
    assert reuse_of(session, child) == ContinuedFrom(first, count, count)
    assert session.live.ids == (child,)
    ids = session.sequence(child).token_ids
    assert ids[:count] == [*ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyes.")]
    record = session.step()
    assert (record.sequences[0].first_position, record.sequences[0].num_tokens) == (count, len(ids))
    for one, other in zip(before, rows_of(session, child, count), strict=True):
        assert torch.equal(one, other)
    fresh = Session(session.model, spec, prefill_chunk=512)
    other_id = fresh.submit(Prompt(token_ids=tuple(ids)))
    fresh.step()
    torch.testing.assert_close(session.logits(child), fresh.logits(other_id), rtol=1e-4, atol=1e-5)
    assert generated_text(session, child) == generated_text(fresh, other_id)


@pytest.mark.parametrize(("name", "words"), [("none", "keeps nothing"), ("int8", "codes or evicts"), ("h2o", "evicts")])
def test_a_mode_that_can_keep_no_row_says_why(name: str, words: str) -> None:
    session, first = begun(CHATML, FIRST, PRESETS[name].spec)
    answered(session, first, "yes<|im_end|>")
    child = goes_on(session, first, FIRST, "and now?")
    reuse = reuse_of(session, child)
    assert (reuse.num_reused, reuse.position) == (0, None)
    assert words in reuse.why
    assert session.step().sequences[0].first_position == 0


def test_a_template_that_drops_the_reasoning_is_named_with_its_line() -> None:
    session, first = begun(THINKING, FIRST, GROWING)
    answered(session, first, "<think>no</think>yes<|im_end|>")
    at = len(ids_of("<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"))
    child = goes_on(session, first, FIRST, "and now?")
    reuse = reuse_of(session, child)
    assert (reuse.position, reuse.num_reused) == (at, at)
    assert (reuse.token, reuse.cached) == ((ids_of("y")[0], "y"), (ids_of("<")[0], "<"))
    assert reuse.line == 12
    assert reuse.line_text.startswith("{{- '<|im_start|>assistant\\n' + content.strip()")
    assert session.sequence(child).num_tokens == at


def test_a_template_that_strips_the_answer_parts_there() -> None:
    session, first = begun(THINKING, FIRST, GROWING)
    answered(session, first, "yes <|im_end|>")
    reuse = reuse_of(session, goes_on(session, first, FIRST, "no"))
    assert (reuse.token, reuse.cached, reuse.line) == (
        (SPECIALS.index("<|im_end|>"), "<|im_end|>"),
        (ids_of(" ")[0], " "),
        12,
    )


def test_where_the_first_line_changes_nothing_is_kept() -> None:
    session, first = begun(COUNTING, FIRST, GROWING)
    answered(session, first, "yes<|im_end|>")
    child = goes_on(session, first, FIRST, "no")
    reuse = reuse_of(session, child)
    assert (reuse.num_reused, reuse.position, reuse.line, reuse.line_text) == (0, 0, 1, "{{ messages | length }}")
    assert (reuse.cached, reuse.token) == ((ids_of("1")[0], "1"), (ids_of("3")[0], "3"))
    changes = session.history.changes
    assert isinstance(changes[0], SequenceAdded)
    assert changes[0].chat is not None
    assert [turn.text for turn in changes[0].chat.turns] == ["hi", "yes", "no"]


def test_a_prompt_that_is_a_part_of_what_is_there_computes_its_last_token() -> None:
    session, first = begun(None, chat_of("abcdef"), GROWING)
    child = continue_with(session, first, Prompt(text="abcd"))
    assert reuse_of(session, child) == ContinuedFrom(first, 13, 3, 4, None, (ids_of("e")[0], "e"))
    assert session.step().sequences[0].first_position == 3


def test_the_moment_before_stays_and_others_are_left_alone() -> None:
    session, first = begun(CHATML, FIRST, CacheSpec("paged"))
    answered(session, first, "yes<|im_end|>")
    step, rows = session.last_step, rows_of(session, first, 99)
    child = goes_on(session, first, FIRST, "no")
    session.step()
    assert step is not None
    assert session.go_to(step) == "it was kept as it stood"
    assert session.live.ids == (first,)
    for one, other in zip(rows, rows_of(session, first, 99), strict=True):
        assert torch.equal(one, other)
    beside = session.submit(Prompt(token_ids=(5, 6, 7)))
    again = goes_on(session, first, FIRST, "no")
    assert session.live.ids == (beside, again)
    assert again > child


def test_a_full_page_that_is_kept_in_part_stays_to_be_found() -> None:
    """The sequence writes to a page of its own, even if no other sequence holds the full page any more."""
    session, first = begun(None, chat_of("abcdefgh"), CacheSpec("paged", page_size=4))
    ids = session.sequence(first).token_ids
    session.stop(first)  # so that the moment is not kept
    child = continue_with(session, first, Prompt(token_ids=(*ids[:6], 40, 41)))
    assert reuse_of(session, child).num_reused == 6
    session.step()
    found = session.submit(Prompt(token_ids=(*ids[:8], 42)))
    session.step()
    assert next(info.hit_tokens for info in session.sequences if info.seq_id == found) == 8


def test_what_is_refused_changes_nothing() -> None:
    session, first = begun(CHATML, FIRST, PRESETS["static"].spec)
    before = (session.live.ids, list(session.history.changes), session.sequence(first))
    with pytest.raises(InputError, match="tokens and the static cache holds"):
        goes_on(session, first, FIRST, "long " * 200)
    with pytest.raises(InputError, match="no sequence 7"):
        continue_with(session, 7, Prompt(text="x"))
    count = session.sequence(first).num_tokens
    for change, words in (
        (SequenceForked(9, first, None, count + 1), "does not have rows"),
        (SequenceForked(9, first, None, -1), "does not have rows"),
        (PromptAppended(first, (5_000,), GREEDY), "outside the vocabulary"),
        (PromptAppended(first, (5,) * 600, GREEDY), "holds 512"),
        (PromptAppended(first, (5,) * (513 - len(session.sequence(first).token_ids)), GREEDY), "holds 512"),
        (PromptAppended(8, (5,), GREEDY), "no sequence 8"),
    ):
        with pytest.raises(InputError, match=words):
            repeat_change(session, change)
    session.live.next_id = first + 1
    assert (session.live.ids, session.history.changes, session.sequence(first)) == before


@pytest.mark.parametrize("name", ["growing", "paged"])
def test_a_conversation_is_replayed_from_its_nodes(name: str) -> None:
    session, first = begun(CHATML, FIRST, CacheSpec(name))
    answered(session, first, "yes<|im_end|>")
    child = goes_on(session, first, FIRST, "no")
    for _ in range(3):
        session.step()
    nodes = tuple(entry.node for entry in session.history.tree)
    made = [change for node in nodes for change in node.changes]
    kinds = [type(change) for change in made]
    assert kinds[-3:] == [SequenceForked, PromptAppended, SequenceRemoved]
    again = Session(session.model, nodes[0].cache, prefill_chunk=512)
    replay = Replay(again, nodes)
    for _ in replay.steps():
        pass
    assert replay.is_exact, replay.why_not_exact
    assert again.sequence(child).token_ids == session.sequence(child).token_ids
    assert [entry.node for entry in again.history.tree] == list(nodes)  # roles and texts among it
    assert again.sequence(child).chat == session.sequence(child).chat


def test_a_file_holds_the_turns_and_the_tokens_without_the_model() -> None:
    session, first = begun(CHATML, FIRST, GROWING)
    answered(session, first, "yes<|im_end|>")
    child = goes_on(session, first, FIRST, "no")
    for _ in range(3):
        session.step()
    nodes = tuple(entry.node for entry in session.history.tree)
    content = encoded(SavedSession(nodes=nodes, draft_chat=FIRST))
    again = decoded(content, SavedSession)
    assert (again.nodes, again.draft_chat) == (nodes, FIRST)
    *_, last = walk(again.nodes)
    assert [*last.states] == [child]
    tokens = last.states[child]
    assert tokens.token_ids == session.sequence(child).token_ids
    assert tokens.num_prompt_tokens == session.sequence(child).num_prompt_tokens
    events = [event for event in history_events(again, {}, {}) if isinstance(event, ForkMade)]
    count = session.live.get(child).continued.num_reused  # type: ignore[union-attr]
    assert [(event.parent, event.child, event.num_tokens) for event in events] == [(first, child, count)]
    # an older file: it has no conversation
    old = decoded(b'{"model":null,"nodes":[{"step":0,"parent":null,"changes":['
                  b'{"type":"SequenceAdded","seq_id":0,"token_ids":[1],'
                  b'"sampling":{"temperature":0.0}},{"type":"SequenceForked","seq_id":1,"parent":0,"step":null}],'
                  b'"cache":{"layout":"growing"}}]}', SavedSession)  # fmt: skip
    assert old.draft_chat is None
    assert old.nodes[0].changes == (SequenceAdded(0, (1,), GREEDY), SequenceForked(1, 0, None))


def test_a_step_that_fails_and_a_preemption_find_their_rows_again() -> None:
    session, first = begun(CHATML, FIRST, GROWING)
    answered(session, first, "yes<|im_end|>")
    child = goes_on(session, first, FIRST, "no")
    for _ in range(2):
        session.step()
    rows = rows_of(session, child, 99)
    live = session.live.get(child)
    live.cache.clear()
    live.is_stale = True
    session.refresh(live)
    for one, other in zip(rows, rows_of(session, child, 99), strict=True):
        assert torch.equal(one, other)
    session.live.preempt(live, session.history.path.newest)
    session.step()
    assert session.sequence(child).num_tokens == len(session.sequence(child).token_ids)


def test_an_answer_without_a_template_ends_at_an_empty_line() -> None:
    """The turn is what comes before it. All rows are kept, and the end stays when the sampling is changed; a text has
    no such end."""
    session, first = begun(None, FIRST, GROWING, steps=1)
    session.set_sampling(SamplingParams(stop=("no",)), first)
    assert session.sequence(first).sampling.stop == ("no", JOINED_END)
    session.force(first, ids_of("yes.\n"))
    for _ in ids_of("yes."):
        session.step()
    make_edit(session, BiasLogits(first, only=ids_of("\n")))
    session.step()
    assert (session.sequence(first).stop, session.has_work) == ("stop string", False)
    assert generated_text(session, first) == "yes."
    child = goes_on(session, first, FIRST, "why?")
    reuse = reuse_of(session, child)
    assert reuse == ContinuedFrom(first, len("hi\n\nyes.\n"), len("hi\n\nyes.\n"))
    assert session.sequence(child).token_ids == [*ids_of("hi\n\nyes.\n\nwhy?\n\n")]
    assert session.sequence(child).sampling.stop == (JOINED_END,)
    ours = session.submit(Prompt(chat=Chat(FIRST.turns, PLAIN_NAME, PLAIN_TEMPLATE), sampling=GREEDY))
    assert session.sequence(ours).sampling.stop == (PLAIN_END,)
    assert session.sequence(session.submit(Prompt(text="hi", sampling=GREEDY))).sampling.stop == ()
    templated, seq_id = begun(CHATML, FIRST, GROWING, steps=1)
    assert templated.sequence(seq_id).sampling.stop == (), "a token of the model ends its turns"


def test_a_preview_changes_nothing_and_says_what_would_be_reused() -> None:
    session, first = begun(CHATML, FIRST, GROWING)
    answered(session, first, "yes<|im_end|>")
    chat = FIRST.answered("yes", "no")
    found = preview(session, PreviewPrompt(Prompt(chat=chat), first))
    assert found.answer == "yes"
    assert found.text.endswith("<|im_start|>user\nno<|im_end|>\n<|im_start|>assistant\n")
    assert "".join(found.texts) == found.text
    assert found.reuse == ContinuedFrom(first, found.reuse.num_cached, found.reuse.num_cached)  # type: ignore[union-attr]
    assert session.live.ids == (first,)
    assert preview(session, PreviewPrompt(Prompt(chat=chat), 99)).reuse is None
    alone = preview(session, PreviewPrompt(Prompt(chat=Chat((Turn("system", "x"),), "", RAISES))))
    assert alone.note.endswith("(line 3: System role not supported): the turns were joined as plain text.")
    assert alone.text == "x\n\n"  # the gap before the answer


def test_the_key_that_names_a_model() -> None:
    info = talking(CHATML).info
    assert info.templates == ("default",)
    assert info.special_ids == tuple(range(len(SPECIALS)))
    assert talking(None).info.templates == ()
    session = Session(talking(CHATML), GROWING)
    seq_id = session.submit(Prompt(chat=FIRST, sampling=GREEDY))
    assert session.history.changes[-1] == SequenceAdded(
        seq_id, tuple(session.sequence(seq_id).token_ids), GREEDY, FIRST
    )
