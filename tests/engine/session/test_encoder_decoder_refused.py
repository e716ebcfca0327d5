"""Encoder-decoders: modes that are refused, and prompts for which there is no room."""

from __future__ import annotations

import pytest

from engine.errors import InputError
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.edit import Drop, Rows
from engine.spec.sampling import Prompt
from tests.engine.session.test_encoder_decoder import started
from tests.engine.tiny import model_of, prompt_ids

REFUSED = [
    ("bart", "allocated", "use the static cache"),
    ("bart", "snapkv", "use a rule that evicts rows as tokens come"),
    ("bart", "pyramidkv", "use a rule that evicts rows as tokens come"),
    ("t5", "h2o", "adds a bias by distance"),
    ("longt5", "sliding", "adds a bias by distance"),
    ("led", "static", "would read the empty room"),
    ("led", "h2o", "counts rows by tokens seen"),
]


@pytest.mark.parametrize(("architecture", "name", "why"), REFUSED)
def test_a_mode_that_makes_no_sense_is_refused_in_a_sentence(architecture: str, name: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        Session(model_of(architecture), PRESETS[name].spec)
    session = started(architecture, steps=2)
    with pytest.raises(InputError, match=why):
        session.set_cache(PRESETS[name].spec)
    assert session.step().sequences[0].num_tokens == 10


def test_a_mode_that_rotates_keys_anew_is_refused() -> None:
    with pytest.raises(InputError, match="behind an encoder: keep the positions"):
        Session(model_of("t5gemma"), tuned(PRESETS["streamingllm"].spec, rerotate=True))


def test_rows_of_the_source_are_never_dropped_and_pages_of_the_decoder_are_counted_from_its_first_token() -> None:
    session = started("bart", "paged", steps=40)
    with pytest.raises(InputError, match="written once and in one run"):
        make_edit(session, Drop(0, Rows(1, 2, (2,))))
    with pytest.raises(InputError, match="positions from 7 to 23"):
        make_edit(session, Drop(0, Rows(8, 23)))
    make_edit(session, Drop(0, Rows(7, 23)))
    cache = session.cache_of(0)
    assert cache.positions(0).tolist() == [list(range(23, 47))] * 4  # type: ignore[union-attr]
    assert [layer.stored for layer in session.bytes().layers] == [2 * 24 * 64 * 4] * 2 + [2 * 7 * 64 * 4] * 2


def test_a_page_holds_tokens_of_one_source_alone() -> None:
    """Two prompts whose decoders start alike share nothing: their rows depend on what the encoder read."""
    session = Session(model_of("bart"), PRESETS["paged"].spec)
    for seed in (1, 2):
        seq_id = session.submit(Prompt(token_ids=prompt_ids(9, seed)))
        session.force(seq_id, prompt_ids(20))
    while session.sequence(1).num_tokens < 27:
        session.step()
    counts = session.cache_of(1).page_counts()
    assert (counts.shared, counts.hit_tokens) == (0, 0)
    assert "what the encoder read" in str(counts.why_not_reused)
    child = session.fork(1).child
    assert session.cache_of(child).page_counts().shared == 2


def test_source_and_decoder_are_bounded_apart() -> None:
    with pytest.raises(InputError, match="100 tokens and the model's encoder reads 96"):
        Session(model_of("led"), CacheSpec()).submit(Prompt(token_ids=prompt_ids(100)))
    session = Session(model_of("led"), CacheSpec())
    session.submit(Prompt(token_ids=prompt_ids(90)))
    assert session.step().sequences[0].num_tokens == 91
    with pytest.raises(InputError, match="70 tokens and the model's encoder reads 64"):
        Session(model_of("bart"), CacheSpec()).submit(Prompt(token_ids=prompt_ids(70)))
    session = Session(model_of("bart"), CacheSpec("static", max_length=4))
    session.submit(Prompt(token_ids=prompt_ids(60)))
    while session.has_work:
        session.step()
    assert session.sequence(0).stop == "cache full"
    assert session.sequence(0).num_tokens == 64
