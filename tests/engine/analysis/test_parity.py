"""Parity of the steps that were taken: what departs, where, and from which step on."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from engine.analysis.parity import live_parity, verdict
from engine.errors import InputError
from engine.session.commands import continue_with
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import PRESETS, CacheSpec, tuned
from engine.spec.codec import uniform
from engine.spec.edit import Edit, Mask, Overwrite, Replacement, ReplaceTokens, Rows, Zero
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire.measurements import CheckParity
from engine.wire.status import Chosen, PhaseReached
from tests.engine.analysis.live import WINDOW, checked, started
from tests.engine.cache.compressed.test_cache_going_back import assert_same, state_of
from tests.engine.tiny import model_of, prompt_ids


@pytest.mark.parametrize("name", ["none", "dynamic", "static", "growing", "paged"])
@pytest.mark.parametrize("architecture", ["llama", "mistral", "falcon"])
def test_lossless_modes_are_within_rounding_at_every_step(name: str, architecture: str) -> None:
    session, seq_id = started(PRESETS[name].spec, architecture=architecture)
    found = checked(session, CheckParity(seq_id))
    assert found.verdict == "within rounding"
    assert found.layer is None
    assert found.top1_agreement == 1
    assert found.positions.tolist() == [15, 31, 39, 40, 41, 42, 43, 44] or name == "none"
    assert float(found.kl.max()) < 1e-6


def test_a_wrong_row_is_found_where_it_is() -> None:
    session, seq_id = started()
    rows = session.cache_of(seq_id).rows(1)
    assert rows is not None
    with torch.inference_mode():
        rows.values[0, 1, 17] += 0.5
    session.step()
    found = checked(session, CheckParity(seq_id))
    assert found.verdict == "departs"
    assert (found.layer, found.tensor, found.position) == (1, "values", 17)
    assert float(found.max_abs_logit_diff[-1]) > found.tolerance > float(found.max_abs_logit_diff[:-1].max())


def test_the_first_wrong_row_is_the_one_that_is_named() -> None:
    """Of a wrong value at 3 and a wrong key at 9 of one layer, and a wrong key at 1 of a later one: the first."""
    session, seq_id = started()
    with torch.inference_mode():
        for layer, tensor, position in ((0, "keys", 9), (0, "values", 3), (1, "keys", 1)):
            rows = session.cache_of(seq_id).rows(layer)
            assert rows is not None
            getattr(rows, tensor)[0, 1, position] += 0.5
    found = checked(session, CheckParity(seq_id))
    assert (found.layer, found.tensor, found.position) == (0, "values", 3)


@pytest.mark.parametrize(
    ("differences", "may_differ", "is_row_wrong", "said"),
    [
        ([1e-5, 1e-5], [0, 0], False, "within rounding"),
        ([1e-5, 1e-5], [0, 0], True, "departs"),  # logits of few bits may hide a wrong row
        ([1e-5, 1e-5], [1, 0], True, "departs"),  # nor does an earlier lossy step excuse it
        ([1.0, 1e-5], [1, 0], True, "departs"),
        ([1.0, 1e-5], [1, 0], False, "lossy, as asked"),
        ([1.0, 1.0], [1, 0], False, "departs"),
        ([np.inf, 1e-5], [0, 1], False, "departs"),
        ([np.nan, 1e-5], [0, 1], False, "departs"),
    ],
)
def test_what_departs(differences: list[float], may_differ: list[int], is_row_wrong: bool, said: str) -> None:
    assert verdict(np.array(differences), np.array(may_differ), 1e-3, is_row_wrong) == said


@pytest.mark.parametrize("spec", [CacheSpec(codec=uniform("int8")), CacheSpec(retention=WINDOW)])
def test_lossy_modes_depart_as_asked(spec: CacheSpec) -> None:
    session, seq_id = started(spec)
    found = checked(session, CheckParity(seq_id))
    assert found.verdict == "lossy, as asked"
    assert found.layer == (0 if not spec.codec.is_exact else 1), "rows of the first layer depend on nothing dropped"
    session.forget_history()
    with pytest.raises(InputError, match="step first"):
        checked(session, CheckParity(seq_id))


@pytest.mark.parametrize("name", ["dynamic", "paged", "static", "allocated"])
def test_two_lossless_modes_are_within_rounding(name: str) -> None:
    session, seq_id = started()
    before = state_of(session, seq_id)
    found = checked(session, CheckParity(seq_id, PRESETS[name].spec))
    assert_same(state_of(session, seq_id), before)
    assert found.verdict == "within rounding"
    assert found.layer is None
    assert found.steps.tolist() == list(range(8)) or name == "allocated"
    assert found.positions.tolist()[-6:] == [39, 40, 41, 42, 43, 44]
    assert not found.may_differ.any()


def test_a_lossless_cache_against_a_lossy_one_differs_as_asked() -> None:
    session, seq_id = started()
    found = checked(session, CheckParity(seq_id, CacheSpec(codec=uniform("int8"))))
    assert found.verdict == "lossy, as asked"
    assert found.may_differ.all()
    assert (found.layer, found.tensor, found.position) == (0, "keys", 0)
    dropped = checked(session, CheckParity(seq_id, CacheSpec(retention=WINDOW)))
    assert dropped.verdict == "lossy, as asked"
    assert dropped.layer == 1, (
        "the rows of the first layer do not depend on what was dropped; dropped rows are no error"
    )


def test_the_same_lossy_mode_on_both_sides_agrees() -> None:
    session, seq_id = started(CacheSpec(retention=WINDOW))
    found = checked(session, CheckParity(seq_id, CacheSpec(retention=WINDOW)))
    assert found.verdict == "within rounding"
    assert found.layer is None


def test_steps_of_an_earlier_lossy_mode_differ_as_asked() -> None:
    session, seq_id = started(CacheSpec(codec=uniform("int8")))
    session.set_cache(CacheSpec())
    session.step()
    found = checked(session, CheckParity(seq_id))
    assert found.may_differ.tolist() == [1] * 8 + [0]
    assert found.verdict == "lossy, as asked"
    assert float(found.max_abs_logit_diff[-1]) <= found.tolerance
    assert found.layer is None, "the rows were computed anew"


def test_a_wrong_row_of_an_exact_mode_departs_though_earlier_steps_were_lossy() -> None:
    """The growing cache was filled anew, so its rows are judged, even before it has made a step that differs."""
    session, seq_id = started(CacheSpec(codec=uniform("int8")))
    session.set_cache(CacheSpec())
    session.step()
    rows = session.cache_of(seq_id).rows(1)
    assert rows is not None
    with torch.inference_mode():
        rows.keys[0, :, 9] = 7.0
    found = checked(session, CheckParity(seq_id))
    assert found.may_differ.tolist() == [1] * 8 + [0]
    assert float(found.max_abs_logit_diff[-1]) <= found.tolerance < float(found.max_abs_logit_diff[:-1].max())
    assert (found.layer, found.tensor, found.position) == (1, "keys", 9)
    assert found.verdict == "departs"


def test_a_lossless_step_that_differs_departs_beside_lossy_ones() -> None:
    """Steps of int8 differ as asked; one of the growing cache that differs as well does not."""
    session, seq_id = started(CacheSpec(codec=uniform("int8")))
    session.set_cache(CacheSpec())
    rows = session.cache_of(seq_id).rows(0)
    assert rows is not None
    with torch.inference_mode():
        rows.values[0, 0, 5] += 0.5
    session.step()
    found = checked(session, CheckParity(seq_id))
    assert found.may_differ.tolist() == [1] * 8 + [0]
    assert float(found.max_abs_logit_diff[:8].max()) > found.tolerance < float(found.max_abs_logit_diff[8])
    assert found.verdict == "departs"


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"values": 3, "keys": 9}, ("values", 3)),
        ({"values": 9, "keys": 3}, ("keys", 3)),
        ({"values": 6, "keys": 6}, ("keys", 6)),
    ],
)
def test_the_first_wrong_row_of_a_layer_is_told_whichever_tensor_it_is_in(
    wrong: dict[str, int], expected: tuple[str, int]
) -> None:
    session, seq_id = started()
    rows = session.cache_of(seq_id).rows(0)
    assert rows is not None
    with torch.inference_mode():
        for name, position in wrong.items():
            getattr(rows, name)[0, 1, position] += 0.5
    session.step()
    found = checked(session, CheckParity(seq_id))
    assert (found.layer, found.tensor, found.position) == (0, *expected)


def test_parity_against_another_mode_can_be_given_up_or_refused() -> None:
    session, seq_id = started()
    before = state_of(session, seq_id)
    pieces = live_parity(session, CheckParity(seq_id, PRESETS["paged"].spec))
    assert [next(pieces), next(pieces)] == [(0, 45), (16, 45)]
    pieces.close()  # type: ignore[attr-defined]
    assert_same(state_of(session, seq_id), before)
    with pytest.raises(InputError, match="holds 20"):
        checked(session, CheckParity(seq_id, CacheSpec("static", max_length=20)))
    with pytest.raises(InputError, match="full after 42 of 45"):
        checked(session, CheckParity(seq_id, CacheSpec("static", max_length=42)))


def edited_with_rows_of_a_step() -> tuple[Session, int]:
    """With an edit that cannot be made again elsewhere: its numbers are those of another step's rows."""
    session, seq_id = started()
    make_edit(session, Overwrite(seq_id, Rows(42, 43), from_step=session.last_step, shift=-20))
    session.step()
    return session, seq_id


