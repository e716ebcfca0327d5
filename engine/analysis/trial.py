"""Repeats the newest forward pass of a session on a copy of its cache. The live cache is only read."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch

from engine.cache.attention_probe import Probe
from engine.cache.contract import HeldRows
from engine.cache.sequence_cache import SequenceCache
from engine.errors import InputError
from engine.geometry.dimensions import CacheGeometry
from engine.model.batch import Batch
from engine.model.loader import LoadedModel
from engine.session.mode import CacheMode
from engine.session.rerun import Progress, RowsOfLayers, fill
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.codec import CodecSpec, LayerCoding


@dataclass(frozen=True, eq=False)
class Trial:
    """The state before the newest token of a sequence was computed: its tokens, and the rows of all layers without that
    of the newest token.

    `are_exact`: these rows are what an exact cache would hold. `is_rebuilt`: they were computed from the tokens, since
    the live cache does not hold them all. `attention` `[H, S]` by layer is that of the step before, if it was recorded;
    it stands for the attention that a rule would have seen.
    """

    model: LoadedModel
    seq_id: int
    rows: RowsOfLayers
    token_ids: list[int]
    num_prompt_tokens: int
    are_exact: bool
    is_rebuilt: bool
    attention: dict[int, torch.Tensor]

    @property
    def token_id(self) -> int:
        """The newest token."""
        return self.token_ids[-1]

    @property
    def num_tokens(self) -> int:
        return len(self.token_ids)

    @property
    def prompt_end(self) -> int:
        """The number of tokens that a mode which evicts or codes at the prompt's end takes as the prompt. If only the
        prompt was computed, its last token counts as the first one after it, since otherwise nothing would be evicted
        before it."""
        return min(self.num_prompt_tokens, self.num_tokens - 1)


def trial_of(session: Session, seq_id: int) -> Generator[Progress, None, Trial]:
    """Prepare the repetition of a sequence's newest forward pass. Rows that the cache does not hold are rebuilt from
    the tokens, by one prefill beside it; meanwhile yields progress (tokens computed, of how many)."""
    sequence, cache = session.sequence(seq_id), session.cache_of(seq_id)
    token_ids = sequence.token_ids[: sequence.num_tokens]
    if len(token_ids) < 2:
        raise InputError("There is nothing to try yet: a sequence needs two tokens in its cache.")
    geometry = session.model.info.geometry
    if geometry.has_encoder:
        raise InputError(
            "The rows of an encoder-decoder are not tried as others here: sweep its modes, or compare two."
        )
    if any(layer.kind == "linear" or layer.state_elements for layer in geometry.layers):
        raise InputError("A recurrent state cannot be tried with other rows: this needs a model of attention alone.")
    lost = cache.num_tokens != len(token_ids) or not holds_all(cache, geometry)
    are_exact = lost or cache.spec.is_append_only or cache.spec.recomputes
    rows = (
        (yield from session.reruns.exact_rows(token_ids[:-1]))
        if lost
        else held_before(cache, geometry, len(token_ids) - 1)
    )
    attention = {} if lost else session.history.attention_with(seq_id, len(token_ids) - 1)
    if any(bool(row.isnan().any()) for row in attention.values()):
        attention = {}  # the mode had evicted rows then
    return Trial(session.model, seq_id, rows, token_ids, sequence.num_prompt_tokens, are_exact, lost, attention)


def holds_all(cache: SequenceCache, geometry: CacheGeometry) -> bool:
    """Whether a cache holds every row of every layer."""
    held = (cache.rows(layer.index) for layer in geometry.attention_layers)
    return all(rows is not None and not rows.first and rows.positions is None for rows in held)


def held_before(cache: SequenceCache, geometry: CacheGeometry, count: int) -> RowsOfLayers:
    """The first `count` rows of every layer."""
    found = ((layer.index, cache.rows(layer.index)) for layer in geometry.attention_layers)
    return {i: HeldRows(held.keys[:, :, :count], held.values[:, :, :count], 0) for i, held in found if held is not None}


@torch.inference_mode()
def exact_logits(trial: Trial, probe: Probe | None = None) -> torch.Tensor:
    """Next-token logits `[V]` with the rows as they are, with which every alternative is compared."""
    cache = CacheMode(trial.model, CacheSpec()).new_cache(trial.seq_id, trial.prompt_end)
    fill(cache, trial.rows, 0, trial.num_tokens - 1)
    cache.num_tokens = trial.num_tokens - 1
    return newest_logits(trial, cache, probe)


def check_can_be_tried(trial: Trial, spec: CacheSpec) -> None:
    """Raise `InputError` for a mode that this model cannot have, or that changes no rows."""
    if spec.layout != "growing":
        raise InputError("Only codecs and eviction rules can be tried on the frozen cache: other layouts are exact.")
    spec.codec.check(trial.model.info.geometry)
    spec.retention.check(trial.model.info.geometry, trial.model.info.captures_attention)


@torch.inference_mode()
def scratch_cache(trial: Trial, spec: CacheSpec) -> SequenceCache:
    """A scratch cache of another codec or rule, filled with the exact rows and compressed as if the mode were changed
    now. A rule that reads attention ranks by that of the step before."""
    check_can_be_tried(trial, spec)
    cache = CacheMode(trial.model, spec).new_cache(trial.seq_id, trial.prompt_end)
    count = trial.num_tokens - 1
    end = trial.prompt_end if spec.retention.only_at_prompt_end else count
    fill(cache, trial.rows, 0, end)
    cache.num_tokens = end
    cache.compress(end, end, probe_of_attention(trial, cache, end))
    fill(cache, trial.rows, end, count)
    cache.num_tokens = count
    return cache


def probe_of_attention(trial: Trial, cache: SequenceCache, count: int) -> Probe | None:
    """The attention to the first `count` rows for a rule; the recorded step before stands for all that the rule would
    have seen. None if the rule reads no attention."""
    if not cache.spec.retention.needs_weights:
        return None
    if not trial.attention:
        raise InputError("This rule reads attention and none was recorded: step once, then try it.")
    probe = Probe()
    for index, row in trial.attention.items():
        weights = row[None, :, :count]
        probe.weights[index], probe.sums[index], probe.latest[index] = weights, weights.clone(), weights[:, :, None]
    return probe


@torch.inference_mode()
def newest_logits(trial: Trial, cache: SequenceCache, probe: Probe | None = None) -> torch.Tensor:
    """Next-token logits `[V]` after computing the newest token with a scratch cache."""
    ids = torch.tensor([[trial.token_id]], device=trial.model.device)
    return trial.model.forward(Batch(ids, cache.live, probe)).logits[0, -1].float()


def only_layer(codec: CodecSpec, layer: int) -> CodecSpec:
    """A codec that codes one layer only."""
    keys, values = codec.at(layer)
    return CodecSpec(layers=(LayerCoding(layer, keys, values),))
