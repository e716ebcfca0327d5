"""Loads a model: safetensors only, no remote code, no network unless asked."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from msgspec import structs
from safetensors import safe_open
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.overrides import TorchFunctionMode
from transformers import (
    BatchEncoding,
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.cache_utils import Cache
from transformers.utils import logging as transformers_logging

from engine.cache.layers.build import cache_argument
from engine.cache.layers.cross import SourceCache
from engine.cache.rotation import ModelRotation, rotates_at_any_position, rotation_of
from engine.chat.template import template_names
from engine.errors import Cancelled, InputError, Report, clear_frames, first_line, is_out_of_memory
from engine.geometry.dimensions import CacheGeometry
from engine.model.attention import NAME as ATTENTION
from engine.model.attention import register, right_aligned
from engine.model.batch import Batch, HiddenRows, Result, head_of
from engine.model.device import Placement
from engine.model.forecast import check_fits, out_of_memory_text, placement_of
from engine.model.forward import (
    arguments_of,
    attentions_of,
    has_encoder,
    layers_by_index,
    number_attention,
    start_id,
    watched,
)
from engine.model.runners.pages import PagedAttention, why_not_in_place
from engine.model.runners.runners import Runners
from engine.model.source import ModelSource, find_source, fingerprint, text_fingerprint
from engine.model.tokenizer import find_tokenizer, folder_beside_config, special_ids
from engine.model.trial_forwards import decoder_of, is_head_apart, runs_through_registry
from engine.model.weights import held_bytes, layer_devices
from engine.predict.capacity import context_length, num_source
from engine.spec.model import WEIGHTS, ModelSpec, usual_threads
from engine.wire.status import ModelInfo


def _at_once(_: int, work: Callable[[], BatchEncoding]) -> BatchEncoding:
    return work()


@dataclass(eq=False)
class LoadedModel:
    """A model ready to step, its tokenizer if it has one, and what is known about it.

    `has_head_apart`: logits can be computed from the last layer's output alone, later or of some rows. `heartbeat` is
    called between the layers of a forward that has no `check`, so that whoever waits for it sees that it progresses.
    `tokenising` is called with the length of a text and the function that tokenises it.
    """

    info: ModelInfo
    model: Any
    tokenizer: PreTrainedTokenizerBase | None
    device: torch.device
    native_attention: str
    cache_argument: str
    keeps_logits: bool
    takes_positions: bool
    has_head_apart: bool
    runners: Runners
    heartbeat: Callable[[], None] | None = None
    tokenising: Callable[[int, Callable[[], BatchEncoding]], BatchEncoding] = _at_once

    def tokenize(self, text: str, **options: bool) -> BatchEncoding:
        """What the tokenizer makes of a text. Only for a model that has one."""
        assert self.tokenizer is not None
        return self.tokenising(len(text), partial(self.tokenizer, text, **options))

    @property
    def devices(self) -> list[torch.device]:
        """Every device that holds a part of the model."""
        return [torch.device(name) for name in dict.fromkeys(self.info.layer_devices)] or [self.device]

    @cached_property
    def max_length(self) -> int:
        return context_length(self.info.geometry)

    @cached_property
    def vocab_size(self) -> int:
        return self.info.geometry.vocab_size or int(self.model.config.get_text_config().vocab_size)

    @cached_property
    def start_id(self) -> int | None:
        """The token with which the decoder starts; None without an encoder."""
        return start_id(self.model) if has_encoder(self.model) else None

    @cached_property
    def rotation(self) -> ModelRotation | str:
        """How the model turns its keys by their positions, or why they cannot be turned back; two small forwards."""
        return rotation_of(self.model, tuple(layer.kind for layer in self.info.geometry.layers))

    def apply_generation_rules(
        self, logits: torch.Tensor, computed: Sequence[int], num_prompt_tokens: int, max_new_tokens: int | None
    ) -> torch.Tensor | None:
        """Logits `[V]` of the token after the tokens `computed`, processed by the generation config of an
        encoder-decoder; None where that asks for nothing, and without an encoder."""
        if not self.info.geometry.has_encoder:
            return None
        count, longest = num_source(self.info.geometry, num_prompt_tokens), self.max_length
        longest = longest if max_new_tokens is None else min(longest, 1 + max_new_tokens)
        return apply_generation_rules(self.model.generation_config, logits, computed[:count], computed[count:], longest)

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """Token ids that end a text."""
        generation = getattr(self.model, "generation_config", None)
        ends = getattr(generation, "eos_token_id", None) or self.model.config.get_text_config().eos_token_id
        return frozenset(i for i in (ends if isinstance(ends, list | tuple) else [ends]) if isinstance(i, int))

    @torch.inference_mode()
    def forward(self, batch: Batch) -> Result:
        """Compute the ids of a batch. Rows are hidden only from models whose attention is ours; without a `check` of
        its own the batch gets the `heartbeat`."""
        if batch.check is None and self.heartbeat is not None:
            batch = replace(batch, check=self.heartbeat)
        if batch.hidden:
            batch = replace(batch, hidden=self._with_sharing_layers(batch.hidden))
        return self.runners.run(batch, self._through_transformers)

    def _through_transformers(self, batch: Batch) -> torch.Tensor:
        """The newest logits `[B, 1, V]` from transformers' own forward; of an encoder-decoder, the decoder's."""
        cache, surprisal = batch.cache, batch.surprisal
        if isinstance(cache, SourceCache):
            named, surprisal = arguments_of(self.model, batch), None
        else:
            named = {"input_ids": batch.ids, "use_cache": cache is not None}
            if cache is not None:
                named[self.cache_argument] = cache
        padding, positions = batch.padding, batch.positions
        if batch.lengths is not None and min(batch.lengths) < max(batch.lengths):
            padding, positions = right_aligned(batch.lengths, batch.ids.device)
        if padding is not None:
            named["attention_mask"] = padding
            if self.takes_positions:
                named["position_ids"] = positions
        reads_hidden = surprisal is not None and self.has_head_apart
        if self.keeps_logits and (surprisal is None or reads_hidden):
            named["logits_to_keep"] = 1
        if self.info.captures_attention:
            named["batch"] = batch
        elif batch.probe is not None and self.info.geometry.attention_layers:
            named["output_attentions"] = True
        heartbeat = None if self.info.captures_attention or batch.check is None else self.heartbeat
        is_watched = heartbeat is not None or batch.on_layer is not None or reads_hidden
        hooks = watched(self.model, heartbeat, batch.on_layer, reads_hidden) if is_watched else None
        with hooks or nullcontext([]) as seen:  # torch.compile takes no hooks
            output = self.model(**named)
        if surprisal is not None and not reads_hidden:
            surprisal.read_logits(output.logits)
        elif surprisal is not None:
            surprisal.read(seen[0].last_hidden_state, head_of(self.model, seen[0]), batch.check)
        if "output_attentions" in named and batch.probe is not None:
            for layer, row in zip(self.info.geometry.attention_layers, attentions_of(output), strict=False):
                batch.probe.weights[layer.index] = row[:, :, -1].float()
        return output.logits[:, -1:]  # type: ignore[no-any-return]

    def _with_sharing_layers(self, hidden: HiddenRows) -> HiddenRows:
        """The hidden rows, also for layers that read the rows of another layer."""
        layers = self.info.geometry.layers
        sharing = {layer.index: layer.shares_with for layer in layers if layer.shares_with in hidden}
        return {**hidden, **{index: hidden[of] for index, of in sharing.items() if of is not None}}

    @torch.inference_mode()
    def reference_logits(
        self, ids: torch.Tensor, record: Cache | None = None, positions: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Logits `[T, V]`, or `[n, V]` at n `positions`, of one forward without any cache, through the model's own
        attention. If an empty cache `record` is given, it gets the K and V of that forward, and nothing is read from
        it. With an encoder it is required: it knows where the source ends."""
        arguments: dict[str, Any] = {"use_cache": record is not None}
        if record is not None:
            arguments[self.cache_argument] = record
        rows: Any = slice(None)
        if positions is not None:  # the decoder's logits begin after the source
            source = record.num_source if isinstance(record, SourceCache) else 0
            rows = torch.tensor(positions, device=ids.device) - source
        if self.keeps_logits and positions is not None:  # logits of all tokens of a long text would take gigabytes
            arguments["logits_to_keep"], rows = rows, slice(None)
        self.model.set_attn_implementation(self.native_attention)
        try:
            with watched(self.model, self.heartbeat):
                if isinstance(record, SourceCache):
                    arguments |= arguments_of(self.model, Batch(ids, record))
                tokens = None if isinstance(record, SourceCache) else ids
                return self.model(tokens, **arguments).logits[0][rows]  # type: ignore[no-any-return]
        finally:
            if self.info.captures_attention:
                self.model.set_attn_implementation(ATTENTION)


