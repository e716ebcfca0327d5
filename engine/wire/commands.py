"""The commands of the engine: frozen messages, handled in order between two steps."""

from __future__ import annotations

from collections.abc import Hashable
from pathlib import Path
from typing import ClassVar, Literal

from engine.spec.cache import CacheSpec
from engine.spec.edit import Edit
from engine.spec.model import CaptureLevel, ModelSpec, PagedAttentionName, RunnerName
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire import breakpoints, devices, exporting, measurements, serving  # noqa: F401  # COMMANDS has theirs too
from engine.wire.comparison import Opponent
from engine.wire.message import Command, Facts, Nested
from engine.wire.pictures import PictureRequest, Side
from engine.wire.records import Change
from engine.wire.tree import Node


class LoadModel(Command, frozen=True):
    """Load a model while the present one stays in use, and switch to it when it is complete. This ends all
    sequences."""

    facts: ClassVar[Facts] = Facts("loading a model", needs="nothing", interrupts=True, ends_trial=True)

    model: ModelSpec
    cache: CacheSpec


class SetCache(Command, frozen=True):
    """Change the cache mode of the live sequences: their rows are converted where possible, else re-prefilled."""

    facts: ClassVar[Facts] = Facts("changing the cache", ends_trial=True)

    cache: CacheSpec


class ChooseRunner(Command, frozen=True):
    """Compute all forward passes from now on with this runner, by its name in `engine.spec.model`."""

    runner: RunnerName


class ChoosePagedAttention(Command, frozen=True):
    """Read pages in attention from now on in this way, by its name in `engine.spec.model`."""

    way: PagedAttentionName


class SetCapture(Command, frozen=True):
    """Set how much is measured in every step. With `by_layer`, also measure how long each layer of a forward pass
    spends on attention, cache updates, dequantising and copies; this slows the step down a little."""

    facts: ClassVar[Facts] = Facts(needs="nothing")

    level: CaptureLevel
    by_layer: bool = False


class SubmitPrompt(Command, frozen=True):
    """Start a sequence; prefill begins with the next step. `alone` ends the sequences before it (a new run). With
    `after` the prompt replaces that sequence in the same history: the rows of their common prefix are kept, the others
    computed. `num_steps` steps are then done as by `Step` (the first reads the prompt); none if the prompt is refused.
    With `in_phases` the prompt is read phase by phase, as by `NextPhase`, instead."""

    facts: ClassVar[Facts] = Facts(
        "taking a prompt",
        goes_with_cancel=True,
        ends_trial=True,
        when_cancelled="The prompt was not taken, because it was stopped: send it again.",
    )

    prompt: Prompt
    alone: bool = True
    num_steps: int | None = 0
    in_phases: bool = False
    after: int | None = None


class PreviewPrompt(Command, frozen=True):
    """Tokenise a prompt without submitting it: answers with its tokens, for a conversation with the rendered text, and
    with how many rows of the sequence `after` it could reuse."""

    facts: ClassVar[Facts] = Facts("rendering a conversation", answers="one", effect="looks", is_quiet=True)

    prompt: Prompt
    after: int | None = None


class SetSampling(Command, frozen=True):
    """Set how tokens of a sequence are chosen from now on; a token chosen but not yet computed is chosen again.
    `seq_id` None: set the default for prompts that bring no sampling of their own."""

    sampling: SamplingParams
    seq_id: int | None = None


class SetKeptLimit(Command, frozen=True):
    """Limit the bytes of all kept checkpoints, those of steps on other branches that can be restored without computing.
    Beyond it the least recently used one is dropped, and recomputed when needed. Also holds for later sessions."""

    num_bytes: int


class Step(Command, frozen=True):
    """Do `num_steps` units of work, then pause. A prefill is one unit, however many chunks it takes."""

    facts: ClassVar[Facts] = Facts(effect="steps", goes_with_cancel=True)

    num_steps: int = 1


class Run(Command, frozen=True):
    """Run until paused or finished, for `num_steps` units, until a breakpoint's condition holds, or the condition
    `until`, which is for this run only."""

    facts: ClassVar[Facts] = Facts(effect="steps", goes_with_cancel=True)

    num_steps: int | None = None
    until: str = ""


