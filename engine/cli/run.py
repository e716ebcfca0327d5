"""`run`: generates on the command line, as JSON lines or as plain text; with edits, breakpoints and an export."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Iterator
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from msgspec import structs

from engine.cli.arguments import (
    add_cache_arguments,
    add_model_arguments,
    add_prompt_arguments,
    announce_compiling,
    model_spec,
    prompts_of,
    spec_of,
    token_ids,
)
from engine.cli.config import geometry_on_disk
from engine.cli.output import add_command, print_json, printable, printable_line
from engine.client.inline import InlineClient
from engine.counted import counted
from engine.errors import InputError
from engine.files.atomic import writable_target, write_text
from engine.predict.capacity import static_capacity
from engine.saved.document import write_session
from engine.saved.session import SessionRecorder
from engine.serving.events import to_vllm_events
from engine.spec.cache import NAMES, CacheSpec, cache_label, cache_name, fitted
from engine.spec.condition import HOW_TO_COMBINE, Breakpoint, help_lines, parsed
from engine.spec.edit import (
    EXAMPLE,
    FORMS,
    AddNoise,
    Drop,
    Mask,
    Overwrite,
    Pin,
    Scale,
    Zero,
    parse_edit,
    parse_numbers,
)
from engine.spec.model import CAPTURES, DEFAULT_CAPTURE, ModelSpec, check_capture
from engine.spec.sampling import NEWEST_DRAWS, Chat, Prompt, SamplingParams
from engine.wire import commands
from engine.wire.breakpoints import BreakpointHit, SetBreakpoints
from engine.wire.commands import (
    Continue,
    Force,
    ForceText,
    LoadModel,
    MakeEdit,
    OpenSnapshot,
    SetCache,
    SetCapture,
    SetSampling,
    StopSequence,
    SubmitPrompt,
)
from engine.wire.events import StateChanged, Submitted
from engine.wire.exporting import Export, ExportKind
from engine.wire.measurements import EditMeasured
from engine.wire.message import Command, Event
from engine.wire.records import SequenceStep, StepRecord, TokensForced, has_chosen

if TYPE_CHECKING:
    from engine.model.loader import LoadedModel
    from engine.session.session import Session
    from engine.wire.pages import PageEvent
    from engine.wire.status import ModelInfo

_LONGEST = 1 << 40  # stands for the number of tokens while it is unknown


def add_run(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    source = add_prompt_arguments(parser, several=True)
    source.add_argument("--from", dest="snapshot", type=Path, metavar="FILE", help="go on from an exported snapshot")
    parser.add_argument("--cache", metavar="NAME", help=f"one of {NAMES} (growing, or that of the snapshot)")
    add_cache_arguments(parser)
    parser.add_argument("--events", type=Path, metavar="FILE", help="write the page events in vLLM's shape, JSON lines")
    forced = parser.add_mutually_exclusive_group()
    forced.add_argument("--force", metavar="TEXT", help="the first tokens of every answer are those of this text")
    forced.add_argument(
        "--force-ids", type=token_ids, metavar="1,2,3", help="the first tokens of every answer are these"
    )
    parser.add_argument("--seed", type=int, help="of what is drawn (0, or that of the snapshot)")
    parser.add_argument("--temperature", type=float, help="without it the choice is greedy")
    parser.add_argument("--top-k", type=int)
    parser.add_argument("--top-p", type=float)
    parser.add_argument("--min-p", type=float)
    _add_breakpoint_arguments(parser)
    parser.add_argument(
        "--capture", default=DEFAULT_CAPTURE, help=f"how much every step measures: {', '.join(CAPTURES)}"
    )
    _add_edit_argument(parser)
    _add_export_arguments(parser)
    parser.add_argument(
        "--save-session", type=Path, metavar="FILE.json", help="write the session, for replay and people"
    )
    add_command(parser, run_command)


def _add_breakpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that end a run early; the help lists the quantities of conditions."""
    parser.add_argument("--stop", metavar="TEXT", action="append", default=[], help="end where this text is generated")
    parser.add_argument(
        "--stop-when",
        metavar="CONDITION",
        action="append",
        default=[],
        help="a breakpoint: halt after the step where it holds, like 'entropy > 2' (below); repeat it for several",
    )
    lines = "\n".join(f"  {line}" for line in help_lines())
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = f"conditions of a breakpoint (--stop-when):\n{lines}\n  {HOW_TO_COMBINE}".replace("%", "%%")


