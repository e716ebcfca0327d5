"""Creates the comparison that a command asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from engine.analysis.comparison.comparison import Comparison, ComparisonFollower
from engine.analysis.comparison.sides import ComparedRun, FileRun, LiveRun, check_vocabularies, run_at
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.model import ModelSpec
from engine.wire.commands import StartComparison
from engine.wire.comparison import OtherFile, OtherRun, OtherStep

if TYPE_CHECKING:
    from engine.opened.file import OpenedSnapshot


def comparison_of(
    current: Session | OpenedSnapshot,
    command: StartComparison,
    load: Callable[[ModelSpec], LoadedModel],
    open_snapshot: Callable[[Path], OpenedSnapshot],
    held: LoadedModel | None = None,
) -> Comparison:
    """Create the comparison of a sequence, or of an opened file, with the opponent that the command names.

    `load` loads another model, or the same one in another dtype; `held` is the model that was loaded before the file
    was opened. Raises `InputError` if the two cannot be compared.
    """
    if not isinstance(current, Session):
        return _of_file(current, command, load, open_snapshot, held)
    session, against = current, command.against
    if isinstance(against, OtherStep) and against.of is not None:
        return _of_steps(session, command.seq_id, against.of, against.step)
    sequence = session.sequence(command.seq_id)
    match against:
        case OtherRun(_, model):
            mine = LiveRun(session, command.seq_id, f"sequence {command.seq_id}")
            loaded = session.model if model is None else load(_on_same_device(session.model, model))
            prompt_ids = sequence.token_ids[: sequence.num_prompt_tokens]
            return _with_run(mine, against, loaded, prompt_ids, session.text_of)
        case OtherStep(step):
            return _with_step(session, command.seq_id, step)
        case OtherFile(path):
            mine = LiveRun(session, command.seq_id, f"sequence {command.seq_id}")
            return _of_one_text(mine, FileRun(open_snapshot(path), is_own=True), session.text_of)


def _with_run(
    mine: ComparedRun,
    against: OtherRun,
    model: LoadedModel,
    prompt_ids: Sequence[int],
    text_of: Callable[[int], str] | None,
) -> Comparison:
    """A comparison with a run of the same tokens; where `text_of` is None, its model gives the texts."""
    check_vocabularies(mine.geometry, model.info.geometry)
    follower = ComparisonFollower(model, against.cache, prompt_ids)
    return Comparison(mine, follower.run, follower.run.session.text_of if text_of is None else text_of, follower)


def _on_same_device(model: LoadedModel, spec: ModelSpec) -> ModelSpec:
    """The spec of the other model on the device and threads of `model`, unless it names others: else devices would be
    compared as well."""
    device = model.info.device if spec.device == "auto" else spec.device
    return replace(spec, device=device, num_threads=spec.num_threads or model.info.num_threads)


def _of_file(
    opened: OpenedSnapshot,
    command: StartComparison,
    load: Callable[[ModelSpec], LoadedModel],
    open_snapshot: Callable[[Path], OpenedSnapshot],
    held: LoadedModel | None,
) -> Comparison:
    mine = FileRun(opened)
    match command.against:
        case OtherFile(path):
            return _of_one_text(mine, FileRun(open_snapshot(path), is_own=True), opened.text_of)
        case OtherStep():
            raise InputError(
                "An opened snapshot has the rows of one step: compare it with another snapshot, or with a run of its "
                "tokens in a cache mode or a dtype."
            )
        case OtherRun(_, model) as against:
            token_ids = mine.token_ids
            if len(token_ids) < mine.num_tokens:
                raise InputError(
                    f"{opened.file.path.name} does not say which tokens it was given, so no run can be given them: "
                    "compare it with another snapshot."
                )
            loaded = _model_for(opened, model, load, held)
            prompt_ids = token_ids[: opened.sequence.num_prompt_tokens]
            is_its_own = loaded.info.fingerprint == opened.info.fingerprint
            return _with_run(mine, against, loaded, prompt_ids, None if is_its_own else opened.text_of)


def _model_for(
    opened: OpenedSnapshot,
    wanted: ModelSpec | None,
    load: Callable[[ModelSpec], LoadedModel],
    held: LoadedModel | None,
) -> LoadedModel:
    """The model that is given the tokens of a file: the loaded one if it is the file's model and no other is asked for,
    else the named one. Raises `InputError` if that has the name of the file's model but other weights."""
    file = opened.info
    if held is not None and held.info.fingerprint == file.fingerprint:
        info = held.info
        if wanted is None or (wanted.source == info.source and wanted.dtype in ("auto", info.dtype)):
            return held
    if wanted is None:
        raise InputError(
            f"The model of this snapshot, {file.name}, is not at hand: name its folder, or compare with another "
            "snapshot."
        )
    loaded = load(wanted)
    info = loaded.info
    # the fingerprint of random weights depends on their dtype
    is_told_apart = file.fingerprint and not (info.random_weights and info.dtype != file.dtype)
    if is_told_apart and info.name == file.name and info.fingerprint != file.fingerprint:
        raise InputError(
            f"{opened.file.path.name} was made with other weights or another config than {file.name} has here: name "
            "the folder of that model, or compare with another snapshot."
        )
    return loaded


def _of_one_text(
    mine: ComparedRun, other: ComparedRun, text_of: Callable[[int], str], *, are_branches: bool = False
) -> Comparison:
    """A comparison of two that begin with the same token; the other one is closed if they do not."""
    try:
        comparison = Comparison(mine, other, text_of, are_branches=are_branches)
        comparison.check_common()
    except BaseException:
        other.close()
        raise
    return comparison


def _of_steps(session: Session, seq_id: int, one: int, other: int) -> Comparison:
    """A comparison of two moments of any branches; neither needs to be the live one."""
    if one == other:
        raise InputError(f"Step {one} is the same as itself: choose two steps.")
    mine = run_at(session, seq_id, one)
    try:
        return _of_one_text(mine, run_at(session, seq_id, other), session.text_of, are_branches=True)
    except BaseException:
        mine.close()
        raise


def _with_step(session: Session, seq_id: int, step: int) -> Comparison:
    tree = session.history.tree
    if step in tree and not tree.is_on_path(step, session.last_step):
        now, other = LiveRun(session, seq_id, "now"), run_at(session, seq_id, step)
        return _of_one_text(now, other, session.text_of, are_branches=True)
    state = session.history.journal.state(seq_id, step)
    if state is None or not state.num_tokens:
        raise InputError(f"Sequence {seq_id} held no rows after step {step}: choose a later one.")
    if not session.rows_at(seq_id, state.num_tokens).is_known:
        raise InputError(f"The rows of step {step} are not known any more as they were: go to it, and fork from there.")
    past = LiveRun(session, seq_id, f"step {step}", until=state.num_tokens)
    return Comparison(LiveRun(session, seq_id, "now"), past, session.text_of, compares_with_now=True)
