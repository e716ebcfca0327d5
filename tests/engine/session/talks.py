"""A tiny model with a tokenizer of bytes and a chat template, and conversations with it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from engine.model.loader import LoadedModel, load
from engine.session.commands import continue_with, generated_text
from engine.session.session import Session
from engine.spec.cache import CacheSpec
from engine.spec.model import ModelSpec
from engine.spec.sampling import Chat, Prompt, SamplingParams, Turn
from tests.engine.chat.templates import SPECIALS, write_chat_tokenizer
from tests.engine.tiny import COMMON

GREEDY = SamplingParams()
FOLDERS = TemporaryDirectory(prefix="talking")  # of all models, gone with the process


@cache
def talking(template: str | None, architecture: str = "llama", **changes: Any) -> LoadedModel:
    """A model with random weights that answers with any bytes. No id ends a text: an answer has one token per step."""
    folder = Path(mkdtemp(dir=FOLDERS.name))
    config = {**COMMON, "vocab_size": len(SPECIALS) + 256, "max_position_embeddings": 512, "eos_token_id": None}
    (folder / "config.json").write_text(json.dumps({**config, "model_type": architecture, **changes}))
    write_chat_tokenizer(folder, template)
    return load(ModelSpec(f"shape:{folder / 'config.json'}", device="cpu", num_threads=1))


def chat_of(*texts: str, roles: tuple[str, ...] = ("user", "assistant")) -> Chat:
    return Chat(tuple(Turn(roles[n % len(roles)], text) for n, text in enumerate(texts)))


def begun(template: str | None, chat: Chat, cache_spec: CacheSpec, steps: int = 6) -> tuple[Session, int]:
    """A session that has read a conversation and generated so many tokens; the last one is chosen and not yet
    computed."""
    session = Session(talking(template), cache_spec, prefill_chunk=512)
    seq_id = session.submit(Prompt(chat=chat, sampling=GREEDY))
    for _ in range(steps):
        session.step()
    return session, seq_id


def goes_on(session: Session, seq_id: int, chat: Chat, then: str) -> int:
    """The next turn of a conversation, with what was answered."""
    return continue_with(
        session, seq_id, Prompt(chat=chat.answered(generated_text(session, seq_id), then), sampling=GREEDY)
    )


def ids_of(text: str) -> tuple[int, ...]:
    """A text by the tokenizer of these models, its role marks included."""
    tokenizer = talking(None).tokenizer
    assert tokenizer is not None
    return tuple(tokenizer(text, add_special_tokens=False)["input_ids"])


def answered(session: Session, seq_id: int, text: str) -> None:
    """The sequence goes back to its prompt and says this; the last token of it is chosen, and not computed."""
    sequence = session.sequence(seq_id)
    session.go_to(0)
    assert session.sequence(seq_id).num_tokens == sequence.num_prompt_tokens
    session.force(seq_id, ids_of(text))
    for _ in range(len(ids_of(text)) - 1):
        session.step()