def _add_edit_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--edit",
        metavar="EDIT",
        action="append",
        default=[],
        help=f"change the cache by hand when the prompt is read, like '{EXAMPLE}' ({', '.join(FORMS)}); repeat it",
    )


def _add_export_arguments(run: argparse.ArgumentParser) -> None:
    """Add the options for the export."""
    run.add_argument("--export", type=Path, metavar="FILE", help="write the cache after the last step, and all steps")
    run.add_argument("--export-as", choices=get_args(ExportKind), default="snapshot", help="for other programs")
    run.add_argument("--export-form", choices=("stored", "rows"), default="stored", help="codes, or decoded numbers")
    run.add_argument("--export-layers", metavar="0-3,7", default="all", help="some layers only")
    run.add_argument("--export-heads", metavar="0,1", default="all", help="some kv heads only")
    run.add_argument("--export-script", action="store_true", help="with a script beside it, in plain transformers")
    run.add_argument("--notes", default="", help="kept inside the snapshot")


def run_command(args: argparse.Namespace) -> int:
    for text in args.stop_when:
        parsed(text)
    _check_edits(args.edit, args.model)
    check_capture(args.capture)
    spec = spec_of(args.cache or "growing", args)
    sampling = _with_sampling_options(SamplingParams(draws=NEWEST_DRAWS), args)
    export_command = _export_of(args)
    prompts, later = prompts_of(args, sampling), (args.user or [])[1:]
    if args.save_session is not None and args.snapshot is not None:
        raise InputError("A run that goes on from a snapshot cannot be repeated without it: export it instead.")
    if args.snapshot is not None and (args.force is not None or args.force_ids is not None):
        raise InputError("An answer of a snapshot has begun: leave --force out, or begin with a --prompt.")
    for target in (args.export, args.events, args.save_session):
        if target is not None:
            writable_target(target)  # an error is raised before the run
    is_kept = args.export is not None or args.save_session is not None
    run = Generation(args, InlineClient(has_whole_records=is_kept or args.json))
    if args.snapshot is None:
        room = (args.steps + 32) * len(args.user or "x") + sum(map(len, args.user or ()))
        run.begin(spec, prompts, room if later else args.steps)
    else:
        run.go_on_from_snapshot(spec)
    run.do(SetCapture(args.capture))
    run.set_breakpoints()
    began = time.perf_counter()
    run.generate()
    for text in later:
        run.take_turn(text)
        run.generate()
    seconds = time.perf_counter() - began
    if export_command is not None:
        first = next(iter(run.generated))
        run.do(structs.replace(export_command, seq_id=first, records=tuple(run.records)))
    if args.save_session is not None:
        write_session(run.recorder.session(), args.save_session)
    if args.events is not None:
        lines = to_vllm_events(run.page_events, run.session.cache.page_size)
        write_text(args.events, "".join(json.dumps(line) + "\n" for line in lines))
    run.print_summary(seconds)
    if why := run.session.model.runners.note:
        print(f"note: {why}", file=sys.stderr)
    return 0


def _with_sampling_options(sampling: SamplingParams, args: argparse.Namespace) -> SamplingParams:
    """The sampling parameters with those that were typed, stop strings included."""
    given = {name: getattr(args, name) for name in ("temperature", "top_k", "top_p", "min_p", "seed")}
    given["stop"] = tuple(args.stop) or None
    return structs.replace(sampling, **{name: value for name, value in given.items() if value is not None})