def test_edited_rows_differ_as_asked_and_those_before_them_do_not() -> None:
    session, seq_id = edited_with_rows_of_a_step()
    found = checked(session, CheckParity(seq_id))
    assert (found.verdict, found.is_edited) == ("edited by hand", False)
    assert found.position == 42
    assert found.may_differ.tolist() == [int(position >= 42) for position in found.positions]
    assert not found.may_differ.all()


@pytest.mark.parametrize("edit", [Zero(0, Rows(42, 43)), Mask(0, Rows(3, 9)), ReplaceTokens(0, 20, (9, 8))])
@pytest.mark.parametrize("against", [None, PRESETS["paged"].spec])
def test_steps_behind_an_edit_are_compared_with_forwards_that_have_the_edit(edit: Edit, against: CacheSpec) -> None:
    session, seq_id = started()
    before = state_of(session, seq_id)
    checked(session, CheckParity(seq_id, against))
    assert_same(state_of(session, seq_id), before)
    added, _ = make_edit(session, edit)
    session.step()
    found = checked(session, CheckParity(seq_id, against))
    assert (found.verdict, found.is_edited, found.position) == ("within rounding", True, None)
    assert {added.node.step, session.last_step} <= {*found.steps.tolist()}
    assert not found.may_differ.any()


def test_a_wrong_row_behind_an_edit_is_found() -> None:
    session, seq_id = started()
    make_edit(session, Zero(seq_id, Rows(42, 43)))
    session.step()
    rows = session.cache_of(seq_id).rows(0)
    assert rows is not None
    with torch.inference_mode():
        rows.values[0, 1, 44] += 0.5
    found = checked(session, CheckParity(seq_id))
    assert (found.verdict, found.layer, found.tensor, found.position) == ("departs", 0, "values", 44)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (tuned(PRESETS["h2o"].spec, budget=400), "within rounding"),  # the rule has dropped nothing: it is no cause
        (CacheSpec(codec=uniform("int8")), "lossy, as asked"),
        (CacheSpec(retention=WINDOW), "lossy, as asked"),
    ],
)
def test_an_edit_in_a_lossy_mode_is_no_cause_where_both_runs_have_it(spec: CacheSpec, said: str) -> None:
    session, seq_id = started(spec)
    make_edit(session, Zero(seq_id, Rows(42, 43)))
    session.step()
    assert checked(session, CheckParity(seq_id)).verdict == said


