"""What may be asked of the engine: frozen messages, handled between two steps, in order."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from engine.spec.cache import CacheSpec
from engine.spec.capture import CaptureLevel
from engine.spec.edit import Edit
from engine.spec.model import ModelSpec
from engine.spec.runners import PagedAttentionName, RunnerName
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire.changes import Change
from engine.wire.devices import FindDevices, ForecastLoad, UnloadModel
from engine.wire.exporting import EstimateExport, Export
from engine.wire.measuring import Bench, CheckParity, MapDamage, MeasureRegret, Sweep, WhatIf
from engine.wire.message import CommandMessage, Part
from engine.wire.opponents import Opponent
from engine.wire.requests import Side, SliceRequest
from engine.wire.stopping import MeasureAttention, SetStops
from engine.wire.tree import Node


class LoadModel(CommandMessage, frozen=True):
    """Load a model beside the present one and take it over when it is whole. Sequences end with their model."""

    model: ModelSpec
    cache: CacheSpec


class SetCache(CommandMessage, frozen=True):
    """Another cache mode for the live sequences: converted where possible, re-prefilled where not."""

    cache: CacheSpec


class ChooseRunner(CommandMessage, frozen=True):
    """Compute the forwards from now on in that way, by its name in `engine.spec.runners`."""

    runner: RunnerName


class ChoosePagedAttention(CommandMessage, frozen=True):
    """Let attention read pages from now on in that way, by its name in `engine.spec.runners`."""

    way: PagedAttentionName


class SetCapture(CommandMessage, frozen=True):
    """How much is measured of every step from now on. `by_layer`: and of every forward how long each layer spent on
    attention, on its cache, on dequantising and on copies, which costs a little itself."""

    level: CaptureLevel
    by_layer: bool = False


class SubmitPrompt(CommandMessage, frozen=True):
    """Start a sequence; `alone` drops the sequences before it (a new run). Prefill begins with the next step. With
    `after` the prompt takes the place of that sequence, in the same history: the rows that the two have in common are
    kept, as far as their tokens agree, and the rest is computed. `num_steps` asks for that many as `Step` does, once
    the prompt is taken: 1 reads the prompt, None runs as `Run` does, and a prompt that is refused steps nothing.
    `in_phases` begins to read it as `NextPhase` does, in place of steps."""

    prompt: Prompt
    alone: bool = True
    num_steps: int | None = 0
    in_phases: bool = False
    after: int | None = None


class PreviewPrompt(CommandMessage, frozen=True):
    """The tokens of a prompt, without taking it: a conversation as its template renders it, and how much of it the
    rows of the sequence `after` would serve."""

    prompt: Prompt
    after: int | None = None


class SetSampling(CommandMessage, frozen=True):
    """How the tokens of a sequence are chosen from now on; the one chosen but not yet fed is chosen again. `seq_id`
    None: what the next prompt takes that brings none of its own."""

    sampling: SamplingParams
    seq_id: int | None = None


class SetKeptLimit(CommandMessage, frozen=True):
    """Moments that were left may take so many bytes of their own, all together; beyond that the one that rested longest
    is let go, and computed again when somebody goes there. It holds for sessions that come as well."""

    num_bytes: int


class Step(CommandMessage, frozen=True):
    """Do `num_steps` units of work, then rest. A prefill counts as one unit, however many chunks it takes."""

    num_steps: int = 1


class Run(CommandMessage, frozen=True):
    """Work until paused, finished, for `num_steps` units, until a step at which a stop holds, or the condition `until`,
    which is that of this run alone."""

    num_steps: int | None = None
    until: str = ""


class NextPhase(CommandMessage, frozen=True):
    """Take a step in phases: begin one where none is suspended, else on to its next phase. A suspended step goes on to
    its end with `Step` or `Run`; it answers what only looks, refuses what measures, and is given up, as if it had never
    begun, for anything else."""


class Pause(CommandMessage, frozen=True):
    """Rest after the step in progress."""


class Redo(CommandMessage, frozen=True):
    """Do the nodes of a history that is gone once more, in a session that has none: the same forwards of the same
    tokens in the same modes. Then go to the node `at` (None: before the first), and make the `changes` that were made
    after it."""

    nodes: tuple[Node, ...]
    at: int | None
    changes: tuple[Change, ...] = ()


class Cancel(CommandMessage, frozen=True):
    """Stop whatever is going on: a run, a prefill, a load, an export."""


class Force(CommandMessage, frozen=True):
    """The next tokens of a sequence are these, not the sampler's; the first replaces the one already chosen."""

    seq_id: int
    token_ids: tuple[int, ...]


class ForceText(CommandMessage, frozen=True):
    """The next tokens of a sequence are those of this text."""

    seq_id: int
    text: str


class GoTo(CommandMessage, frozen=True):
    """Make the state after `step`, on any branch of the history tree, the live one, exactly. Nothing is deleted."""

    step: int


class BeginBranch(CommandMessage, frozen=True):
    """Go to `step` (None: stay) and begin another branch from there: a sequence is fed these tokens next, or those of
    `text`, or chooses with other `sampling`."""

    seq_id: int
    step: int | None
    token_ids: tuple[int, ...] = ()
    text: str = ""
    sampling: SamplingParams | None = None


