"""What a session says of every operation and of its sequences afterwards, in every kind of mode and model, approved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from engine.errors import InputError
from engine.session.commands import branch, continue_with, delete_branch, join, redo_edit, undo_edit
from engine.session.edits import make_edit
from engine.session.session import Session
from engine.spec.cache import CacheSpec, cache_named, tuned
from engine.spec.edit import parse_edit
from engine.spec.sampling import LogitBias, Prompt, SamplingParams
from engine.wire.commands import BeginBranch
from tests.engine.tiny import model_of, prompt_ids
from tests.engine.told import approve, digest, told

Command = tuple[str, Callable[[Session], object]]
ENDLESS = SamplingParams(bias=LogitBias(banned=(0, 1, 2)))
PAGES = {"page_size": 4, "num_pages": 24}
# name -> model, mode, and the mode that it is changed to
SESSIONS: dict[str, tuple[str, CacheSpec, str]] = {
    "growing": ("llama", CacheSpec(), "static"),
    "none": ("llama", CacheSpec("none"), "growing"),
    "paged": ("llama", tuned(cache_named("paged"), **PAGES), "int8"),
    "few pages": ("llama", CacheSpec("paged", page_size=4, num_pages=8), "growing"),
    "pages of a rule": ("llama", tuned(cache_named("paged+h2o"), budget=8, sinks=1, **PAGES), "growing"),
    "coded rows of a rule": ("llama", tuned(cache_named("snapkv+int8"), budget=8, window=3), "snapkv"),
    "kivi": ("llama", tuned(cache_named("kivi-2"), group=16, residual=16), "growing"),
    "rotated sinks": ("llama", tuned(cache_named("streamingllm"), sinks=2, window=5, rerotate=True), "dynamic"),
    "windows": ("gemma3_text", CacheSpec("dynamic"), "growing"),
    "states": ("lfm2", CacheSpec(), "dynamic"),
    "encoder": ("t5", CacheSpec(), "paged"),
    "latent": ("deepseek_v3", CacheSpec("paged", page_size=8, num_pages=12), "kivi-4"),
}


def submitted(length: int, seed: int = 0, **sampling: object) -> Callable[[Session], object]:
    params = SamplingParams(bias=ENDLESS.bias, **sampling)  # type: ignore[arg-type]
    return lambda session: session.submit(Prompt(token_ids=prompt_ids(length, seed), sampling=params))


def stepped(count: int) -> Callable[[Session], object]:
    def steps(session: Session) -> object:
        return [record.step for record in (session.step() for _ in range(count)) if record.evictions]

    return steps


def edited(text: str) -> Callable[[Session], object]:
    def edit(session: Session) -> object:
        made, measured = make_edit(session, parse_edit(text, 0, session.sequence(0).num_tokens))
        return made.node.step, measured.provenance

    return edit


def story(other: str) -> Iterator[Command]:
    """The operations of a story. After those whose names are in capitals the sequences are written down."""
    yield "submit 9", submitted(9)
    yield "step 2", stepped(2)
    yield "step", stepped(1)
    yield "submit 11, alike at first", submitted(11, temperature=0.8, seed=3)
    yield "step 4", stepped(4)
    yield "force", lambda session: session.force(0, (7, 8, 9))
    yield "step 2", stepped(2)
    yield "fork now", lambda session: session.fork(0)
    yield "step", stepped(1)
    yield "fork of then", lambda session: session.fork(1, 5)
    yield "FORK OF SOME ROWS", lambda session: session.fork(0, None, 6)
    yield "step 2", stepped(2)
    yield "remove 2", lambda session: session.remove(2)
    yield "stop 3", lambda session: session.stop(3)
    yield "ZERO", edited("zero pos=2:4 layer=1 part=values")
    yield "step 2", stepped(2)
    yield "mask", edited("mask pos=1:3")
    yield "step", stepped(1)
    yield "undo", undo_edit
    yield "redo", redo_edit
    yield "GO TO 5", lambda session: session.go_to(5)
    yield "branch", lambda session: branch(session, BeginBranch(0, None, (40, 41)))
    yield "step 2", stepped(2)
    yield "branch at 4", lambda session: branch(session, BeginBranch(0, 4, (50,)))
    yield "step", stepped(1)
    yield f"MODE {other}", lambda session: session.set_cache(cache_named(other))
    yield "step 2", stepped(2)
    yield "join 9", lambda session: [made.child for made in join(session, (9,))]
    yield "step", stepped(1)
    yield "sampling", lambda session: session.set_sampling(SamplingParams(temperature=0.5, max_new_tokens=30), 0)
    yield "back to 3", lambda session: session.go_to(3)
    yield "less is kept", lambda session: session.kept.set_limit(0)
    yield "BACK TO 10", lambda session: session.go_to(10)
    yield "fork that is computed", lambda session: session.fork(0, 2)
    yield "REPLACE", edited("replace pos=6:8 tokens=17,18,19 how=re-prefill")
    yield "step", stepped(1)
    yield "fork of before", lambda session: session.fork(0, 8)
    yield (
        "another prompt",
        lambda session: continue_with(session, 0, Prompt(token_ids=(*prompt_ids(5), 30, 31), sampling=ENDLESS)),
    )
    yield "step 2", stepped(2)
    yield "TO THE FIRST", lambda session: session.go_to(0)
    yield "before the first", lambda session: session.go_to(None)
    yield (
        "to the newest",
        lambda session: session.go_to(max(entry.node.step for entry in session.history.tree)),
    )
    yield "delete", lambda session: delete_branch(session, 9)
    yield "forget", lambda session: session.forget_history()
    yield "STEP", stepped(1)


def told_story(name: str) -> Iterator[str]:
    """Every operation with its result; after those in capitals, the sequences and the bytes that they take."""
    architecture, mode, other = SESSIONS[name]
    session = Session(model_of(architecture), mode, prefill_chunk=5, capture="everything")
    for words, command in story(other):
        try:
            result = str(command(session))
        except InputError as refusal:
            result = f"refused: {refusal}"
        yield f"> {words} = {result}"
        if words != words.lower():
            yield from seen(session)
    session.close()


def seen(session: Session) -> Iterator[str]:
    for info in session.sequences:
        now = session.sequence(info.seq_id)
        logits = "none" if (newest := session.logits(info.seq_id)) is None else told(newest.float().numpy())
        tokens = f"{now.num_tokens} of {len(now.token_ids)} tokens {digest(str(now.token_ids))}"
        yield f"  {info.seq_id}: {info.phase} {tokens}, next {now.sampled}, forced {len(now.forced)}, logits {logits}"
    held = session.bytes()
    yield f"  {held.stored} of {held.reserved} bytes"


@pytest.mark.parametrize("name", SESSIONS)
def test_the_state_of_a_session_is_as_approved(name: str) -> None:
    path = Path(__file__).parent / "approved" / f"{name.replace(' ', '-')}.txt"
    approve(path, [*told_story(name)], whole=True)