@pytest.mark.parametrize(("how", "said"), [("re-prefill", "within rounding"), ("overwrite", "within rounding")])
def test_steps_of_tokens_that_were_replaced_since_are_not_compared(how: Replacement, said: str) -> None:
    """Three tokens stand where two did: the steps before the place are of this text, those behind it of another."""
    session, seq_id = started()
    new_ids = prompt_ids(3 if how == "re-prefill" else 2, seed=5)
    make_edit(session, ReplaceTokens(seq_id, 20, new_ids, how, 2))
    count = session.sequence(seq_id).num_tokens
    session.step()
    found = checked(session, CheckParity(seq_id))
    assert (found.verdict, found.positions.tolist()) == (said, [15, count - 1, count])
    assert session.history.step_at(seq_id, 42) is None


def test_rows_that_a_failed_step_cost_are_there_again_before_they_are_compared() -> None:
    """A window that has moved on cannot be cropped."""
    session, seq_id = started(PRESETS["dynamic"].spec, architecture="mistral")
    assert isinstance(failing_at_chosen(session), MemoryError)
    assert session.live.get(seq_id).is_stale
    assert checked(session, CheckParity(seq_id)).verdict == "within rounding"


def failing_at_chosen(session: Session) -> BaseException | None:
    def reached(event: PhaseReached) -> None:
        if isinstance(event.phase, Chosen):
            raise MemoryError

    try:
        session.step(reached=reached)
    except MemoryError as error:
        return error
    return None


def test_as_far_off_as_rounding_may_be_is_within_it_and_a_number_that_is_none_is_not() -> None:
    exact = np.zeros(2, np.int64)
    assert verdict(np.array([0.25, 0.0]), exact, 0.25) == "within rounding"
    assert verdict(np.array([0.0, np.nextafter(0.25, 1)]), exact, 0.25) == "departs"
    assert verdict(np.array([0.0, np.nan]), exact, 0.25) == "departs"


def test_what_the_rows_of_another_text_gave_is_not_compared() -> None:
    """A prompt kept the first rows of a sequence that had gone on otherwise."""
    session = Session(model_of("llama"), CacheSpec())
    ids = prompt_ids(20)
    session.submit(Prompt(token_ids=ids, sampling=SamplingParams(bias=LogitBias(banned=(0, 1, 2)))))
    for _ in range(6):
        session.step()
    child = continue_with(session, 0, Prompt(token_ids=(*ids[:12], *prompt_ids(10, seed=9))))
    for _ in range(5):
        session.step()
    report = checked(session, CheckParity(child))
    assert (report.verdict, report.positions.tolist()) == ("within rounding", [21, 22, 23, 24, 25])
