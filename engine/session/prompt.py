"""The token ids of prompts and of texts to force, checked against the vocabulary."""

from __future__ import annotations

from engine.chat.template import Encoded, Rendered, encode_chat
from engine.errors import InputError
from engine.model.loader import LoadedModel
from engine.session.forward import vocabulary
from engine.spec.sampling import Prompt


def encode(model: LoadedModel, prompt: Prompt) -> Encoded:
    """The token ids of a prompt, special tokens as the model's own tokenizer adds them, with the text that they stand
    for; a conversation is rendered by the model's chat template. Raises `InputError` for empty prompts and for ids
    outside the vocabulary."""
    vocab = vocabulary(model)
    if prompt.token_ids is not None:
        for token_id in prompt.token_ids:
            if not 0 <= token_id < vocab:
                raise InputError(f"Token id {token_id} is outside the vocabulary of {vocab:,}: use 0 … {vocab - 1}.")
        return Encoded(list(prompt.token_ids), Rendered(""))
    if model.tokenizer is None:
        raise InputError(f"The model '{model.info.name}' has no tokenizer: give the prompt as token ids.")
    if prompt.chat is not None:
        encoded = encode_chat(model.tokenizer, prompt.chat, model.tokenize)
    else:
        encoded = Encoded(list(model.tokenize(prompt.text or "")["input_ids"]), Rendered(prompt.text or ""))
    ids = encoded.token_ids
    if not ids:
        raise InputError("The prompt has no tokens: type some text first.")
    if max(ids) >= vocab:
        raise InputError(
            f"The tokenizer gives token id {max(ids)}, outside the vocabulary of {vocab:,}: it belongs to another "
            "model; put the right one beside the config, or none."
        )
    return encoded


def first_ids(model: LoadedModel, prompt: Prompt) -> list[int]:
    """The first token ids of a sequence: those of the prompt and, for an encoder-decoder, the token that the decoder
    starts from."""
    return with_start(model, prompt, encode(model, prompt).token_ids)


def with_start(model: LoadedModel, prompt: Prompt, ids: list[int]) -> list[int]:
    """The ids of a prompt followed by the decoder's start token, if the model has one and the prompt does not end with
    it already."""
    return ids if model.start_id is None or prompt.has_start else [*ids, model.start_id]


def encode_forced(model: LoadedModel, text: str) -> tuple[int, ...]:
    """The token ids of a text to force, without special tokens."""
    if model.tokenizer is None:
        raise InputError(f"The model '{model.info.name}' has no tokenizer: force a token by its id, as in #77.")
    Prompt(text=text)  # checks the text
    ids = model.tokenize(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise InputError("The text to force is empty: type some text first.")
    return tuple(ids)
