"""The formula of a cache's bytes that is printed, multiplied out, is the number of bytes: in every mode, on models of
all kinds, at every fill; and on a running session, with several sequences and with pages that they share."""

from __future__ import annotations

import pytest

from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.predict.bytes import BudgetSpec, CacheFormula, LayerNeed, budget_of
from engine.session.session import Session
from engine.spec.cache import PRESETS
from engine.spec.sampling import Prompt
from engine.spec.terms import MOST_TERMS, Term, of_all_layers, of_one_layer
from tests.engine.predict.formulas import evaluated, sum_of
from tests.engine.predict.test_approved import FILLS, geometries
from tests.engine.predict.test_bytes import small
from tests.engine.spec.modes import MODES
from tests.engine.tiny import model_of, prompt_ids

L, H, D, S = 6, 4, 32, 294
TALES = CacheGeometry.uniform(L, H, D, num_heads=8)
DEEP = CacheGeometry.uniform(32, H, D)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("mode", MODES)
def test_the_printed_formula_multiplies_out_to_the_bytes(mode: str, dtype: str) -> None:
    spec, num_checked = MODES[mode], 0
    for geometry in (*geometries().values(), DEEP):
        formula = CacheFormula(spec, geometry, dtype)
        try:
            formula.check()
        except InputError:
            continue
        for fill in FILLS:
            needs = [formula.layer(layer, fill) for layer in geometry.layers]
            expected = sum(need.stored.total + (need.state or 0) for need in needs)
            terms = of_all_layers(of_one_layer(formula.terms(layer, fill)) for layer in geometry.layers)
            assert sum_of(term.values for term in terms) == expected
            assert sum(term.num_bytes for term in terms) == expected
            for term in terms:
                assert evaluated(term.values) == term.num_bytes
                assert term.symbols.count("·") == term.values.count("·")
                assert term.legend
            num_checked += bool(terms)
    assert num_checked or spec.recomputes or spec.layout == "quantized"


def terms_in(name: str, geometry: CacheGeometry = TALES, context: int = S, dtype: str = "float32") -> tuple[Term, ...]:
    return budget_of(geometry, BudgetSpec(PRESETS[name].spec, context, dtype=dtype)).terms


def test_an_exact_cache_has_the_formula_of_the_textbooks() -> None:
    (term,) = terms_in("growing")
    assert (term.symbols, term.values) == ("2·L·H_kv·D·S·b", "2·6·4·32·294·4")
    assert evaluated(term.values) == 2 * L * H * D * S * 4 == 1_806_336
    assert terms_in("growing") == terms_in("paged") == terms_in("static") == terms_in("dynamic")
    assert terms_in("none") == ()


def test_codecs_write_bytes_of_their_own() -> None:
    """By the definitions of the codecs, not by their code."""
    codes, scales = terms_in("int8")
    assert (codes.words, codes.symbols, codes.values) == ("codes", "2·L·H_kv·D·S·b", "2·6·4·32·294·1")
    assert (scales.words, scales.symbols, scales.values) == ("scales", "2·L·H_kv·S·2", "2·6·4·294·2")
    assert sum_of((codes.values, scales.values)) == 479_808
    found = {term.words: (term.symbols, term.values) for term in terms_in("kivi-2")}
    coded_keys, coded_values = 294 // 128 * 128, 294 - 128
    assert found["codes of K"] == ("L·H_kv·D·S·b/8", f"6·4·32·{coded_keys}·2/8")
    assert found["codes of V"] == ("L·H_kv·D·S·b/8", f"6·4·32·{coded_values}·2/8")
    assert found["scales and offsets of K"] == ("L·H_kv·D·S·4/g", f"6·4·32·{coded_keys}·4/32")
    assert found["exact residual of K"][1] == f"6·4·32·{294 - coded_keys}·4"
    assert found["exact residual of V"][1] == "6·4·32·128·4"
    assert [term.values for term in terms_in("fp8")] == ["2·6·4·32·294·1", "2·6·4"]


def test_layers_that_differ_have_terms_of_their_own_until_they_are_many() -> None:
    gemma = geometries()["gemma3_text"]
    kinds = {term.kind: term for term in terms_in("growing", gemma, 70)}
    assert set(kinds) == {layer.kind for layer in gemma.layers}
    assert kinds["sliding"].words == "K and V, sliding"
    (pyramid,) = budget_of(DEEP, BudgetSpec(MODES["pyramid"], 2000, prompt=1900)).terms
    assert pyramid.symbols == "2·H_kv·D·ΣS·b"
    assert len({need.rows for need in _needs(DEEP)}) > MOST_TERMS
    assert evaluated(pyramid.values) == 2 * H * D * sum(need.rows for need in _needs(DEEP)) * 2


def _needs(geometry: CacheGeometry) -> list[LayerNeed]:
    spec = BudgetSpec(MODES["pyramid"], 2000, prompt=1900)
    formula = CacheFormula(spec.cache, geometry, "bfloat16")
    return [formula.layer(layer, spec.fill) for layer in geometry.layers]


@pytest.mark.parametrize("architecture", ["llama", "gemma3_text", "lfm2"])
@pytest.mark.parametrize("mode", PRESETS)
def test_every_record_has_the_formula_of_its_bytes(mode: str, architecture: str) -> None:
    if PRESETS[mode].spec.row.is_opt_in:
        pytest.skip("needs a GPU or a compiler")
    try:
        session = Session(model_of(architecture), small(PRESETS[mode]))
    except InputError:
        pytest.skip("this model cannot have this cache")
    for number in range(2):
        seq_id = session.submit(Prompt(token_ids=(*prompt_ids(32), 5 + number)))
        session.force(seq_id, prompt_ids(4))
        for _ in range(4):
            held = session.step().num_bytes
            assert sum_of(term.values for term in held.terms) == held.predicted
            assert bool(held.terms) == bool(held.predicted)


def test_a_shared_page_is_in_the_formula_once() -> None:
    session = Session(model_of("llama"), PRESETS["paged"].spec)
    for _ in range(2):
        session.submit(Prompt(token_ids=prompt_ids(33)))
        while session.is_prefilling:
            session.step()
    held = session.bytes()
    (term,) = held.terms
    total = sum(session.sequence(each.seq_id).num_tokens for each in session.sequences)
    assert term.rows == total - 32
    assert evaluated(term.values) == held.predicted == held.stored


@pytest.mark.parametrize(
    "mode", ["int8", "fp8", "kivi-4", "h2o", "streamingllm", "paged-int8", "transformers-quantized"]
)
@pytest.mark.parametrize("architecture", ["llama", "lfm2"])
def test_a_lossy_cache_is_held_against_an_exact_one_of_the_same_tokens(mode: str, architecture: str) -> None:
    """As a session in the exact mode holds them."""
    held = []
    for spec in (small(PRESETS[mode]), PRESETS["paged" if mode.startswith("paged") else "growing"].spec):
        try:
            session = Session(model_of(architecture), spec)
        except InputError:
            pytest.skip("this model cannot have this cache")
        for number in range(2):
            seq_id = session.submit(Prompt(token_ids=(*prompt_ids(40), 5 + number)))
            session.force(seq_id, prompt_ids(3))
            for _ in range(3):
                session.step()
        held.append(session.bytes())
    lossy, exact = held
    assert exact.exact is None
    assert lossy.exact == exact.stored
    assert lossy.stored < exact.stored