def load(spec: ModelSpec, progress: Report | None = None, *, freed_bytes: int = 0) -> LoadedModel:
    """Load a model; raises `InputError`, and then nothing remains of the failed attempt. `freed_bytes` are those
    of another one that is loaded, and could make room."""
    register()
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    report = progress or (lambda label, done, total: None)
    source, num_threads = find_source(spec, report), torch.get_num_threads()
    # before anything is computed: for the threads of a core that builds a window meanwhile, each product would wait
    torch.set_num_threads(spec.num_threads or usual_threads())
    try:
        with LoadProgress(report).reporting() as progress_now:
            return _loaded(spec, source, progress_now, freed_bytes)
    except Exception as error:
        torch.set_num_threads(num_threads)
        if not is_out_of_memory(error):
            raise
        clear_frames(error)
    # outside the handler: the error may hold tensors of the partly loaded model
    raise InputError(out_of_memory_text(spec, source, freed_bytes))


def _loaded(spec: ModelSpec, source: ModelSource, progress: LoadProgress, freed_bytes: int) -> LoadedModel:
    geometry = CacheGeometry.from_config(source.config)
    placement = placement_of(spec, source)
    check_fits(source, placement, freed_bytes)
    progress.begin(source.label, num_tensors(source.folder))
    model, placement = build_model(source, placement)
    progress.begin(f"Trying {source.name} on a few tokens")
    native = model.config._attn_implementation
    number_attention(model, geometry.num_blocks)
    captures = bool(geometry.attention_layers) and runs_through_registry(model)
    if geometry.attention_layers and not captures:
        model = with_eager_attention(model, source, placement).eval()
    tokenizer, tokenizer_note = find_tokenizer(spec, source)
    signature = inspect.signature(model.forward).parameters
    info = describe(spec, source, model, tokenizer, geometry, captures, placement, tokenizer_note)
    decoder = decoder_of(model, geometry) if captures and not info.layer_devices else None
    why_not = why_not_in_place(geometry, captures, info.layer_devices)
    runners = Runners(decoder, spec.runner, PagedAttention(why_not, placement.device, spec.paged_attention))
    info = structs.replace(info, note="; ".join(filter(None, (info.note, runners.note))))
    return LoadedModel(
        info,
        model,
        tokenizer,
        placement.device,
        native if captures else model.config._attn_implementation,
        cache_argument(model),
        "logits_to_keep" in signature,
        "position_ids" in signature,
        decoder is not None or is_head_apart(model),
        runners,
    )