def _check_edits(texts: list[str], model: str) -> None:
    """Raise `InputError` for an edit that cannot be parsed, or that no sequence of the model can take, as far as its
    config.json and the files that edits name can tell."""
    geometry = geometry_on_disk(model) if texts else None
    for edit in [parse_edit(text, 0, _LONGEST) for text in texts]:
        if isinstance(edit, Zero | Scale | AddNoise | Overwrite | Mask | Pin | Drop):
            edit.check_parameters(_LONGEST)
        if geometry is not None:
            edit.check_model(geometry)
        if isinstance(edit, Overwrite) and edit.from_file is not None:
            from engine.snapshot.read import SnapshotFile  # imported here, since few edits name a file

            SnapshotFile(Path(edit.from_file)).close()


def _export_of(args: argparse.Namespace) -> Export | None:
    """The export command, without records; None if nothing is exported. Bad options raise `InputError` here, before the
    run."""
    if args.export is None:
        plain = {"as": "snapshot", "form": "stored", "layers": "all", "heads": "all", "script": False}
        given = [f"--export-{name}" for name, value in plain.items() if getattr(args, f"export_{name}") != value]
        for option in given + ["--notes"] * bool(args.notes):
            raise InputError(f"{option} says how to export, and nothing is exported: give --export with a file.")
        return None
    return Export(
        args.export,
        0,
        notes=args.notes,
        form=args.export_form,
        layers=parse_numbers(args.export_layers, "layers"),
        kv_heads=parse_numbers(args.export_heads, "heads"),
        kind=args.export_as,
        with_script=args.export_script,
    )


def begin(
    client: InlineClient, model: ModelSpec, cache: CacheSpec, prompts: list[Prompt], steps: int
) -> Iterator[Event]:
    """Load a model, and submit each prompt as a sequence."""
    yield from client.ask(LoadModel(model, cache))
    loaded = client.session.model
    loaded.runners.compiling = announce_compiling
    cache = _with_room_for(loaded, cache, prompts, steps)
    if cache != client.session.cache:
        yield from client.ask(SetCache(cache))
    for prompt in prompts:
        if loaded.info.geometry.has_encoder:  # its generation config may force the last token
            sampling = structs.replace(prompt.sampling or SamplingParams(), max_new_tokens=steps)
            prompt = structs.replace(prompt, sampling=sampling)
        yield from client.ask(SubmitPrompt(prompt, alone=prompt is prompts[0]))


def _with_room_for(model: LoadedModel, spec: CacheSpec, prompts: list[Prompt], steps: int) -> CacheSpec:
    """The spec, with a length for a static cache that has none, if prompt and steps exceed the default length."""
    if spec.form != "static" or spec.max_length is not None:
        return spec
    from engine.session.commands import first_ids

    num_tokens = min(max(len(first_ids(model, prompt)) for prompt in prompts) + steps, model.max_length)
    return spec if num_tokens <= static_capacity(spec, model.max_length) else fitted(spec, num_tokens)


