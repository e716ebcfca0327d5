"""Intents about prompts and the sequences made from them."""

from __future__ import annotations

from app.control.intent_sender import IntentSender
from app.models.sequence_status import selected_info
from engine.errors import InputError
from engine.spec.chat import Chat
from engine.spec.sampling import Prompt, SamplingParams
from engine.wire import commands

PromptContent = str | tuple[int, ...] | Chat  # of a prompt: a text, token ids or a conversation


class PromptIntents(IntentSender):
    """Send prompts, fork, stop and remove sequences, and set their sampling."""

    def on_prompt_submitted(self, content: PromptContent, sampling: SamplingParams) -> None:
        """Start a new run, in place of all sequences. A text or token ids are only read; a conversation is also
        answered, up to its end."""
        self._submit(content, sampling, alone=True, num_steps=None if isinstance(content, Chat) else 1)

    def on_chat_continued(self, chat: Chat, seq_id: int, sampling: SamplingParams) -> None:
        """Continue a conversation and answer it: the new sequence replaces `seq_id`."""
        self._submit(chat, sampling, alone=False, num_steps=None, after=seq_id)

    def on_prompt_added(self, content: PromptContent, sampling: SamplingParams) -> None:
        """Add another sequence to the present run. Its prompt is read, and no other sequence is stepped."""
        self._submit(content, sampling, alone=False)

    def on_prompt_begun(self, content: PromptContent, sampling: SamplingParams) -> None:
        """Start a new run whose first step is taken in phases."""
        self._submit(content, sampling, alone=True, num_steps=0, in_phases=True)

    def _submit(
        self,
        content: PromptContent,
        sampling: SamplingParams,
        *,
        alone: bool,
        num_steps: int | None = 1,
        in_phases: bool = False,
        after: int | None = None,
    ) -> None:
        try:
            if isinstance(content, str):
                prompt = Prompt(text=content, sampling=sampling)
            elif isinstance(content, Chat):
                prompt = Prompt(chat=content, sampling=sampling)
            else:
                prompt = Prompt(token_ids=content, sampling=sampling)
        except InputError as error:
            self._models.status.fail(str(error))
        else:
            self._ask_for_sequence(commands.SubmitPrompt(prompt, alone, num_steps, in_phases, after))

    def on_text_edited(self, text: str) -> None:
        """Have the tokens of a text counted while it is typed, unless the engine is gone."""
        if not self._models.status.is_engine_lost:
            self._requests.texts.ask(text)
            self._waiting.wake()

    def on_chat_edited(self, chat: Chat, after: int | None) -> None:
        """Have a conversation rendered while it is written, and counted how many tokens of the sequence `after` it
        would reuse.
        """
        if not self._models.status.is_engine_lost:
            self._requests.texts.ask_of_chat(chat, after)
            self._waiting.wake()

    def on_sampling_changed(self, sampling: SamplingParams) -> None:
        """Set the sampling of the selected sequence or, if none is selected, of the next prompt."""
        info = selected_info(self._models)
        self._send(commands.SetSampling(sampling, info.seq_id if info is not None else None))
        if (step := self._models.selection.now.step) is not None and info is not None:
            self._models.status.notify(
                f"Changed for the live moment, not for step {step}: go there first to change what came of it"
            )

    def on_forked(self, seq_id: int) -> None:
        """Fork a sequence at the step that is shown."""
        self._ask_for_sequence(commands.Fork(seq_id, self._models.selection.now.step))

    def _ask_for_sequence(self, command: commands.SubmitPrompt | commands.Fork) -> None:
        self._requests.sequences.expect(self._send(command), command)

    def on_joined(self, steps: tuple[int, ...]) -> None:
        """Add the sequences of other steps to those of the live one, as one batch."""
        self._models.selection.update(step=None)
        self._requests.sequences.expect_beside(self._send(commands.JoinBranches(steps)))

    def on_sequence_stopped(self, seq_id: int) -> None:
        self._send(commands.StopSequence(seq_id))

    def on_sequence_removed(self, seq_id: int) -> None:
        """Remove a sequence. Another one is selected first, because the engine can no longer answer requests about this
        one."""
        status = self._models.status.now
        others = [info.seq_id for info in status.sequences if info.seq_id != seq_id] if status is not None else []
        if others and self._models.selection.now.seq_id == seq_id:
            self._models.selection.update(seq_id=others[-1], position=None)
        self._send(commands.RemoveSequence(seq_id))