def build_model(source: ModelSource, placement: Placement) -> tuple[Any, Placement]:
    """The model and its placement. If weights cannot be quantised as asked, the next best format is tried."""
    while True:
        try:
            return source.build(placement, None).eval(), placement
        except InputError as error:
            if placement.weights == "stored":
                raise
            placement = placement.with_next_best_weights(first_line(error))


def with_eager_attention(model: Any, source: ModelSource, placement: Placement) -> Any:
    """The model with its own eager attention, which returns weights. Some families can only be set so when they are
    built."""
    model.set_attn_implementation("eager")
    return model if model.config._attn_implementation == "eager" else source.build(placement, "eager")


def describe(
    spec: ModelSpec,
    source: ModelSource,
    model: Any,
    tokenizer: PreTrainedTokenizerBase | None,
    geometry: CacheGeometry,
    captures: bool,
    placement: Placement,
    tokenizer_note: str,
) -> ModelInfo:
    """What is known about a loaded model; the note says what a user might not expect."""
    notes = []
    if source.folder is None:
        notes.append("random weights: only the shape is real")
    if placement.weights != "stored":
        notes.append(f"{placement.weights} weights: the logits are not those of the model as it is stored")
    if geometry.has_encoder:
        notes.append("an encoder reads the prompt once, and cross layers keep what it made of it")
    if not geometry.attention_layers:
        notes.append("this architecture keeps a recurrent state and no K and V")
    elif not captures:
        notes.append("this architecture has attention code of its own, which is read through output_attentions")
    notes += [tokenizer_note] if tokenizer_note else []
    notes += placement.notes
    return ModelInfo(
        name=source.name + WEIGHTS[placement.weights].mark,
        source=spec.source,
        architecture=type(model).__name__,
        geometry=geometry,
        dtype=placement.dtype_name,
        device=str(placement.device),
        num_threads=torch.get_num_threads(),
        num_parameters=sum(p.numel() for p in model.parameters()),
        weight_bytes=sum(map(held_bytes, model.parameters())),
        random_weights=source.folder is None,
        has_tokenizer=tokenizer is not None,
        captures_attention=captures,
        fingerprint=fingerprint(source, placement.weights),
        note="; ".join(notes),
        goes_beyond_context=captures and rotates_at_any_position(model),
        templates=template_names(tokenizer),
        special_ids=special_ids(tokenizer),
        weights=placement.weights,
        why_device=placement.why_device,
        layer_devices=layer_devices(layers_by_index(model)),
        text_fingerprint=text_fingerprint(source.folder or folder_beside_config(spec)) if tokenizer is not None else "",
    )


# ---- progress, reported while other libraries load ------------------------------------------------------------------


REPORT_EVERY_S = 0.02