class NextPhase(Command, frozen=True):
    """Step phase by phase: begin a step, or continue the suspended one to its next phase. `Step` and `Run` finish a
    suspended step. Commands that only read are answered meanwhile, measurements are refused, and any other command
    discards it as if it had never begun."""

    facts: ClassVar[Facts] = Facts("a step in phases", effect="steps")


class Pause(Command, frozen=True):
    """Pause after the step in progress."""

    facts: ClassVar[Facts] = Facts(needs="nothing", effect="looks")


class Redo(Command, frozen=True):
    """Repeat the steps of a lost engine's history in an empty session: the same forward passes of the same tokens in
    the same modes. Then go to the node `at` (None: before the first) and make the `changes` that followed it."""

    facts: ClassVar[Facts] = Facts("doing the steps once more")

    nodes: tuple[Node, ...]
    at: int | None
    changes: tuple[Change, ...] = ()


class Cancel(Command, frozen=True):
    """Cancel whatever is in progress: a run, a prefill, a load, an export."""

    facts: ClassVar[Facts] = Facts(needs="nothing", interrupts=True, ends_trial=True)


class Force(Command, frozen=True):
    """Schedule these tokens for a sequence next instead of sampled ones; the first replaces the one already chosen."""

    seq_id: int
    token_ids: tuple[int, ...]


class ForceText(Command, frozen=True):
    """Schedule the tokens of this text for a sequence next, like `Force`."""

    facts: ClassVar[Facts] = Facts(when_cancelled="The text was not taken, because it was stopped: send it again.")

    seq_id: int
    text: str


class GoTo(Command, frozen=True):
    """Restore the exact state after `step`, on any branch of the history tree. Nothing is deleted."""

    facts: ClassVar[Facts] = Facts("going to another step", interrupts=True, ends_trial=True)

    step: int


class BeginBranch(Command, frozen=True):
    """Go to `step` (None: stay) and begin a new branch there: a sequence is given these tokens next, or those of
    `text`, or gets other `sampling`."""

    facts: ClassVar[Facts] = Facts(
        "beginning another branch", when_cancelled="The branch was not begun, because it was stopped: begin it again."
    )

    seq_id: int
    step: int | None
    token_ids: tuple[int, ...] = ()
    text: str = ""
    sampling: SamplingParams | None = None


class DeleteBranch(Command, frozen=True):
    """Delete a node of the history tree and all its descendants. Refused if the live step is among them."""

    facts: ClassVar[Facts] = Facts("deleting a branch", answers="one")

    step: int


class MakeEdit(Command, frozen=True):
    """Make an edit by hand, which becomes a node of the history tree."""

    edit: Edit


class UndoEdit(Command, frozen=True):
    """Go back to the step before the newest edit on the live path."""

    facts: ClassVar[Facts] = Facts("undoing an edit")


class RedoEdit(Command, frozen=True):
    """Go forward to the step that the last undo came from."""

    facts: ClassVar[Facts] = Facts("returning to an edit")


class Fork(Command, frozen=True):
    """Add a sequence with the tokens that `seq_id` had after `step` (None: now). In paged layouts the two share all
    pages until one of them writes."""

    facts: ClassVar[Facts] = Facts("forking a sequence", answers="one")

    seq_id: int
    step: int | None = None


class JoinBranches(Command, frozen=True):
    """Fork the sequences after these steps, of any branches, into the live step, so that they decode as one batch
    with its own. A sequence that is already there in the same state is not added. Either all are added or none."""

    facts: ClassVar[Facts] = Facts("taking the sequences of other branches")

    steps: tuple[int, ...]


class StopSequence(Command, frozen=True):
    """Stop a sequence; its cache stays and can be inspected."""

    facts: ClassVar[Facts] = Facts(interrupts=True)

    seq_id: int


class RemoveSequence(Command, frozen=True):
    """End a sequence and free its rows or pages."""

    facts: ClassVar[Facts] = Facts("removing a sequence", interrupts=True, ends_trial=True)

    seq_id: int


def _picture_kind(command: TakePicture) -> Hashable:
    return TakePicture, type(command.request), command.side


