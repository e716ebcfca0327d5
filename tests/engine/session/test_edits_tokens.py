"""Tokens replaced in a text, and logits that are biased, each compared with computations without a cache."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from engine.errors import InputError
from engine.history.state import SequenceState
from engine.session.edits import make_edit
from engine.session.sampler import choose
from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.edit import BiasLogits, Edit, Mask, ReplaceTokens, Rows, Scale, Zero
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire.records import EditMade
from tests.engine.session.edit_sessions import begun, marks, same, state, step
from tests.engine.session.edited import edit_copy, edit_live, rows_of, running
from tests.engine.session.sessions import set_state, started
from tests.engine.snapshot.sessions import small
from tests.engine.tiny import model_of, prompt_ids

MODES = [name for name, preset in PRESETS.items() if not preset.spec.recomputes]
LOSSLESS = [name for name in MODES if PRESETS[name].lossless]


def reference(
    session: Session, token_ids: list[int]
) -> tuple[torch.Tensor, dict[int, tuple[torch.Tensor, torch.Tensor]]]:
    """Logits `[V]` and rows of one forward over all tokens."""
    from transformers import DynamicCache

    cache = DynamicCache(config=session.model.model.config)
    logits = session.model.reference_logits(torch.tensor([token_ids]), cache)[-1]
    return logits, {i: (layer.keys[0], layer.values[0]) for i, layer in enumerate(cache.layers)}


@pytest.mark.parametrize("mode", LOSSLESS)
def test_overwritten_tokens_have_the_rows_of_a_prefix_that_ends_with_them(mode: str) -> None:
    session, seq_id = running(small(mode))
    old = list(session.sequence(seq_id).token_ids)
    live, told = edit_copy(session, ReplaceTokens(seq_id, 20, (7, 9)))
    assert live.sequence.token_ids == [*old[:20], 7, 9, *old[22:]]
    assert session.sequence(seq_id).token_ids == old
    _, fresh = reference(session, live.sequence.token_ids[:22])
    _, anew = reference(session, live.sequence.token_ids[:44])
    before, after = rows_of(session.live.get(seq_id)), rows_of(live)
    assert told.kept is not None
    assert (told.kept.layers, told.kept.first_position) == ((0, 1), 22)
    for layer in (0, 1):
        for number, of in enumerate((told.kept.keys, told.kept.values)):
            part = after[layer][number]
            assert torch.allclose(part[:, 20:22], fresh[layer][number][:, 20:22], atol=1e-5)
            assert torch.equal(part[:, :20], before[layer][number][:, :20])
            assert torch.equal(part[:, 22:], before[layer][number][:, 22:])
            wanted = anew[layer][number][:, 22:44]
            distance = (part[:, 22:44] - wanted).norm(dim=(0, 2)) / wanted.norm(dim=(0, 2))
            assert np.allclose(of[layer], distance.numpy(), atol=1e-5)
    assert not told.kept.keys[0].round(4).any()  # the first layer reads tokens alone
    assert told.kept.keys[1].min() > 0


@pytest.mark.parametrize("mode", MODES)
def test_tokens_are_overwritten_in_every_mode_that_holds_them(mode: str) -> None:
    session, seq_id = running(small(mode))
    positions = [
        set(session.cache_of(seq_id).held_positions(i).expand(2, -1)[h].tolist()) for i in (0, 1) for h in (0, 1)
    ]
    common = set.intersection(*positions)
    if not common:
        pytest.skip("no position is held by all heads")
    live, told = edit_copy(session, ReplaceTokens(seq_id, max(common), (7,)))
    assert live.sequence.token_ids[max(common)] == 7
    assert told.kl is not None


@pytest.mark.parametrize("mode", PRESETS)
@pytest.mark.parametrize("tokens", [(7, 9), (7, 9, 11, 12), ()])
def test_a_re_prefill_is_the_text_with_those_tokens_from_the_start(mode: str, tokens: tuple[int, ...]) -> None:
    session, seq_id = running(small(mode))
    old = list(session.sequence(seq_id).token_ids)
    live, told = edit_copy(session, ReplaceTokens(seq_id, 20, tokens, "re-prefill", 2))
    token_ids = [*old[:20], *tokens, *old[22:]]
    assert live.sequence.token_ids == token_ids
    assert live.sequence.num_tokens == live.cache.num_tokens == 42 + len(tokens)
    assert live.sequence.num_prompt_tokens == 38 + len(tokens)
    fresh, other = started(cache=small(mode), length=1)
    fresh.remove(other)
    from engine.spec.sampling import Prompt

    other = fresh.submit(Prompt(token_ids=tuple(token_ids[: 38 + len(tokens)])))
    fresh.force(other, (*token_ids[38 + len(tokens) :], 5))
    while fresh.sequence(other).num_tokens < len(token_ids):
        fresh.step()
    assert live.logits is not None
    assert torch.allclose(live.logits, fresh.logits(other), atol=2e-4)  # type: ignore[arg-type]
    for layer, parts in rows_of(live).items():
        for mine, theirs in zip(parts, rows_of(fresh.live.get(other))[layer], strict=True):
            assert torch.allclose(mine, theirs, atol=2e-4)
    assert told.kl is not None
    assert told.kept is None


def test_a_re_prefill_keeps_rows_that_were_edited_before_it() -> None:
    session, seq_id = running(small("growing"))
    edit_live(session, Zero(seq_id, Rows(3, 5)))
    edit_live(session, ReplaceTokens(seq_id, 20, (7,), "re-prefill"))
    keys, _ = rows_of(session.live.get(seq_id))[1]
    assert not keys[:, 3:5].any()
    plain, _ = running(small("growing"))
    edit_live(plain, ReplaceTokens(0, 20, (7,), "re-prefill"))
    other, _ = rows_of(plain.live.get(0))[1]
    assert torch.equal(keys[:, :3], other[:, :3])
    assert not torch.allclose(keys[:, 21:], other[:, 21:], atol=1e-3)  # they attended to the zeroed rows
    session, seq_id = running(small("h2o"))
    position = session.cache_of(seq_id).held_positions(1)[0].tolist()[0]
    edit_live(session, Zero(seq_id, Rows(position, position + 1, (1,), (0,))))
    with pytest.raises(InputError, match="edited by hand"):
        edit_copy(session, ReplaceTokens(seq_id, 40, (7,), "re-prefill"))


def test_what_cannot_be_replaced_is_refused() -> None:
    session, seq_id = running(small("dynamic"), "lfm2", length=12)
    with pytest.raises(InputError, match="recurrent state"):
        edit_copy(session, ReplaceTokens(seq_id, 3, (7,)))
    session, seq_id = running(small("static"))
    many = ReplaceTokens(seq_id, 3, tuple(prompt_ids(100)), "re-prefill", 1)
    with pytest.raises(InputError, match="put fewer in"):
        edit_copy(session, many)


# ---- logits ------------------------------------------------------------------------------------------------------


def steered(logits: torch.Tensor, edit: BiasLogits) -> np.ndarray:  # type: ignore[type-arg]
    """Probabilities of a reference sampler, in float64."""
    numbers = logits.double().numpy().copy()
    for token_id, bias in edit.biases:
        numbers[token_id] += bias
    left = set(edit.only or range(len(numbers))) - set(edit.banned)
    for token_id in set(range(len(numbers))) - left:
        numbers[token_id] = -math.inf
    found = np.exp(numbers - numbers.max())
    return found / found.sum()  # type: ignore[no-any-return]


EDITS: list[Edit] = [
    BiasLogits(0, ((11, 2.5), (12, -3.0))),
    BiasLogits(0, ((11, 30.0),)),
    BiasLogits(0, (), tuple(range(40))),
    BiasLogits(0, ((20, 1.0),), (21,), (20, 21, 22)),
]


@pytest.mark.parametrize("mode", ["growing", "none", "h2o", "paged"])
@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_sampler_chooses_from_the_biased_logits(mode: str, edit: BiasLogits, temperature: float) -> None:
    session, seq_id = started(cache=small(mode), length=20, temperature=temperature, seed=3)
    for _ in range(3):
        set_state(session, seq_id, stop=None)
        session.step()
    before = session.logits(seq_id)
    assert before is not None
    told = edit_live(session, edit)
    probs = steered(before, edit)
    raw = before.double().softmax(-1).numpy()
    chosen = session.sequence(seq_id).sampled
    assert chosen is not None
    if temperature == 0.0:
        assert chosen == int(probs.argmax())
    assert probs[chosen] > 0
    for candidate in told.after:
        assert candidate.prob == pytest.approx(raw[candidate.token_id], rel=1e-4)
        if temperature == 1.0:
            assert candidate.sampled_prob == pytest.approx(probs[candidate.token_id], rel=1e-3, abs=1e-7)
    positive = probs > 0
    assert told.kl == pytest.approx(float((probs[positive] * np.log(probs[positive] / raw[positive])).sum()), abs=1e-4)
    assert torch.equal(session.logits(seq_id), before)  # type: ignore[arg-type]
    for _ in range(5):  # the bias holds from now on, and in a fork
        set_state(session, seq_id, stop=None)
        record = session.step()
        newest = session.logits(seq_id)
        assert newest is not None
        sampled = record.sequences[0].sampled
        assert sampled is not None
        assert steered(newest, edit)[sampled] > 0
    child = session.fork(seq_id).child
    assert session.sequence(child).sampling.bias == LogitBias(edit.biases, edit.banned, edit.only)
    session.set_sampling(SamplingParams(0.5), seq_id)
    assert session.sequence(seq_id).sampling == SamplingParams(0.5, bias=LogitBias.of(edit))
    edit_live(session, BiasLogits(seq_id))
    assert session.sequence(seq_id).sampling == SamplingParams(0.5)


def test_going_back_brings_the_bias_of_then_back() -> None:
    session, seq_id = started(length=20)
    session.step()
    edit_live(session, BiasLogits(seq_id, (), (3,)))
    session.step()
    edit_live(session, BiasLogits(seq_id))
    session.step()
    session.go_to(1)
    assert session.sequence(seq_id).sampling.bias == LogitBias((), (3,))
    session.go_to(0)
    assert session.sequence(seq_id).sampling.bias is None


def test_when_every_token_is_banned_one_sentence_says_so() -> None:
    sampling = SamplingParams(bias=LogitBias((), tuple(range(8))))
    with pytest.raises(InputError, match="Every token is banned"):
        choose(torch.zeros(8), sampling, 0, str)


@pytest.mark.parametrize(
    ("position", "num_new", "num_replaced", "length"),
    [
        (0, 2, 1, 9),
        (7, 3, 1, 10),
        (6, 1, 2, 7),
        (6, 1, 5, 7),  # two of the five belong to the prompt
        (7, 0, 1, 7),
        (8, 3, 1, 8),  # tokens put behind the prompt do not belong to it
        (9, 3, 1, 8),
    ],
)
def test_tokens_put_into_a_prompt_belong_to_it(position: int, num_new: int, num_replaced: int, length: int) -> None:
    edit = ReplaceTokens(0, position, (7,) * num_new, "re-prefill", num_replaced)
    before = SequenceState.of_prompt(range(8), SamplingParams()).computed(12, None, (0, 0))
    assert before.apply(EditMade(edit)).num_prompt_tokens == length


@pytest.mark.parametrize("mode", ["growing", "none", "h2o", "paged", "kivi-4", "transformers-quantized"])
def test_other_tokens_are_undone_and_repeated(mode: str) -> None:
    session = begun(mode)
    before, stood = state(session), marks(session)
    added, _ = make_edit(session, ReplaceTokens(0, 12, (7, 9, 11), "re-prefill", 1))
    assert session.sequence(0).token_ids[12:15] == [7, 9, 11]
    step(session)
    end, then, last = state(session), marks(session), session.last_step
    session.go_to(1)
    session.kept.clear()
    session.go_to(last)
    assert same(state(session), end)
    assert marks(session) == then
    session.kept.clear()
    session.go_to(added.node.parent)
    assert marks(session) == stood
    assert same(state(session), before)


@pytest.mark.parametrize("mode", ["growing", "paged", "int8"])
def test_a_re_prefill_tells_where_the_newest_token_looks(mode: str) -> None:
    """Its attention covers all tokens of the new text, as in a session that was given them from the start."""
    session = begun(mode)
    added, _ = make_edit(session, ReplaceTokens(0, 12, (7, 9, 11), "re-prefill", 1))
    row = session.history.attention_at(0, added.node.step)[1]
    assert row.shape[1] == session.sequence(0).num_tokens
    assert torch.allclose(row.sum(1), torch.ones(row.shape[0]), atol=1e-5)


@pytest.mark.parametrize("mode", ["growing", "paged", "int8", "kivi-4", "fp8", "h2o", "dynamic"])
def test_rows_of_a_prompt_that_is_half_read_are_edited_and_read_by_the_rest(mode: str) -> None:
    session, plain = (Session(model_of("llama"), small(mode), prefill_chunk=8) for _ in range(2))
    for each in (session, plain):
        each.submit(Prompt(token_ids=prompt_ids(30)))
        each.step()
    _, measured = make_edit(session, Scale(0, Rows(2, 6), -2.0))
    assert measured.kl is None  # no token was chosen yet
    make_edit(session, Mask(0, Rows(5, 7)))
    for each in (session, plain):
        while each.is_prefilling:
            each.step()
    one, other = session.logits(0), plain.logits(0)
    assert one is not None
    assert other is not None
    assert one.isfinite().all()
    assert not torch.allclose(one, other, atol=1e-3)


def test_a_prompt_that_was_half_read_is_the_old_one_before_its_end_was_replaced() -> None:
    """Going back restores the old tokens that were still to be read, not those that replaced them."""
    session, ids = Session(model_of("llama"), small("growing"), prefill_chunk=5), prompt_ids(12)
    session.submit(Prompt(token_ids=ids))
    for _ in range(4):
        session.step()
    make_edit(session, ReplaceTokens(0, 8, (17, 18), "re-prefill", 2))
    session.kept.set_limit(0)
    session.go_to(0)
    assert (tuple(session.sequence(0).token_ids), session.sequence(0).num_tokens) == (ids, 5)


WINDOWS = [
    (architecture, mode) for architecture in ("gemma2", "mistral") for mode in ("dynamic", "static", "paged", "growing")
]


@pytest.mark.parametrize(("architecture", "mode"), WINDOWS)
def test_behind_a_window_an_edit_of_next_to_nothing_moves_next_to_nothing(architecture: str, mode: str) -> None:
    """Layers of transformers that slide, and pages, hold one row less than the newest token read."""
    session, seq_id = running(small(mode), architecture, length=24, num_steps=3)
    count, before = session.sequence(seq_id).num_tokens, session.logits(seq_id)
    for edit in (
        Scale(seq_id, Rows(count - 3, count - 2), 1.0001),
        Mask(seq_id, Rows(count - 3, count - 2), hidden=False),
    ):
        live, told = edit_copy(session, edit)
        assert live.logits is not None
        assert torch.allclose(live.logits, before, atol=5e-3)
        assert (told.kl is None) == bool(told.why_unmeasured) == (mode in ("dynamic", "paged"))


@pytest.mark.parametrize(("architecture", "mode"), WINDOWS)
def test_overwritten_tokens_behind_a_window_have_their_rows_or_are_refused(architecture: str, mode: str) -> None:
    session, seq_id = running(small(mode), architecture, length=24, num_steps=3)
    count = session.sequence(seq_id).num_tokens
    for position in range(count - 7, count):
        edit = ReplaceTokens(seq_id, position, (7,))
        if mode in ("dynamic", "paged") or (mode == "static" and position < count - 1):
            with pytest.raises(InputError, match="re-prefill what follows"):
                edit_copy(session, edit)
            continue
        live, _ = edit_copy(session, edit)
        _, fresh = reference(session, live.sequence.token_ids[: position + 1])
        held, rows = session.cache_of(seq_id).held_positions(1)[0].tolist(), rows_of(live)[1]
        for part, wanted in zip(rows, fresh[1], strict=True):
            assert torch.allclose(part[:, held.index(position)], wanted[:, -1], atol=1e-4)