class LoadProgress(TorchFunctionMode):
    """Reports how many tensors of a model folder are loaded. It is called at every torch operation in this thread,
    whichever library runs it.

    `report` may raise `Cancelled`. That is then raised at every operation until loading ends, because a library may
    catch the first one as an error of a tensor.
    """

    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report
        self._label = ""
        self._done = 0
        self._total: int | None = None
        self._reported_at = 0.0
        self._cancelled: Cancelled | None = None

    def begin(self, label: str, total: int | None = None) -> None:
        """Start a phase named `label` of `total` tensors (None: unknown)."""
        self._label, self._done, self._total, self._reported_at = label, 0, total, 0.0
        self._report_now()

    @contextmanager
    def reporting(self) -> Iterator[LoadProgress]:
        """Report while this context is open. If `report` has raised `Cancelled`, the context ends with it, whatever a
        library made of it."""
        hook = register_module_parameter_registration_hook(self._on_parameter)
        try:
            with self:
                yield self
        except Exception:
            self._check_uncancelled()
            raise
        finally:
            hook.remove()
        self._check_uncancelled()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._report_now()
        return func(*args, **(kwargs or {}))

    def _on_parameter(self, module: torch.nn.Module, name: str, parameter: torch.nn.Parameter | None) -> None:
        """Count a parameter that gets its numbers: modules are first built on the meta device, and each parameter is
        set once loaded."""
        if parameter is not None and parameter.device.type != "meta":
            self._done += 1

    def _report_now(self) -> None:
        self._check_uncancelled()
        if self._label and time.monotonic() - self._reported_at > REPORT_EVERY_S:
            self._reported_at = time.monotonic()
            done = self._done if self._total is None else min(self._done, self._total)
            try:
                self._report(self._label, done, self._total)
            except Cancelled as cancelled:
                self._cancelled = cancelled
                raise

    def _check_uncancelled(self) -> None:
        if self._cancelled is not None:
            raise Cancelled from None


def num_tensors(folder: Path | None) -> int | None:
    """Number of tensors in all weight files of a folder; None without a folder."""
    if folder is None:
        return None
    total = 0
    for file in folder.glob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            total += len(weights.keys())
    return total


# ---- logits processors, where the model's generation config asks for them -------------------------------------------


def apply_generation_rules(
    generation: Any, logits: torch.Tensor, source: Sequence[int], decoded: Sequence[int], max_length: int
) -> torch.Tensor | None:
    """Logits `[V]` of the token after `decoded`, processed as `generate` does for a text of at most `max_length`
    tokens; None where the generation config asks for nothing."""
    read, ids = (torch.tensor([list(part)], device=logits.device) for part in (source, decoded))
    rules = LogitsProcessorList(processors(generation, read, max_length))
    return rules(ids, logits[None].float().clone())[0] if rules else None


def processors(generation: Any, source: torch.Tensor, max_length: int) -> list[LogitsProcessor]:
    """The processors that a generation config asks for, given the ids `[1, S]` that the encoder read."""
    device, found = source.device, list[LogitsProcessor]()

    def asked(name: str, nothing: object = 0) -> Any:
        value = getattr(generation, name, None)
        return None if value == nothing else value

    ends = asked("eos_token_id")
    end = None if ends is None else torch.tensor([ends] if isinstance(ends, int) else list(ends), device=device)
    if (penalty := asked("encoder_repetition_penalty", 1.0)) is not None:
        found.append(EncoderRepetitionPenaltyLogitsProcessor(penalty, source))
    if (penalty := asked("repetition_penalty", 1.0)) is not None:
        found.append(RepetitionPenaltyLogitsProcessor(penalty))
    if (size := asked("no_repeat_ngram_size")) is not None:
        found.append(NoRepeatNGramLogitsProcessor(size))
    if (size := asked("encoder_no_repeat_ngram_size")) is not None:
        found.append(EncoderNoRepeatNGramLogitsProcessor(size, source))
    if (words := asked("bad_words_ids", [])) is not None:
        found.append(NoBadWordsLogitsProcessor(words, end))
    if (length := asked("min_length")) is not None and end is not None:
        found.append(MinLengthLogitsProcessor(length, end, device=str(device)))
    if (length := asked("min_new_tokens")) is not None and end is not None:
        found.append(MinNewTokensLengthLogitsProcessor(1, length, end, device=str(device)))
    if (first := asked("forced_bos_token_id", ())) is not None:
        found.append(ForcedBOSTokenLogitsProcessor(first))
    if (last := asked("forced_eos_token_id", ())) is not None:
        found.append(ForcedEOSTokenLogitsProcessor(max_length, last, device=str(device)))
    if (banned := asked("suppress_tokens", [])) is not None:
        found.append(SuppressTokensLogitsProcessor(banned, device=str(device)))
    return found