class DeleteBranch(CommandMessage, frozen=True):
    """Forget a node of the history tree and all that came of it. Refused where the live moment is among them."""

    step: int


class MakeEdit(CommandMessage, frozen=True):
    """Change something by hand; the edit is a node of the history tree."""

    edit: Edit


class UndoEdit(CommandMessage, frozen=True):
    """Return to the moment before the newest edit on the path to the live one."""


class RedoEdit(CommandMessage, frozen=True):
    """Return to the moment that the last undo left."""


class Fork(CommandMessage, frozen=True):
    """A second sequence with the tokens that a sequence had after `step` (None: now); in paged layouts it shares every
    page until one of them writes."""

    seq_id: int
    step: int | None = None


class JoinBranches(CommandMessage, frozen=True):
    """Fork the sequences of the moments after these steps, of any branches, into the live moment, so that they decode
    as one batch with its own: those that it does not have as they stand there. All of them, or none."""

    steps: tuple[int, ...]


class StopSequence(CommandMessage, frozen=True):
    """Stop a sequence where it stands; its cache stays to be looked at."""

    seq_id: int


class RemoveSequence(CommandMessage, frozen=True):
    """End a sequence and free what it holds."""

    seq_id: int


class TakeSlice(CommandMessage, frozen=True):
    """Answer with one screen-sized picture of the present; of several of a kind waiting, the newest is answered. In a
    duel it may be that of one `side`, or of the difference, A less B. With a `node` of another branch it is of that
    moment, if its rows are kept; an empty one says why not."""

    request: SliceRequest
    side: Side | None = None
    node: int | None = None


class Watched(Part, frozen=True):
    """A picture of the newest step, under an `id` that all that is sent of it repeats.

    Its token counts and its step are those of now, whatever the request says; `extent` says what becomes of the
    positions `start … stop` of a head or an attention row as tokens come: `all` of them, as many of the `newest`, or
    the same ones (`fixed`).
    """

    request: SliceRequest
    extent: Literal["all", "newest", "fixed"] = "all"
    id: int = 0


class Watch(CommandMessage, frozen=True):
    """Show these pictures from now on, in place of those before: each new one is answered whole at once, and after the
    steps that follow with what they changed (an update, or a whole slice). Another cache, another history and going
    back end it: watch again then."""

    pictures: tuple[Watched, ...]


PICTURES_PER_SECOND = 21  # of a watcher, unless it is told otherwise: 20, and a margin


class SetPace(CommandMessage, frozen=True):
    """How fast a run goes, in decode steps a second (None: as fast as it can), and how many pictures a second a watcher
    is sent at most (None: one a step)."""

    steps_per_second: float | None
    pictures_per_second: float | None


class Tokenize(CommandMessage, frozen=True):
    """The tokens of a text, for showing while it is typed."""

    text: str


class OpenSnapshot(CommandMessage, frozen=True):
    """Look at a snapshot file in place of the live session, without its model. Refused, everything stays as it was."""

    path: Path


class Continue(CommandMessage, frozen=True):
    """Go on from the opened snapshot or session with its model: the one loaded before where it fits, else `model`.
    `may_open_files`: edits of the session may read the files that they name; only for one that nobody else wrote."""

    model: ModelSpec
    may_open_files: bool = False


class CloseSnapshot(CommandMessage, frozen=True):
    """Leave the opened snapshot and begin anew, with the model loaded before it, else with `model`."""

    model: ModelSpec


class StartDuel(CommandMessage, frozen=True):
    """Compare a sequence with another run from its first token on, and step that along with it from now on."""

    seq_id: int
    against: Opponent


class EndDuel(CommandMessage, frozen=True):
    """Let the other run go."""


class FindModels(CommandMessage, frozen=True):
    """List the models that are already on this computer."""


class Shutdown(CommandMessage, frozen=True):
    """Finish the step in progress and end the thread."""


Command = (
    LoadModel
    | SetCache
    | ChooseRunner
    | ChoosePagedAttention
    | SetCapture
    | SubmitPrompt
    | PreviewPrompt
    | SetSampling
    | SetKeptLimit
    | Step
    | Run
    | SetStops
    | MeasureAttention
    | NextPhase
    | Pause
    | Redo
    | Cancel
    | Force
    | ForceText
    | GoTo
    | BeginBranch
    | DeleteBranch
    | MakeEdit
    | UndoEdit
    | RedoEdit
    | Fork
    | JoinBranches
    | StopSequence
    | RemoveSequence
    | TakeSlice
    | Watch
    | SetPace
    | Tokenize
    | OpenSnapshot
    | Continue
    | CloseSnapshot
    | Export
    | EstimateExport
    | WhatIf
    | CheckParity
    | MapDamage
    | MeasureRegret
    | Sweep
    | Bench
    | StartDuel
    | EndDuel
    | FindModels
    | FindDevices
    | ForecastLoad
    | UnloadModel
    | Shutdown
)
