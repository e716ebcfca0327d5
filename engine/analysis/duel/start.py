"""The duel that is asked for."""

from __future__ import annotations

from collections.abc import Callable

from engine.analysis.duel.duel import Duel, Follower
from engine.analysis.duel.sides import LiveRun
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.session import Session
from engine.spec.model import ModelSpec
from engine.spec.presets import cache_label
from engine.wire.commands import OtherFile, OtherRun, OtherStep, StartDuel


def duel_of(session: Session, command: StartDuel, load: Callable[[ModelSpec], LoadedModel]) -> Duel:
    """A duel of a sequence with what the command names, at its first step. `load` loads another model, or the same in
    another dtype. Raises `InputError` where there is nothing to compare with."""
    sequence = session.sequence(command.seq_id)
    match command.against:
        case OtherRun(cache, model):
            mine = LiveRun(session, command.seq_id, f"sequence {command.seq_id}")
            loaded = session.model if model is None else load(model)
            prompt_ids = sequence.token_ids[: sequence.num_prompt_tokens]
            follower = Follower(loaded, cache, f"the same tokens in {cache_label(cache)}", prompt_ids)
            return Duel(mine, follower.run, session.text_of, follower)
        case OtherStep(step):
            return _with_step(session, command.seq_id, step)
        case OtherFile():
            raise InputError("A snapshot cannot be compared with yet.")


def _with_step(session: Session, seq_id: int, step: int) -> Duel:
    mark = session.history.journal.mark(seq_id, step)
    if mark is None or not mark.num_tokens:
        raise InputError(f"Sequence {seq_id} held no rows after step {step}: choose a later one.")
    if not session.past(seq_id, mark.num_tokens).is_known:
        raise InputError(f"The rows of step {step} are no longer known as they were: rewind there, and fork from it.")
    past = LiveRun(session, seq_id, f"step {step}", until=mark.num_tokens)
    return Duel(LiveRun(session, seq_id, "now"), past, session.text_of, compares_with_now=True)