class Generation:
    """A run as its options say: the commands that it consists of, and their events. `generated` has the tokens
    of each sequence by `seq_id`; `records` are those of its steps, after those of the snapshot that it continues;
    `hits` the conditions that ended it."""

    def __init__(self, args: argparse.Namespace, client: InlineClient) -> None:
        self._args, self._client = args, client
        self.generated: dict[int, list[int]] = {}
        self.records: list[StepRecord] = []
        self.page_events: list[PageEvent] = []
        self.hits: list[BreakpointHit] = []
        self.recorder = SessionRecorder()
        self._chat: Chat | None = None
        self._sampling: SamplingParams | None = None
        self._edits: list[str] = args.edit
        self._forced: dict[int, tuple[int, ...]] = {}  # by `seq_id`, the first tokens of an answer

    @property
    def session(self) -> Session:
        return self._client.session

    def do(self, command: Command) -> None:
        """Have a command carried out, and take its events."""
        self._take(self._client.ask(command))

    def _take(self, events: Iterable[Event]) -> None:
        for event in events:
            if self._args.save_session is not None:
                self.recorder.take([event])
            match event:
                case StepRecord():
                    self._take_step(event)
                case BreakpointHit():
                    self.hits.append(event)

    # ---- before the first step -----------------------------------------------------------------------------------

    def begin(self, spec: CacheSpec, prompts: list[Prompt], steps: int) -> None:
        """Begin with one sequence for each prompt."""
        self._chat, self._sampling = prompts[0].chat, prompts[0].sampling
        events = [*begin(self._client, model_spec(self._args), spec, prompts, steps)]
        self._take(events)
        for event in events:
            if isinstance(event, Submitted):
                self.generated[event.seq_id] = []
                self._print_note(event)
        self._force()

    def _print_note(self, event: Submitted) -> None:
        """Print what may be unexpected in how a conversation was tokenised."""
        if event.note and self._args.json:
            print_json({"event": "note", "seq_id": event.seq_id, "text": event.note})
        elif event.note:
            print(printable(f"note: {event.note}"))

    def _force(self) -> None:
        """Force the given tokens as the first ones of every answer."""
        for seq_id in self.generated:
            if self._args.force_ids:
                self.do(Force(seq_id, self._args.force_ids))
            elif self._args.force is not None:
                self.do(ForceText(seq_id, self._args.force))

    def go_on_from_snapshot(self, spec: CacheSpec) -> None:
        """Continue a snapshot, in its cache mode unless another is named. The answer begins with the token that was
        chosen on opening the file, where that does not say which comes next."""
        from engine.snapshot.read import SnapshotFile

        args = self._args
        with SnapshotFile(args.snapshot) as file:
            if file.manifest.why_not:
                raise InputError(f"'{file.path}' can be viewed and not gone on from: {file.manifest.why_not}.")
            says_next = file.manifest.sequence.sampled is not None
            self.records = list(file.records) if args.export is not None else []
        self._client.do(OpenSnapshot(args.snapshot))  # tells the steps of the file, which are not those of this run
        self._client.do(Continue(model_spec(args)))
        self.session.model.runners.compiling = announce_compiling
        if args.cache is not None or spec != CacheSpec():
            self.do(SetCache(spec))
        for seq_id in self.session.live.ids:
            before = self.session.sequence(seq_id).sampling
            if (sampling := _with_sampling_options(before, args)) != before:
                self.do(SetSampling(sampling, seq_id))
            sampled = self.session.sequence(seq_id).sampled
            self.generated[seq_id] = [] if says_next or sampled is None else [sampled]
            if not args.json:
                print(printable("".join(map(self.session.text_of, self.generated[seq_id]))), end="")

    def set_breakpoints(self) -> None:
        """Set the conditions that end the run; raises `InputError` for one that can never hold."""
        if not self._args.stop_when:
            return
        conditions = tuple(Breakpoint(*each) for each in enumerate(self._args.stop_when))
        for event in self._client.do(SetBreakpoints(conditions)):
            for state in event.status.breakpoints if isinstance(event, StateChanged) else ():
                if state.problem:
                    raise InputError(state.problem)

    def take_turn(self, text: str) -> None:
        """Say a text as the user's turn after the answer to the one before."""
        from engine.session.commands import generated_text

        assert self._chat is not None
        (parent,) = self.session.live.ids
        answer = generated_text(self.session, parent)
        self._chat = self._chat.answered(answer, text)
        self.do(SubmitPrompt(Prompt(chat=self._chat, sampling=self._sampling), alone=False, after=parent))
        (seq_id,) = self.session.live.ids
        _print_turn(self.session, seq_id, answer, self._args.json)
        self.generated = {seq_id: []}
        self._force()

    # ---- steps ---------------------------------------------------------------------------------------------------

    def generate(self) -> None:
        """Step until every sequence has its tokens or has ended, or a condition holds. A sequence is stopped only where
        it has its tokens before others have theirs: what is exported or saved behind the last step can go on."""
        while (lacking := self._lacking()) and not self.hits:
            if self._edits and not self.session.is_prefilling and self.session.last_step is not None:
                self._make_edits()
                continue  # one may have changed the chosen token so that the sequence ends
            most = min(self._args.steps - len(self.generated[seq_id]) for seq_id in lacking)
            self.do(commands.Run(1 if self._edits else most))
            lacking = self._lacking()
            for seq_id in self.generated if lacking else ():
                if seq_id not in lacking:
                    self.do(StopSequence(seq_id))

    def _lacking(self) -> list[int]:
        """The sequences that have not ended and lack tokens. A unit of work gives each of them one at most."""
        sequences = self.session.sequence
        return [i for i, ids in self.generated.items() if sequences(i).has_work and len(ids) < self._args.steps]

    def _take_step(self, record: StepRecord) -> None:
        """Print a step."""
        if self._args.export is not None:
            self.records.append(record)
        self.page_events += record.page_events
        for change in record.changes:
            if isinstance(change, TokensForced):
                self._forced[change.seq_id] = change.token_ids
        for part in map(self._with_next, record.sequences):
            if part.sampled is not None:
                # by position, since a preempted sequence is prefilled again and chooses its last token twice
                self.generated[part.seq_id][part.num_tokens - part.num_prompt_tokens :] = [part.sampled]
            if self._args.json:
                print_json(_step_line(record, part))
            elif len(self.generated) == 1:
                print(printable(part.sampled_text), end="", flush=True)

    def _with_next(self, part: SequenceStep) -> SequenceStep:
        """What a step did to a sequence, with the token that follows, if any: a forced token replaces the chosen
        one."""
        forced = self._forced.get(part.seq_id, ())[part.num_tokens - part.num_prompt_tokens :]
        if part.sampled is not None and forced:
            return structs.replace(part, sampled=forced[0], sampled_text=self.session.text_of(forced[0]))
        return part if has_chosen(part) else structs.replace(part, sampled=None, sampled_text="")

    def _make_edits(self) -> None:
        """Make the edits after the prompt of the first sequence, and print a line about each. The token chosen last is
        replaced by the one chosen again."""
        session, seq_id, lines = self.session, next(iter(self.generated)), list[dict[str, Any]]()
        generated = self.generated[seq_id]
        for text in self._edits:
            try:
                edit = parse_edit(text, seq_id, session.sequence(seq_id).num_tokens)
                events = self._client.do(MakeEdit(edit))
            except InputError:
                if not self._args.json and len(self.generated) == 1 and generated:
                    print()  # ends the line of printed tokens
                raise
            self._take(events)
            (effect,) = (event for event in events if isinstance(event, EditMeasured))
            kl = effect.kl if effect.kl is not None and isfinite(effect.kl) else None
            measured = {"kl": kl, "took_ms": round(effect.took_ms, 3), "measured_ms": round(effect.measured_ms, 3)}
            lines.append({"event": "edit", "step": effect.step, "seq_id": seq_id, "edit": edit.describe(), **measured})
        self._edits = []
        sequence = session.sequence(seq_id)
        if sequence.stop == "non-finite logits":  # no token was chosen instead
            generated[-1:] = []
        elif sequence.sampled is not None and generated:
            lines[-1] |= {"token_id": sequence.sampled, "text": session.text_of(sequence.sampled)}
            generated[-1] = sequence.sampled
        for line in lines:
            print_json(line) if self._args.json else print(printable(_in_words(line)), end="", flush=True)

    def print_summary(self, seconds: float) -> None:
        """Print what was generated, and the conditions that ended the run with their values."""
        session, generated, info = self.session, self.generated, self.session.model.info
        tokenizer = session.model.tokenizer
        texts = {
            i: tokenizer.decode(ids, skip_special_tokens=True) if tokenizer else "" for i, ids in generated.items()
        }
        count = sum(map(len, generated.values()))
        rate = round(count / seconds, 2) if seconds else 0.0
        kv_bytes = session.bytes().stored
        if self._args.json:
            first = next(iter(generated))
            sequences = [
                {"seq_id": i, "token_ids": ids, "text": texts[i], "stop": session.sequence(i).stop or "stopped"}
                for i, ids in generated.items()
            ]
            print_json(
                {
                    "event": "done",
                    "token_ids": generated[first],
                    "text": texts[first],
                    "cache": cache_name(session.cache),
                    "kv_bytes": kv_bytes,
                    "tok_per_s": rate,
                    "sequences": sequences,
                    "model": info.name,
                    "random_weights": info.random_weights,
                    "note": info.note,
                    "capture": session.captured.level,
                    "looking_ms": dict(session.captured.costs_ms),
                }
            )
            for hit in self.hits:
                words = {"condition": hit.condition, "step": hit.step, "seq_id": hit.seq_id, "value": hit.value}
                print_json({"event": "halted", **words})
            return
        if len(generated) > 1:
            for seq_id, text in texts.items():
                print(f"[{seq_id}] {printable(text)}")
        stored = f"{kv_bytes:,} bytes of {_kept_words(info)}"
        print(f"\n\n{counted(count, 'token')} · {rate} tok/s · {cache_label(session.cache)} · {stored}")
        for level, cost_ms in session.captured.costs_ms:
            print(f"overhead of measuring: {CAPTURES[level].label.lower()}, {cost_ms:.2f} ms a decode step")
        for seq_id in generated:
            sequence = session.sequence(seq_id)
            if sequence.stop in ("context full", "cache full", "non-finite logits"):
                print(f"{sequence.stop}: sequence {seq_id} ended after {counted(sequence.num_tokens, 'token')}")
        if info.note:
            print(f"note: {info.note}")
        for hit in self.hits:
            print(printable(f"halted after step {hit.step}: {hit.condition} · {hit.value} · sequence {hit.seq_id}"))