class TakePicture(Command, frozen=True):
    """Answer with one screen-sized picture of the present state; of several waiting requests of a kind only the newest
    is answered. In a comparison it can be of one `side`, or of the difference A - B. With a `node` it is of that step,
    if its rows are kept; otherwise, on another branch, an empty picture gives the reason, and on the live path the rows
    are as stored now. Over a slow line a large one is answered in fewer cells, the same for each side, and follows
    whole if nothing comes in between."""

    facts: ClassVar[Facts] = Facts(
        "taking a picture", needs="rows", answers="one", effect="looks", newest=_picture_kind, is_quiet=True
    )

    request: PictureRequest
    side: Side | None = None
    node: int | None = None


class Watched(Nested, frozen=True):
    """A picture that follows the newest step, with an `id` that all its updates repeat.

    The step and token counts of `request` are replaced by the present ones. `extent` says how the range `start … stop`
    of a head or an attention row follows new tokens: `all` positions, as many of the `newest`, or the same ones
    (`fixed`).
    """

    request: PictureRequest
    extent: Literal["all", "newest", "fixed"] = "all"
    id: int = 0


class Watch(Command, frozen=True):
    """Replace the watched pictures: each new one is sent whole at once; after every later step, what the step changed
    in it (an update, or a whole picture). Another cache mode, another history and going back end this: send it again
    then."""

    facts: ClassVar[Facts] = Facts("taking pictures", needs="nothing", effect="looks", newest=type, is_quiet=True)

    pictures: tuple[Watched, ...]


PICTURES_PER_SECOND = 21  # default limit per watcher: 20, and a margin


class SetPace(Command, frozen=True):
    """Limit how fast a run goes, in decode steps per second, and how often watched pictures are sent, per second (None:
    no limit, and a picture for every step)."""

    facts: ClassVar[Facts] = Facts(needs="nothing", effect="looks")

    steps_per_second: float | None
    pictures_per_second: float | None


class Tokenize(Command, frozen=True):
    """Answer with the tokens of a text, to show them while it is typed."""

    facts: ClassVar[Facts] = Facts("counting tokens", answers="one", effect="looks", is_quiet=True)

    text: str


class OpenSnapshot(Command, frozen=True):
    """Show a snapshot file instead of the live session, without loading its model. If refused, nothing changes.
    `model` is the GGUF or config.json of a state file of llama.cpp; None: the one beside it. A file that `is_here` lies
    on the window's machine; an engine on another one is sent its `content`."""

    facts: ClassVar[Facts] = Facts("opening a snapshot", needs="nothing", ends_trial=True)

    path: Path
    model: Path | None = None
    is_here: bool = False
    content: bytes = b""


class Continue(Command, frozen=True):
    """Continue the opened snapshot or session with its model: the one loaded before if it fits, else `model`.
    `may_open_files`: edits in it may read the files they name; set it only if nobody else wrote the file."""

    facts: ClassVar[Facts] = Facts("going on from a snapshot", needs="nothing")

    model: ModelSpec
    may_open_files: bool = False


class CloseSnapshot(Command, frozen=True):
    """Close the opened snapshot and begin a new session, with the model loaded before it, else with `model`."""

    facts: ClassVar[Facts] = Facts("closing a snapshot", needs="nothing", ends_trial=True)

    model: ModelSpec


class StartComparison(Command, frozen=True):
    """Compare a sequence with another run from its first token on, and step that run along with it from now on."""

    facts: ClassVar[Facts] = Facts(needs="rows", answers="one", effect="measures", goes_with_cancel=True)

    seq_id: int
    against: Opponent


class EndComparison(Command, frozen=True):
    """End the comparison and free the other run."""

    facts: ClassVar[Facts] = Facts(needs="rows", effect="looks")


class FindModels(Command, frozen=True):
    """List the models that are already on this computer."""

    facts: ClassVar[Facts] = Facts("looking for models", needs="nothing", answers="one", effect="looks")


class ListFolder(Command, frozen=True):
    """List a folder on the engine's machine; the empty path is the user's own folder."""

    facts: ClassVar[Facts] = Facts("listing a folder", needs="nothing", answers="one", effect="looks")

    path: str = ""


class Shutdown(Command, frozen=True):
    """Finish the step in progress and end the engine's thread."""

    facts: ClassVar[Facts] = Facts(needs="nothing", answers="one", interrupts=True)


COMMANDS: tuple[type[Command], ...] = tuple(Command.__subclasses__())