# ---- what is printed ------------------------------------------------------------------------------------------------


def _step_line(record: StepRecord, part: SequenceStep) -> dict[str, Any]:
    return {
        "event": "step",
        "step": record.step,
        "phase": record.phase,
        "seq_id": part.seq_id,
        "token_id": part.sampled,
        "text": part.sampled_text,
        "num_tokens": part.num_tokens,
        "kv_bytes": record.num_bytes.stored,
        "surprisal": [round(nats, 4) if nats is not None and isfinite(nats) else None for nats in part.surprisal],
        "ms": round(record.timings.total_ms, 3),
        "runner": record.runner,
        **({"hit_tokens": part.hit_tokens} if part.hit_tokens else {}),
        **({"preempted": list(record.preempted)} if record.preempted else {}),
    }


def _in_words(line: dict[str, Any]) -> str:
    """An edit in words, with its KL, and the token that was chosen again."""
    moved = "" if line["kl"] is None else f" · KL {line['kl']:.4g} nats"
    return f"\n[{line['edit']}{moved}]\n{line.get('text', '')}"


def _print_turn(session: Session, seq_id: int, answer: str, as_json: bool) -> None:
    """Print how much of the cache the next turn reuses, and where it differs from what is cached."""
    reuse = session.live.get(seq_id).continued
    assert reuse is not None
    if not as_json:
        print(printable(f"\n\n{reuse.words(_quoted)}\n"))
        return
    differs = {} if reuse.position is None else {
        "position": reuse.position,
        "token": reuse.token,
        "cached": reuse.cached,
        "template_line": reuse.line or None,
        "template_text": reuse.line_text,
    }  # fmt: skip
    print_json(
        {
            "event": "turn",
            "seq_id": seq_id,
            "answer": answer,
            "num_tokens": len(session.sequence(seq_id).token_ids),
            "reused": reuse.num_reused,
            "cached": reuse.num_cached,
            "why": reuse.why,
            "differs": differs,
        }
    )


def _quoted(text: str) -> str:
    """A text of the model on one line between quotation marks, with escapes."""
    return f"“{printable_line(text)}”"


def _kept_words(info: ModelInfo) -> str:
    """What the cache of this model holds, in words."""
    has_state = any(layer.kind == "linear" or layer.state_elements for layer in info.geometry.layers)
    if not info.geometry.attention_layers:
        return "recurrent state"
    return "K, V and recurrent state" if has_state else "K and V"
